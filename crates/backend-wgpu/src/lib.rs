//! The device of Metal, Vulkan and DX12, by way of wgpu: kernels in WGSL, one compute pass for each submission.
//!
//! Without the feature `device` the crate is empty.
#![cfg(feature = "device")]
#![forbid(unsafe_code)]

mod adapter;
mod bind;
mod bound;
mod device;
mod kernels;
mod launch;
mod layout;
mod lowering;
mod memory;
mod ops;
mod pipelines;
mod planned;
mod queue;
mod weights;

pub use adapter::{AdapterChoice, AdapterError, Api, Pick, adapters};
pub use device::Wgpu;
pub use kernels::{KERNELS, Kernel};
pub use planned::{Counts, Planned, PlannedCounts, PlannedLimits};
