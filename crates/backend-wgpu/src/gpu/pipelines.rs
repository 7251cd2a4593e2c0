//! Compute pipelines by kernel and constants, made when they are first asked for.

use crate::gpu::kernels::Kernel;
use crate::gpu::launch::{Call, Launch, MOST};
use crate::gpu::layout::Constant;
use forerun_backend::BackendError;
use std::collections::HashMap;

/// Bytes of immediates of every pipeline.
pub(crate) const IMMEDIATES: u32 = 128;

/// What one kernel is bound to.
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
    module: wgpu::ShaderModule,
    /// Numbers of the bindings, ascending, and whether each is written.
    bindings: Vec<(u32, bool)>,
}

/// What was compiled for an adapter. It outlives whoever opened it: see [`crate::gpu::opened`].
#[derive(Default)]
pub(crate) struct Compiled {
    layouts: HashMap<(usize, &'static [&'static str]), Layout>,
    pipelines: HashMap<(&'static str, Vec<Constant>), wgpu::ComputePipeline>,
}

/// See the module's text.
pub(crate) struct Pipelines {
    device: wgpu::Device,
    pub(crate) compiled: Compiled,
    /// Stand in for operands that a call does not have; those that are written are each bound once.
    unread: wgpu::Buffer,
    unwritten: [wgpu::Buffer; 3],
}

impl Pipelines {
    pub(crate) fn new(device: wgpu::Device, compiled: Compiled) -> Self {
        let stand_in = || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("absent operand"),
                size: 16,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        };
        let (unread, unwritten) = (stand_in(), [stand_in(), stand_in(), stand_in()]);
        Self { device, compiled, unread, unwritten }
    }

    /// A launch of a call with everything it needs, or nothing where there are no workgroups. `operands` are the
    /// call's.
    pub(crate) fn launch(
        &mut self,
        fault: &wgpu::Buffer,
        call: &Call,
        operands: &[Option<wgpu::Buffer>],
    ) -> Result<Option<Launch>, BackendError> {
        let Call { kernel, constants, words, grid, .. } = call;
        if grid.contains(&0) {
            return Ok(None);
        }
        let words = words.as_ref().filter(|_| grid.iter().all(|&size| size <= MOST));
        let words = words.cloned().ok_or_else(|| {
            let name = kernel.name;
            BackendError::Device(format!("{name}: a call of {grid:?} workgroups is too large"))
        })?;
        let pipeline = self.pipeline(kernel, constants);
        let layout = &self.compiled.layouts[&(kernel.copies, kernel.texts)];
        let mut absent = self.unwritten.iter();
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: fault.as_entire_binding() }];
        for (&(binding, written), operand) in layout.bindings[1..].iter().zip(operands) {
            let buffer = match operand {
                Some(buffer) => buffer,
                None if written => absent.next().unwrap_or(&self.unwritten[0]),
                None => &self.unread,
            };
            entries.push(wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() });
        }
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(kernel.name),
            layout: &layout.group,
            entries: &entries,
        });
        let (immediates, grid) = (words.into_bytes(), grid.map(|size| size as u32));
        Ok(Some(Launch { pipeline, group, immediates, grid }))
    }

    fn pipeline(
        &mut self,
        kernel: &'static Kernel,
        constants: &[Constant],
    ) -> wgpu::ComputePipeline {
        let key = (kernel.name, constants.to_vec());
        let Compiled { layouts, pipelines } = &mut self.compiled;
        if let Some(pipeline) = pipelines.get(&key) {
            return pipeline.clone();
        }
        let device = &self.device;
        let layout =
            layouts.entry((kernel.copies, kernel.texts)).or_insert_with(|| layout(device, kernel));
        let numbers: Vec<(&str, f64)> =
            constants.iter().map(|(name, value)| (*name, f64::from(*value))).collect();
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&layout.pipeline),
            module: &layout.module,
            entry_point: Some(kernel.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &numbers,
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        pipelines.insert(key, pipeline.clone());
        pipeline
    }
}

/// The numbers of a text's bindings, ascending, and whether each is written.
pub(crate) fn bindings(text: &str) -> Vec<(u32, bool)> {
    let mut found: Vec<(u32, bool)> = text
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.strip_prefix("@group(0) @binding(")?.split_once(')')?;
            Some((number.parse().ok()?, rest.contains("read_write")))
        })
        .collect();
    found.sort_unstable();
    found
}

fn layout(device: &wgpu::Device, kernel: &Kernel) -> Layout {
    let text = kernel.text();
    let bindings = bindings(&text);
    let entries: Vec<wgpu::BindGroupLayoutEntry> = bindings
        .iter()
        .map(|&(binding, written)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: !written },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    let label = Some(kernel.name);
    let group = device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&group)],
        immediate_size: IMMEDIATES,
    });
    let source = wgpu::ShaderSource::Wgsl(text.into());
    let module = without_loop_counters(device, wgpu::ShaderModuleDescriptor { label, source });
    Layout { group, pipeline, module, bindings }
}

/// A module whose loops are not counted: wgpu would give each a counter of 64 bits, which costs as much as the sums in
/// the inner loops of products. Accesses stay checked.
#[expect(unsafe_code, reason = "a module with fewer checks than wgpu adds is the caller's word")]
fn without_loop_counters(
    device: &wgpu::Device,
    descriptor: wgpu::ShaderModuleDescriptor<'_>,
) -> wgpu::ShaderModule {
    let checks = wgpu::ShaderRuntimeChecks {
        force_loop_bounding: false,
        ..wgpu::ShaderRuntimeChecks::checked()
    };
    // SAFETY: the one check that is left out asks that no loop be endless. All texts are this crate's own: a loop of
    // theirs counts an integer to a bound that it does not change, halves or compares one, or (`inside`) ends when
    // either this invocation or another one has written a word.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}
