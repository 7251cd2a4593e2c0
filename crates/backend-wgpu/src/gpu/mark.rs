//! Tells whether a submission ran to its end: a last dispatch of each pass leaves a sign that only it can leave.

/// What a submission with so many passes leaves.
pub(crate) fn sign(ticket: u64, passes: usize) -> u32 {
    (0..passes).fold(0, |word: u32, _| word.wrapping_mul(2_654_435_761).wrapping_add(ticket as u32))
}

/// The dispatch that leaves it.
pub(crate) struct Mark {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
}

impl Mark {
    /// One that writes beside the noted indices.
    pub(crate) fn new(device: &wgpu::Device, noted: &wgpu::Buffer) -> Self {
        let label = Some("mark");
        let entry = wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: false },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label,
            entries: &[entry],
        });
        let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: size_of::<u32>() as u32,
        });
        let source = wgpu::ShaderSource::Wgsl(include_str!("mark.wgsl").into());
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline),
            module: &module,
            entry_point: Some("mark"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label,
            layout: &layout,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: noted.as_entire_binding() }],
        });
        Self { pipeline, group }
    }

    /// Ends a pass of a submission with it.
    pub(crate) fn leave(&self, pass: &mut wgpu::ComputePass<'_>, ticket: u64) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.set_immediates(0, &(ticket as u32).to_le_bytes());
        pass.dispatch_workgroups(1, 1, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::sign;

    #[test]
    fn neither_fewer_passes_nor_another_submission_leave_the_same_sign() {
        let mut seen: Vec<u32> =
            (1..=64).flat_map(|ticket| (0..8).map(move |passes| sign(ticket, passes))).collect();
        seen.retain(|&sign| sign != 0);
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((count, seen.len()), (64 * 7, 64 * 7));
    }
}
