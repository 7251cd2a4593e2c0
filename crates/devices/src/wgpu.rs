//! Adapters of Metal, Vulkan and DX12.

use crate::{DeviceEntry, DeviceName, DeviceState};
use forerun_backend::{Backend, BackendError};
use forerun_backend_wgpu::{
    AdapterChoice, AdapterKind, AdapterSelector, Api, FoundAdapter, Wgpu, adapters,
};

/// Every adapter, found or not usable.
pub(crate) fn entries() -> Vec<DeviceEntry> {
    let found = adapters(Api::Any);
    if found.is_empty() {
        let why = "no driver for Vulkan, Metal or DX12 was found".to_owned();
        let state = DeviceState::Unavailable { why };
        return vec![DeviceEntry { name: Api::Any.to_string(), state }];
    }
    found.iter().enumerate().map(|(number, adapter)| entry(number, adapter)).collect()
}

fn entry(number: usize, adapter: &FoundAdapter) -> DeviceEntry {
    let description = format!("{}, {}", adapter.description, adapter.details);
    let state = match Wgpu::open(numbered(number)) {
        Err(why) => DeviceState::Unavailable { why: format!("{description}: {why}") },
        Ok(_) if adapter.kind == AdapterKind::Software => DeviceState::Software { description },
        Ok(device) => DeviceState::Gpu {
            description,
            arithmetic: device.arithmetic(),
            free_bytes: device.free_memory(),
        },
    };
    DeviceEntry { name: DeviceName::Wgpu(numbered(number)).to_string(), state }
}

fn numbered(number: usize) -> AdapterChoice {
    AdapterChoice { api: Api::Any, selector: AdapterSelector::Number(number) }
}

/// The first adapter that is likely faster than the processor, or why there is none.
pub(crate) fn fast() -> Result<AdapterChoice, String> {
    let found = adapters(Api::Any);
    let first = found.iter().position(|adapter| adapter.kind == AdapterKind::Fast);
    first.map(numbered).ok_or_else(|| match &found[..] {
        [] => "no driver for Vulkan, Metal or DX12".to_owned(),
        _ => {
            let names: Vec<&str> = found.iter().map(|a| a.description.as_str()).collect();
            format!("no discrete or Apple GPU, only {}", names.join(", "))
        }
    })
}

pub(crate) fn open(
    choice: AdapterChoice,
    memory: Option<u64>,
) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(Wgpu::open(choice)?.with_memory_limit(memory)))
}
