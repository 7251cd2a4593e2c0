//! Every kernel is valid, the texts that Metal gets of it can be written, and those of the hot ones run on the host.

mod run;

use forerun_backend_wgpu::{KERNELS, Kernel};
use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, msl};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ShaderStage};

/// Values of constants that together reach every branch of the texts.
const VARIANTS: [&[(&str, f64)]; 6] = [
    &[],
    &[("KIND0", 1.0), ("KIND1", 2.0), ("KIND", 1.0), ("CODES", 4.0), ("BITS", 32.0)],
    &[("KIND", 2.0), ("CODES", 2.0), ("BITS", 4.0), ("SPLIT", 1.0)],
    &[("KIND0", 3.0), ("KIND1", 3.0), ("KIND", 3.0), ("BITS", 3.0), ("ODD_GROUP", 48.0)],
    &[("CODES", 3.0), ("BITS", 8.0), ("COLUMNS", 16.0)],
    &[("CODES", 6.0), ("BITS", 16.0)],
];

fn valid(kernel: &Kernel) -> (Module, ModuleInfo) {
    let text = kernel.text();
    let module = naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|why| panic!("{}: {}", kernel.name, why.emit_to_string(&text)));
    let capabilities = Capabilities::IMMEDIATES;
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    let info = info.unwrap_or_else(|why| panic!("{}: {}", kernel.name, why.emit_to_string(&text)));
    (module, info)
}

#[test]
fn every_kernel_is_valid_and_has_its_entry_point() {
    for kernel in KERNELS {
        let (module, _) = valid(kernel);
        let mut entries = module.entry_points.iter();
        assert!(entries.any(|entry| entry.name == kernel.entry), "{}", kernel.name);
    }
}

#[test]
fn no_kernel_needs_more_than_every_adapter_has() {
    for kernel in KERNELS {
        let (module, _) = valid(kernel);
        let written = module.global_variables.iter();
        let bindings = written.filter(|(_, variable)| variable.binding.is_some()).count();
        assert!(bindings <= 16, "{}: {bindings} storage buffers", kernel.name);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("sizes");
        let size = |space| {
            let of = module.global_variables.iter().filter(move |(_, v)| v.space == space);
            of.map(|(_, v)| layouter[v.ty].size).sum::<u32>()
        };
        assert!(size(naga::AddressSpace::WorkGroup) <= 16_384, "{}", kernel.name);
        assert!(size(naga::AddressSpace::Immediate) <= 128, "{}", kernel.name);
    }
}

/// The text that Metal gets.
fn metal(kernel: &Kernel, constants: &[(&str, f64)]) -> String {
    let (module, info) = valid(kernel);
    let known = |name: &str| {
        module.overrides.iter().any(|(_, constant)| constant.name.as_deref() == Some(name))
    };
    let constants = constants.iter().filter(|(name, _)| known(name));
    let constants: PipelineConstants =
        constants.map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let entry = (ShaderStage::Compute, kernel.entry);
    let (module, info) = process_overrides(&module, &info, Some(entry), &constants)
        .unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
    let mut resources = msl::EntryPointResources {
        sizes_buffer: Some(30),
        immediates_buffer: Some(29),
        ..Default::default()
    };
    for (_, variable) in module.global_variables.iter() {
        if let Some(binding) = variable.binding {
            let buffer = Some(binding.binding as u8);
            let target = msl::BindTarget { buffer, mutable: true, ..Default::default() };
            resources.resources.insert(binding, target);
        }
    }
    let mut options = msl::Options {
        lang_version: (2, 4),
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    options.per_entry_point_map.insert(kernel.entry.to_owned(), resources);
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, kernel.entry.to_owned())),
        ..Default::default()
    };
    let written = msl::write_string(&module, &info, &options, &pipeline);
    let (text, found) = written.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
    for name in found.entry_point_names {
        name.unwrap_or_else(|why| panic!("{}: {why}", kernel.name));
    }
    text
}

#[test]
fn metal_gets_a_text_of_every_kernel_in_every_variant() {
    for kernel in KERNELS {
        for constants in VARIANTS {
            let text = metal(kernel, constants);
            assert!(text.contains("kernel void"), "{}: no entry point", kernel.name);
        }
    }
}

#[test]
fn sums_of_products_reach_metal_as_fused_operations() {
    let names = [
        "product_one",
        "product_tile",
        "products_four",
        "gated_one",
        "attention",
        "delta_rule",
        "sample",
    ];
    for name in names {
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name).expect("a kernel");
        assert!(metal(kernel, &[]).contains("metal::fma("), "{name}");
    }
}
