//! The devices of this build: which there are, whether this machine has them and why not, and opening one by name.
//!
//! This is the one crate that names every backend. [`list`] goes through all of them without computing anything;
//! [`open`] makes the chosen one ready. A new backend gets a [`DeviceName`], an arm in [`open`] and a line in [`list`].
#![forbid(unsafe_code)]

mod compute;
mod list;
mod memory;
mod name;
mod open;
mod processor;

#[cfg(not(any(feature = "wgpu", target_os = "macos")))]
#[path = "no_wgpu.rs"]
mod wgpu;
#[cfg(any(feature = "wgpu", target_os = "macos"))]
mod wgpu;

pub use compute::Compute;
pub use forerun_backend_cpu::{Machine, return_freed_memory};
pub use forerun_backend_wgpu::{AdapterChoice, AdapterSelector, Api};
pub use list::{DeviceEntry, DeviceState, list};
pub use memory::{ContainerLimits, MemorySizes};
pub use name::DeviceName;
pub use open::{DeviceError, DeviceOptions, OpenedDevice, measure, open, open_cpu};
pub use processor::{Processor, processor};
