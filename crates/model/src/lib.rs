//! From a checkpoint to operations on a device.
//!
//! A *family* reads a config into a [`ModelSpec`], the network as data; a GGUF file is first given the names and
//! the config of the published form. A [`Blueprint`] is both together, and [`Model::load`] brings its
//! weights to the device in canonical form. [`Model::forward`] turns one [`Batch`] of rows into
//! operations. The model is immutable: what a sequence remembers lives in [`StateBuffers`], what a
//! step needs in a [`Workspace`], and both are sized once by [`Limits`].
#![forbid(unsafe_code)]

mod altup;
mod assistant;
mod batch;
mod blueprint;
mod config;
mod draft;
mod error;
mod family;
mod forward;
mod gguf;
mod head;
mod layer;
mod limits;
mod loader;
mod mixer;
mod mlp;
mod model;
mod mtp;
mod names;
mod per_layer;
mod probe;
mod rope;
mod spec;
mod state;
mod step_input;
mod storage;
mod streams;
mod workspace;

pub use batch::{Batch, BatchShape, NewSpan};
pub use blueprint::{Blueprint, open};
pub use draft::HiddenSource;
pub use error::ModelError;
pub use family::{MlxForm, published_with_mtp, spec_from_config};
pub use head::{Choice, Head, HeadProduct};
pub use limits::{KV_BLOCK, Limits, MAX_LAG, Planner};
pub use loader::Progress;
pub use mixer::{DELTA_RATE, SCAN_RATE};
pub use model::Model;
pub use probe::IsFinite;
pub use rope::{RopeRule, RopeScale, RopeSpec};
pub use spec::{
    AltUpSpec, AssistantSpec, AttentionSpec, ClusterSpec, CompressSpec, CompressedSpec, DeltaSpec,
    DrafterSpec, Frame, IndexSpec, IndexedSpec, KdaSpec, LatentSpec, LayerSpec, MixerSpec, MlpSpec,
    ModelSpec, MoeSpec, NgramSpec, PerLayerSpec, Placeholders, RouterSpec, ScanSpec,
    SharedExpertSpec, ShortConvSpec, StreamMix, StreamsSpec, Values,
};
pub use state::{DraftState, LayerState, StateBuffer, StateBuffers, StateKind};
pub use step_input::{BlockTables, InputBlock, PassInputs};
pub use storage::StorageForm;
pub use workspace::Workspace;

pub(crate) use assistant::Assistant;
pub(crate) use mtp::Mtp;
