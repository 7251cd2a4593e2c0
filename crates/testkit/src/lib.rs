//! What the tests of every crate share.
//!
//! - [`Recorder`]: a device that behaves like a GPU and watches its caller;
//! - [`Losable`]: a device that is lost when a test says so;
//! - [`Golden`]: results of reference implementations on tiny checkpoints;
//! - [`hub_server`]: a model hub on this machine, with faults on demand;
//! - [`tiny`]: random checkpoints of any small shape;
//! - [`tolerance`]: comparisons that say where and by how much.
//!
//! Helpers panic instead of returning errors: whatever goes wrong here is a failed test.
#![forbid(unsafe_code)]

mod golden;
pub mod hub_server;
mod losable;
mod recorder;
pub mod tiny;
pub mod tolerance;

pub use forerun_backend::Budget;
pub use golden::{Array, GOLDENS, Golden, LogitRows};
pub use losable::{Losable, LossSwitch, MakeDevice};
pub use recorder::{POISON_INDEX, Recorder, RecorderStats, RecorderWatch};
