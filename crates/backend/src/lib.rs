//! The device seam. Nothing above it is generic over a device, nothing below it knows a model.
//!
//! A device holds *buffers* (typed, allocated once) and *weights* (canonical matrices, uploaded
//! once). Work is a sequence of *operations*: plain structs of ids and sizes ([`Op`]), recorded in
//! order, run at [`Backend::submit`] at the latest, observable after [`Backend::wait`].
//!
//! Every operation describes itself on a [`OpDesc`]: operands, shapes and cost in one place. Devices
//! check a call with it, runners bound submissions with it, tests watch memory with it, and [`Timed`] sets
//! what a device achieves beside it.
#![forbid(unsafe_code)]

mod backend;
mod buffer;
pub mod conform;
mod error;
pub mod op;
mod op_desc;
mod plan;
mod program;
mod stash;
mod timed;

pub use backend::{Backend, CutSizes, HostData, HostDataMut, STAGING, Ticket, submit_and_wait};
pub use buffer::{BufferId, BufferInfo, BufferRole, BufferSpec, View, WeightId, WeightInfo};
pub use error::BackendError;
pub use forerun_base::Bytes;
pub use op::Op;
pub use op_desc::{Access, Budget, Catalog, Cost, OpDesc, Operand};
pub use plan::{MemoryPlan, PlanItem};
pub use program::{PreparedProgram, Program};
pub use stash::{StashId, Stashes, bytes_of_views, read_views, write_views};
pub use timed::{Meter, OpKind, RowClass, Timed, TimedEntry};
