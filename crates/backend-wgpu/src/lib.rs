//! The device of Metal, Vulkan and DX12, by way of wgpu: kernels in WGSL, one compute pass for each submission.
//!
//! On macOS it is part of every build, elsewhere of those with the feature `device`: without it there are only the
//! names of adapters, so that a program can say what it was built without.
#![deny(unsafe_code)]

mod choice;
#[cfg(any(feature = "device", target_os = "macos"))]
mod gpu;

pub use choice::{AdapterChoice, AdapterSelector, Api};
#[cfg(any(feature = "device", target_os = "macos"))]
pub use gpu::*;
