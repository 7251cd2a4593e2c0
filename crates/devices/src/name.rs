//! Names of devices, as they are typed and printed.

use forerun_backend_wgpu::AdapterChoice;
use std::fmt;
use std::str::FromStr;

/// A device by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
    /// An adapter of Metal, Vulkan or DX12.
    Wgpu(AdapterChoice),
}

impl DeviceName {
    /// Whether it is neither the CPU nor left open.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::Cuda(_) | Self::Wgpu(_))
    }
}

const EXPECTED: &str = "expected auto, cpu, cuda, cuda:N, or wgpu, vulkan, metal or dx12, each perhaps with :N or :software";

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map(Self::Cuda).map_err(|why| why.to_string())
            }
            _ => text.parse().map(Self::Wgpu).map_err(|_| EXPECTED.to_owned()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Wgpu(choice) => choice.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_backend_wgpu::{AdapterSelector, Api};

    fn wgpu(api: Api, selector: AdapterSelector) -> Option<DeviceName> {
        Some(DeviceName::Wgpu(AdapterChoice { api, selector }))
    }

    #[test]
    fn devices_have_names_and_gpus_numbers() {
        for (text, name) in [
            ("auto", Some(DeviceName::Auto)),
            ("cpu", Some(DeviceName::Cpu)),
            ("cuda", Some(DeviceName::Cuda(0))),
            ("cuda:3", Some(DeviceName::Cuda(3))),
            ("cuda:", None),
            ("cuda:+1", None),
            ("cpu:1", None),
            ("gpu", None),
            ("wgpu", wgpu(Api::Any, AdapterSelector::Best)),
            ("vulkan:1", wgpu(Api::Vulkan, AdapterSelector::Number(1))),
            ("metal:software", wgpu(Api::Metal, AdapterSelector::Software)),
            ("wgpu:x", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), name, "{text}");
        }
        for name in ["auto", "cpu", "cuda:3", "wgpu", "dx12:2", "vulkan:software"] {
            assert_eq!(name.parse().map(|name: DeviceName| name.to_string()).as_deref(), Ok(name));
        }
    }
}
