//! Inputs of the delta rule. See [`forerun_backend::op::DeltaPrepare`] for the math.

use super::Scratch;
use super::crew::{Crew, piece};
use super::isa::{Isa, Kernel, Task};
use super::math::{scale_all, squares};
use crate::pool::Shared;
use crate::reference::{sigmoid, softplus};
use forerun_backend::op::DeltaShape;

/// Elements below which a task is not worth its start.
const SMALLEST: usize = 1 << 13;

/// Operands that are read.
pub(crate) struct Prepare<'a> {
    pub(crate) shape: DeltaShape,
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) rate: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
}

struct PrepareTask<'a> {
    op: &'a Prepare<'a>,
    qkv: Shared<'a, f32>,
    decay: Shared<'a, f32>,
    beta: Shared<'a, f32>,
    pieces: usize,
}

impl Task for PrepareTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let DeltaShape { key_heads, value_heads, dk, .. } = self.op.shape;
        let channels = self.op.shape.channels();
        for row in piece(self.qkv.len() / channels, self.pieces, 1, index) {
            let at = row * value_heads;
            // SAFETY: a row belongs to one task.
            let (qk, decay, beta) = unsafe {
                let qk = self.qkv.part(row * channels, 2 * key_heads * dk);
                (qk, self.decay.part(at, value_heads), self.beta.part(at, value_heads))
            };
            simd.call(Normalise { qk, dk });
            // A handful of numbers per row: the library's functions serve.
            for head in 0..value_heads {
                let step = softplus(self.op.a[at + head] + self.op.dt_bias[head]);
                decay[head] = (self.op.rate[head] * step).exp();
                beta[head] = sigmoid(self.op.b[at + head]);
            }
        }
    }
}

/// All query and key heads of a row to length one, queries also times `dk^-½`.
struct Normalise<'a> {
    qk: &'a mut [f32],
    dk: usize,
}

impl Kernel for Normalise<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (queries, keys) = self.qk.split_at_mut(self.qk.len() / 2);
        for (half, factor) in [(queries, 1.0 / (self.dk as f32).sqrt()), (keys, 1.0)] {
            for head in half.chunks_exact_mut(self.dk) {
                let scale = 1.0 / (squares(simd, head) + 1e-6).sqrt() * factor;
                scale_all(simd, head, scale);
            }
        }
    }
}

/// Prepares every row of `qkv` in place, and its gates.
pub(crate) fn delta_prepare(
    crew: &mut Crew,
    op: &Prepare<'_>,
    qkv: &mut [f32],
    [decay, beta]: [&mut [f32]; 2],
) {
    let channels = op.shape.channels();
    let pieces = crew.pieces(qkv.len() / channels, SMALLEST.div_ceil(channels), 2);
    let (qkv, decay, beta) = (Shared::new(qkv), Shared::new(decay), Shared::new(beta));
    crew.run(pieces, &PrepareTask { op, qkv, decay, beta, pieces });
}
