//! Options of the device that computes.

use super::engine::threads;
use clap::{Args, ValueEnum};
use forerun_devices::{self as devices, DeviceName, DeviceOptions};

#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct DeviceArgs {
    /// Where to run: cpu; cuda or cuda:N; wgpu (metal, vulkan and dx12 insist on one), wgpu:N or wgpu:software; auto
    /// takes a GPU if there is a fast one
    #[arg(long, value_name = "DEVICE", default_value_t, help_heading = "Engine")]
    pub(crate) device: DeviceName,

    /// CPU threads [default: one per fast core of one socket]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Engine")]
    pub(crate) threads: Option<usize>,

    /// Most memory of the GPU to use; what needs more is refused before weights are read
    #[arg(long, value_name = "MIB", help_heading = "Engine")]
    pub(crate) gpu_memory: Option<u32>,

    /// What activations become where they meet weights [default: half on cuda, else exact]
    #[arg(long, value_enum, help_heading = "Engine")]
    pub(crate) compute: Option<Compute>,
}

impl DeviceArgs {
    /// What they mean.
    pub(crate) fn options(self) -> DeviceOptions {
        let Self { device, threads, compute, gpu_memory } = self;
        let gpu_memory = gpu_memory.map(|mebibytes| u64::from(mebibytes) << 20);
        DeviceOptions { device, threads, compute: compute.map(Into::into), gpu_memory }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compute {
    /// Nothing else: products are as exact as f32
    Exact,
    /// One bfloat16 each, on cuda: sums, state, norms, router and head stay f32. Drafts, chunks and batches change
    /// nothing
    Half,
    /// Rounded to 8 bits by blocks where weights are quantised, on the cpu, as other engines do: prompts and batches
    /// are read faster, and answers differ. Drafts, chunks and batches still change nothing
    Int8,
}

impl From<Compute> for devices::Compute {
    fn from(compute: Compute) -> Self {
        match compute {
            Compute::Exact => Self::Exact,
            Compute::Half => Self::Half,
            Compute::Int8 => Self::Int8,
        }
    }
}
