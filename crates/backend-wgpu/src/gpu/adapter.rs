//! Which adapters there are, and finding the one to open.

use crate::choice::{AdapterChoice, AdapterSelector, Api};

/// What an adapter is, as far as choosing one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// With memory of its own, or of Apple: likely faster than the processor beside it.
    Fast,
    /// Shares the processor's memory, or is not known to be fast.
    Other,
    /// A program of the processor.
    Software,
}

/// An adapter that was found, not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundAdapter {
    /// What it is.
    pub kind: AdapterKind,
    /// Its name and interface.
    pub description: String,
    /// Its driver and limits.
    pub details: String,
}

/// The adapters of an interface, in the order of their numbers.
pub fn adapters(api: Api) -> Vec<FoundAdapter> {
    enumerate(api).iter().map(found).collect()
}

/// The adapter that a choice names, or why there is none.
pub(crate) fn find(choice: AdapterChoice) -> Result<wgpu::Adapter, String> {
    let mut all = enumerate(choice.api);
    let known: Vec<FoundAdapter> = all.iter().map(found).collect();
    match position(choice.selector, &known) {
        Some(at) => Ok(all.swap_remove(at)),
        None => Err(why_none(choice, &known)),
    }
}

/// The number of what is selected.
fn position(selector: AdapterSelector, all: &[FoundAdapter]) -> Option<usize> {
    let first = |kind| all.iter().position(|adapter| adapter.kind == kind);
    match selector {
        AdapterSelector::Number(number) => (number < all.len()).then_some(number),
        AdapterSelector::Software => first(AdapterKind::Software),
        AdapterSelector::Best => first(AdapterKind::Fast).or_else(|| first(AdapterKind::Other)),
    }
}

/// Why nothing is selected.
fn why_none(choice: AdapterChoice, all: &[FoundAdapter]) -> String {
    let api = choice.api;
    if all.is_empty() {
        let what =
            if api == Api::Any { "Vulkan, Metal or DX12".to_owned() } else { api.to_string() };
        return format!("there is no adapter: no driver for {what} was found");
    }
    let names = all.iter().enumerate().map(|(i, a)| format!("{api}:{i} is {}", a.description));
    let names = names.collect::<Vec<_>>().join(", ");
    match choice.selector {
        AdapterSelector::Best => {
            format!("there is no GPU: {names}, which is used only where it is named")
        }
        AdapterSelector::Number(_) | AdapterSelector::Software => {
            format!("there is no such adapter: {names}")
        }
    }
}

fn enumerate(api: Api) -> Vec<wgpu::Adapter> {
    let backends = match api {
        Api::Any => wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
        Api::Vulkan => wgpu::Backends::VULKAN,
        Api::Metal => wgpu::Backends::METAL,
        Api::Dx12 => wgpu::Backends::DX12,
    };
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    // Where the driver tells what is left, a buffer beyond it is refused instead of pushing out what others hold.
    descriptor.memory_budget_thresholds.for_resource_creation = Some(95);
    let instance = wgpu::Instance::new(descriptor);
    pollster::block_on(instance.enumerate_adapters(backends))
}

fn found(adapter: &wgpu::Adapter) -> FoundAdapter {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let apple = info.name.starts_with("Apple");
    let kind = match info.device_type {
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Fast,
        _ if apple => AdapterKind::Fast,
        _ => AdapterKind::Other,
    };
    let software = if kind == AdapterKind::Software { ", software" } else { "" };
    let driver = format!("{} {}", info.driver, info.driver_info);
    let mebibytes = |bytes: u64| bytes >> 20;
    let details = format!(
        "driver {}; buffers up to {} MiB, bindings up to {} MiB, subgroups of {} to {}",
        driver.trim(),
        mebibytes(limits.max_buffer_size),
        mebibytes(limits.max_storage_buffer_binding_size),
        info.subgroup_min_size,
        info.subgroup_max_size,
    );
    FoundAdapter {
        kind,
        description: format!("{} ({}{software})", info.name, info.backend),
        details,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kinds: &[AdapterKind]) -> Vec<FoundAdapter> {
        let one = |(i, &kind): (usize, &AdapterKind)| FoundAdapter {
            kind,
            description: format!("adapter {i}"),
            details: String::new(),
        };
        kinds.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_best_is_fast_or_at_least_no_software() {
        use AdapterKind::{Fast, Other, Software};
        for (kinds, best) in [
            (&[Software, Other, Fast][..], Some(2)),
            (&[Software, Other], Some(1)),
            (&[Software], None),
            (&[], None),
        ] {
            assert_eq!(position(AdapterSelector::Best, &of(kinds)), best, "{kinds:?}");
        }
        assert_eq!(position(AdapterSelector::Software, &of(&[Fast, Software])), Some(1));
        assert_eq!(position(AdapterSelector::Number(1), &of(&[Fast, Software])), Some(1));
        assert_eq!(position(AdapterSelector::Number(2), &of(&[Fast, Software])), None);
    }

    #[test]
    fn where_nothing_is_selected_what_there_is_gets_named() {
        let choice = |text: &str| text.parse::<AdapterChoice>().expect("a choice");
        let none = why_none(choice("vulkan"), &[]);
        assert_eq!(none, "there is no adapter: no driver for vulkan was found");
        let software = why_none(choice("wgpu"), &of(&[AdapterKind::Software]));
        assert!(
            software.contains("wgpu:0 is adapter 0") && software.contains("named"),
            "{software}"
        );
        let number = why_none(choice("metal:3"), &of(&[AdapterKind::Fast]));
        assert!(number.starts_with("there is no such adapter: metal:0 is"), "{number}");
    }
}
