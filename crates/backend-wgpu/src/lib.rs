//! The device of Metal, Vulkan and DX12, by way of wgpu: kernels in WGSL, one compute pass for each submission.
//!
//! Without the feature `device` the crate is empty.
#![cfg(feature = "device")]
#![forbid(unsafe_code)]

mod adapter;
mod device;
mod kernels;
mod launch;
mod memory;
mod ops;
mod pipelines;
mod queue;
mod weights;

pub use adapter::{AdapterChoice, AdapterError, Api, Pick, adapters};
pub use device::Wgpu;
pub use kernels::{KERNELS, Kernel};
