//! Compute pipelines by kernel and constants, made when they are first asked for.

use crate::kernels::Kernel;
use crate::launch::{Launch, Words};
use forerun_backend::BackendError;
use std::collections::HashMap;

/// Bytes of immediates of every pipeline.
pub(crate) const IMMEDIATES: u32 = 128;

/// A constant of a kernel's text.
pub(crate) type Constant = (&'static str, u32);

/// What one kernel is bound to.
struct Layout {
    group: wgpu::BindGroupLayout,
    pipeline: wgpu::PipelineLayout,
    module: wgpu::ShaderModule,
    /// Whether each binding is written, by number.
    written: Vec<bool>,
}

/// See the module's text.
pub(crate) struct Pipelines {
    device: wgpu::Device,
    layouts: HashMap<&'static [&'static str], Layout>,
    pipelines: HashMap<(&'static str, Vec<Constant>), wgpu::ComputePipeline>,
    /// Stand in for operands that a call does not have; those that are written are each bound once.
    unread: wgpu::Buffer,
    unwritten: [wgpu::Buffer; 3],
}

/// One launch of a kernel.
pub(crate) struct Call<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) constants: &'a [Constant],
    /// In the order of the kernel's bindings, after the first, which is the word for bad indices.
    pub(crate) operands: &'a [Option<&'a wgpu::Buffer>],
    pub(crate) words: Option<Words>,
    pub(crate) grid: [usize; 3],
}

impl Pipelines {
    pub(crate) fn new(device: wgpu::Device) -> Self {
        let stand_in = || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("absent operand"),
                size: 16,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        };
        let (unread, unwritten) = (stand_in(), [stand_in(), stand_in(), stand_in()]);
        Self { device, layouts: HashMap::new(), pipelines: HashMap::new(), unread, unwritten }
    }

    /// A launch with everything it needs, or nothing where there are no workgroups.
    pub(crate) fn launch(
        &mut self,
        fault: &wgpu::Buffer,
        call: Call<'_>,
    ) -> Result<Option<Launch>, BackendError> {
        let Call { kernel, constants, operands, words, grid } = call;
        if grid.contains(&0) {
            return Ok(None);
        }
        let too_large = || {
            let name = kernel.name;
            BackendError::Device(format!("{name}: a call of {grid:?} workgroups is too large"))
        };
        let words = words.ok_or_else(too_large)?;
        if grid.iter().any(|&size| size > 65_535) {
            return Err(too_large());
        }
        let pipeline = self.pipeline(kernel, constants);
        let layout = &self.layouts[kernel.texts];
        let mut absent = self.unwritten.iter();
        let mut entries =
            vec![wgpu::BindGroupEntry { binding: 0, resource: fault.as_entire_binding() }];
        for (i, operand) in operands.iter().enumerate() {
            let buffer = match operand {
                Some(buffer) => buffer,
                None if layout.written[i + 1] => absent.next().unwrap_or(&self.unwritten[0]),
                None => &self.unread,
            };
            let resource = buffer.as_entire_binding();
            entries.push(wgpu::BindGroupEntry { binding: i as u32 + 1, resource });
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
        if let Some(pipeline) = self.pipelines.get(&key) {
            return pipeline.clone();
        }
        let device = &self.device;
        let layout = self.layouts.entry(kernel.texts).or_insert_with(|| layout(device, kernel));
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
        self.pipelines.insert(key, pipeline.clone());
        pipeline
    }
}

/// Whether each binding of a text is written, by number.
fn written(text: &str) -> Vec<bool> {
    let mut found: Vec<(usize, bool)> = text
        .lines()
        .filter_map(|line| {
            let (number, rest) = line.strip_prefix("@group(0) @binding(")?.split_once(')')?;
            Some((number.parse().ok()?, rest.contains("read_write")))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, written)| written).collect()
}

fn layout(device: &wgpu::Device, kernel: &Kernel) -> Layout {
    let text = kernel.text();
    let written = written(&text);
    let entries: Vec<wgpu::BindGroupLayoutEntry> = written
        .iter()
        .enumerate()
        .map(|(i, written)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
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
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
    Layout { group, pipeline, module, written }
}
