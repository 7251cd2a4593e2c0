//! Every device this build knows, found or not.

use crate::{DeviceName, Processor, processor, wgpu};
use forerun_backend::Backend;
use forerun_backend_cuda::Cuda;
use serde::Serialize;

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceEntry {
    /// As `--device` takes it.
    pub name: String,
    /// Whether it is there.
    #[serde(flatten)]
    pub state: DeviceState,
}

/// Whether a device can be used.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum DeviceState {
    /// The processor, which is always there.
    Processor(Processor),
    /// A GPU that answers.
    Gpu {
        /// In its own words.
        description: String,
        /// What results on it depend on: driver kind, architecture, precision.
        arithmetic: String,
        /// Free memory, if the driver tells.
        free_bytes: Option<u64>,
    },
    /// A program that stands in for a GPU: it computes, slowly, and is used only where it is named.
    Software {
        /// In its own words.
        description: String,
    },
    /// Not found, or found and not usable.
    Unavailable {
        /// Why, and what helps.
        why: String,
    },
}

impl DeviceEntry {
    /// Its name, where it can be used without being named.
    pub fn usable(&self) -> Option<DeviceName> {
        match self.state {
            DeviceState::Unavailable { .. } | DeviceState::Software { .. } => None,
            DeviceState::Processor(_) | DeviceState::Gpu { .. } => self.name.parse().ok(),
        }
    }
}

/// Every device this build knows: found, or why not. The CPU is described for so many threads.
pub fn list(threads: Option<usize>) -> Vec<DeviceEntry> {
    let cpu = DeviceState::Processor(processor(threads));
    let mut entries = vec![DeviceEntry { name: DeviceName::Cpu.to_string(), state: cpu }];
    entries.extend(cuda());
    entries.extend(wgpu::entries());
    entries
}

fn cuda() -> Vec<DeviceEntry> {
    let none = |why: String| {
        vec![DeviceEntry { name: "cuda".to_owned(), state: DeviceState::Unavailable { why } }]
    };
    match Cuda::count() {
        Err(why) => none(why.to_string()),
        Ok(0) => none("the driver is there and finds no CUDA device".to_owned()),
        Ok(count) => (0..count).map(cuda_device).collect(),
    }
}

fn cuda_device(number: usize) -> DeviceEntry {
    let state = match Cuda::open(number) {
        Ok(device) => DeviceState::Gpu {
            description: device.name(),
            arithmetic: device.arithmetic(),
            free_bytes: device.free_memory(),
        },
        Err(why) => DeviceState::Unavailable { why: why.to_string() },
    };
    DeviceEntry { name: DeviceName::Cuda(number).to_string(), state }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_always_usable_and_every_other_device_is_found_or_says_why_not() {
        let entries = list(Some(1));
        assert_eq!(entries[0].usable(), Some(DeviceName::Cpu));
        for kind in ["cpu", "cuda", "wgpu"] {
            let of_kind = |entry: &DeviceEntry| entry.name.starts_with(kind);
            assert!(entries.iter().any(of_kind), "{kind} has an entry: {entries:?}");
        }
        for entry in &entries {
            match &entry.state {
                DeviceState::Unavailable { why } => {
                    assert!(entry.usable().is_none() && !why.is_empty(), "{entry:?}");
                }
                DeviceState::Software { description } => {
                    assert!(entry.usable().is_none() && !description.is_empty(), "{entry:?}");
                }
                _ => assert!(entry.usable().is_some(), "{entry:?}"),
            }
        }
    }
}
