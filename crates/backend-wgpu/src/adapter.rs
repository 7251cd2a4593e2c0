//! Which adapter to open.

use std::fmt;

/// An interface of the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Whatever there is.
    #[default]
    Any,
    /// Vulkan.
    Vulkan,
    /// Metal, of macOS.
    Metal,
    /// Direct3D 12, of Windows.
    Dx12,
}

impl Api {
    fn backends(self) -> wgpu::Backends {
        match self {
            Self::Any => wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
            Self::Vulkan => wgpu::Backends::VULKAN,
            Self::Metal => wgpu::Backends::METAL,
            Self::Dx12 => wgpu::Backends::DX12,
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::Dx12 => "dx12",
        })
    }
}

/// One of the adapters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// The first discrete GPU, else the first that is no software.
    #[default]
    Best,
    /// By its number in [`adapters`].
    Number(usize),
    /// The first that is software, which no other choice takes unless it names its number.
    Software,
}

/// An adapter by interface and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// The interface.
    pub api: Api,
    /// Which of its adapters.
    pub pick: Pick,
}

/// Why no adapter was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterError(String);

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AdapterError {}

fn enumerate(api: Api) -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = api.backends();
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(api.backends()))
}

fn described(adapter: &wgpu::Adapter) -> String {
    let info = adapter.get_info();
    let software = if is_software(adapter) { ", software" } else { "" };
    format!("{} ({}{software})", info.name, info.backend)
}

fn is_software(adapter: &wgpu::Adapter) -> bool {
    adapter.get_info().device_type == wgpu::DeviceType::Cpu
}

/// The adapters of an interface in words, in the order of their numbers.
pub fn adapters(api: Api) -> Vec<String> {
    enumerate(api).iter().map(described).collect()
}

/// The adapter that a choice names.
pub(crate) fn find(choice: AdapterChoice) -> Result<wgpu::Adapter, AdapterError> {
    let mut all = enumerate(choice.api);
    let kind = |adapter: &wgpu::Adapter| adapter.get_info().device_type;
    let found = match choice.pick {
        Pick::Number(number) => (number < all.len()).then_some(number),
        Pick::Software => all.iter().position(is_software),
        Pick::Best => {
            let discrete = all.iter().position(|a| kind(a) == wgpu::DeviceType::DiscreteGpu);
            discrete.or_else(|| all.iter().position(|a| !is_software(a)))
        }
    };
    let Some(found) = found else {
        let there = match &all[..] {
            [] => "there is none".to_owned(),
            _ => {
                let names = all.iter().enumerate().map(|(i, a)| format!("{i}: {}", described(a)));
                format!("there are {}", names.collect::<Vec<_>>().join("; "))
            }
        };
        let hint = if choice.pick == Pick::Best && !all.is_empty() {
            "; software is used only when it is named"
        } else {
            ""
        };
        return Err(AdapterError(format!("no such adapter: {there}{hint}")));
    };
    Ok(all.swap_remove(found))
}
