//! From a checkpoint to operations on a device.
//!
//! A *family* reads a config into a [`ModelSpec`], the network as data. [`Model::load`] brings the
//! weights to the device in canonical form. [`Model::forward`] turns one [`Batch`] of rows into
//! operations. The model is immutable: what a sequence remembers lives in [`StateBuffers`], what a
//! step needs in a [`Workspace`], and both are sized once by [`Limits`].
#![forbid(unsafe_code)]

mod batch;
mod config;
mod error;
mod family;
mod forward;
mod limits;
mod loader;
mod mixer;
mod mlp;
mod model;
mod mtp;
mod rope;
mod spec;
mod state;
mod workspace;

pub use batch::{Batch, BatchShape, NewSpan};
pub use error::ModelError;
pub use family::{read_spec, spec_from_config};
pub use limits::{KV_BLOCK, Limits, MAX_LAG, Planner};
pub use loader::Progress;
pub use model::{Layer, Model};
pub use mtp::{HiddenSource, Mtp};
pub use rope::RopeSpec;
pub use spec::{AttentionSpec, DeltaSpec, LayerSpec, MixerSpec, MlpSpec, ModelSpec, MoeSpec};
pub use state::{LayerState, MtpState, StateBuffers};
pub use workspace::Workspace;
