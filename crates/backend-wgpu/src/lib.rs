//! The device of Metal, Vulkan and DX12, by way of wgpu: kernels in WGSL, one compute pass for each submission.
//!
//! On macOS it is part of every build, elsewhere of those with the feature `device`: without it there are only the
//! names of adapters, so that a program can say what it was built without.
#![forbid(unsafe_code)]

mod choice;

#[cfg(any(feature = "device", target_os = "macos"))]
mod adapter;
#[cfg(any(feature = "device", target_os = "macos"))]
mod bind;
#[cfg(any(feature = "device", target_os = "macos"))]
mod bound;
#[cfg(any(feature = "device", target_os = "macos"))]
mod device;
#[cfg(any(feature = "device", target_os = "macos"))]
mod kernels;
#[cfg(any(feature = "device", target_os = "macos"))]
mod launch;
#[cfg(any(feature = "device", target_os = "macos"))]
mod layout;
#[cfg(any(feature = "device", target_os = "macos"))]
mod lowering;
#[cfg(any(feature = "device", target_os = "macos"))]
mod mark;
#[cfg(any(feature = "device", target_os = "macos"))]
mod memory;
#[cfg(any(feature = "device", target_os = "macos"))]
mod ops;
#[cfg(any(feature = "device", target_os = "macos"))]
mod pipelines;
#[cfg(any(feature = "device", target_os = "macos"))]
mod planned;
#[cfg(any(feature = "device", target_os = "macos"))]
mod queue;
#[cfg(any(feature = "device", target_os = "macos"))]
mod weights;

pub use choice::{AdapterChoice, AdapterSelector, Api};

#[cfg(any(feature = "device", target_os = "macos"))]
pub use adapter::{AdapterKind, FoundAdapter, adapters};
#[cfg(any(feature = "device", target_os = "macos"))]
pub use device::{LossSwitch, Wgpu};
#[cfg(any(feature = "device", target_os = "macos"))]
pub use kernels::{KERNELS, Kernel};
#[cfg(any(feature = "device", target_os = "macos"))]
pub use planned::{Counts, Planned, PlannedCounts, PlannedLimits};
