//! A norm over groups of a gated row. See [`forerun_backend::op::GatedGroupNorm`] for the math.

use super::Scratch;
use super::elementwise::Norm;
use super::isa::{Isa, Kernel, Task};
use super::math::{ScaledTimes, TimesSilu, zip};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::{ExecCtx, part_of};

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;

struct GroupTask<'a> {
    /// The weight of a whole row.
    norm: Norm<'a>,
    dim: usize,
    gate: &'a [f32],
    x: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for GroupTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (dim, Norm { weight, eps }) = (self.dim, self.norm);
        for group in part_of(self.x.len() / dim, self.parts, 1, index) {
            let at = group * dim;
            let norm = Norm { weight: &weight[at % weight.len()..][..dim], eps };
            // SAFETY: a group belongs to one task.
            let x = unsafe { self.x.part(at, dim) };
            simd.call(NormGroup { norm, gate: &self.gate[at..at + dim], x });
        }
    }
}

struct NormGroup<'a> {
    norm: Norm<'a>,
    gate: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for NormGroup<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { norm, gate, x } = self;
        zip(simd, x, gate, TimesSilu);
        let factor = norm.scale(simd, x);
        zip(simd, x, norm.weight, ScaledTimes(factor));
    }
}

/// Gates `x` and norms its groups of `dim`, in place; the norm's weight is that of a whole row.
pub(crate) fn gated_group_norm(
    ctx: &mut ExecCtx,
    norm: Norm<'_>,
    dim: usize,
    gate: &[f32],
    x: &mut [f32],
) {
    let parts = ctx.parts(x.len() / dim, SMALLEST.div_ceil(dim), 1);
    ctx.run(parts, &GroupTask { norm, dim, gate, x: SharedSlice::new(x), parts });
}
