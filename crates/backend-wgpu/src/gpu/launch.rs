//! One dispatch: first as a call, which needs no device, then as a launch, ready to be recorded.

use crate::gpu::kernels::Kernel;
use crate::gpu::layout::Constant;
use forerun_backend::{BufferId, Cost, WeightId};

/// What a binding of a call stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundOperand {
    /// Nothing: the kernel does not touch it.
    Absent,
    Buffer(BufferId),
    /// A piece of a weight, by its number.
    WeightPiece(WeightId, usize),
    /// A weight's numbers in f32.
    Plain(WeightId),
    /// Scratch memory, by its number.
    Scratch(usize),
}

/// One dispatch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kernel: &'static Kernel,
    pub(crate) constants: Vec<Constant>,
    /// In the order of the kernel's bindings, after the first, which is the word for bad indices.
    pub(crate) operands: Vec<BoundOperand>,
    /// Sizes and offsets; `None` where 32 bits do not hold one.
    pub(crate) words: Option<Words>,
    pub(crate) grid: [usize; 3],
    /// What it is estimated to do.
    pub(crate) work: Cost,
}

/// A pipeline with what it reads and writes.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) group: wgpu::BindGroup,
    /// Sizes and offsets, as the kernel's struct has them.
    pub(crate) immediates: Vec<u8>,
    pub(crate) grid: [u32; 3],
}

/// The words of a kernel's struct.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(Vec<u8>);

impl Words {
    /// Sizes and offsets in order; `None` for one that 32 bits do not hold.
    pub(crate) fn of(sizes: &[usize]) -> Option<Self> {
        let words: Option<Vec<u32>> = sizes.iter().map(|&size| u32::try_from(size).ok()).collect();
        Some(Self(words?.into_iter().flat_map(u32::to_le_bytes).collect()))
    }

    /// With a number behind them.
    pub(crate) fn float(mut self, number: f32) -> Self {
        self.0.extend(number.to_le_bytes());
        self
    }

    /// With more sizes behind them.
    pub(crate) fn sizes(mut self, sizes: &[usize]) -> Option<Self> {
        self.0.extend(Self::of(sizes)?.0);
        Some(self)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Most workgroups of a dimension on every adapter.
pub(crate) const MOST: usize = 65_535;

/// A line of workgroups, folded where it is too long; kernels leave those past the end idle.
pub(crate) fn folded(count: usize) -> [usize; 3] {
    if count <= MOST { [count, 1, 1] } else { [MOST, count.div_ceil(MOST), 1] }
}

/// Workgroups of 64 invocations that are at least `count`.
pub(crate) fn invocations(count: usize) -> [usize; 3] {
    folded(count.div_ceil(64))
}
