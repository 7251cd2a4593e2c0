//! Stands in for the adapters of Metal, Vulkan and DX12 in a build without them.

use crate::{DeviceEntry, DeviceState};
use forerun_backend::{Backend, BackendError};
use forerun_backend_wgpu::{AdapterChoice, Api};

const WHY: &str =
    "this build has no Metal, Vulkan and DX12; cargo build --release --features wgpu makes one";

pub(crate) fn entries() -> Vec<DeviceEntry> {
    let state = DeviceState::Unavailable { why: WHY.to_owned() };
    vec![DeviceEntry { name: Api::Any.to_string(), state }]
}

pub(crate) fn fast() -> Result<AdapterChoice, String> {
    Err("this build has no Metal, Vulkan and DX12".to_owned())
}

pub(crate) fn open(_: AdapterChoice, _: Option<u64>) -> Result<Box<dyn Backend>, BackendError> {
    Err(BackendError::Device(WHY.to_owned()))
}
