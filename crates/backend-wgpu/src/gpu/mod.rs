//! The device itself, where wgpu is part of the build.

mod adapter;
mod bind;
mod bound;
mod device;
mod kernels;
mod launch;
mod layout;
mod lowering;
mod mark;
mod memory;
mod opened;
mod ops;
mod pipelines;
mod planned;
mod queue;
mod timing;
mod weights;

pub use adapter::{AdapterKind, FoundAdapter, adapters};
pub use device::{LossSwitch, Wgpu};
pub use kernels::{KERNELS, Kernel};
pub use planned::{Counts, Planned, PlannedCounts, PlannedLimits};
