//! Convolved rows made ready for the delta rule. See [`forerun_backend::op::DeltaGates`] for the math.

use super::Scratch;
use super::isa::{Isa, Kernel, Task};
use super::math::{scale_all, squares};
use crate::pool::SharedSlice;
use crate::reference::{sigmoid, softplus};
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::{DeltaShape, SpanEntry};

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 12;

/// What decay and write strength are made from, checked.
pub(crate) struct GateArgs<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) rate: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) beta_scale: f32,
    pub(crate) shape: DeltaShape,
}

impl GateArgs<'_> {
    /// Decay and write strength of a row. A handful of numbers, so scalar functions serve.
    pub(crate) fn of_row(&self, row: usize, decay: &mut [f32], beta: &mut [f32]) {
        let at = row * self.shape.value_heads;
        for head in 0..self.shape.value_heads {
            let step = softplus(self.a[at + head] + self.dt_bias[head]);
            decay[head] = (self.rate[head] * step).exp();
            beta[head] = self.beta_scale * sigmoid(self.b[at + head]);
        }
    }
}

/// Scales the query and key heads of a row's channels from head `first` on to length one, queries also by `dk^-½`.
#[inline(always)]
pub(crate) fn unit_heads<S: Isa>(simd: S, shape: DeltaShape, first: usize, row: &mut [f32]) {
    let DeltaShape { key_heads, dk, .. } = shape;
    for (head, x) in (first..2 * key_heads).zip(row.chunks_exact_mut(dk)) {
        let factor = if head < key_heads { 1.0 / (dk as f32).sqrt() } else { 1.0 };
        let scale = 1.0 / (squares(simd, x) + 1e-6).sqrt() * factor;
        scale_all(simd, x, scale);
    }
}

struct GatesTask<'a> {
    op: &'a GateArgs<'a>,
    qkv: SharedSlice<'a, f32>,
    decay: SharedSlice<'a, f32>,
    beta: SharedSlice<'a, f32>,
    /// Span entries, no two of the same row.
    spans: &'a [u32],
    parts: usize,
}

struct UnitHeads<'a> {
    shape: DeltaShape,
    row: &'a mut [f32],
}

impl Kernel for UnitHeads<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        unit_heads(simd, self.shape, 0, self.row);
    }
}

impl Task for GatesTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let shape = self.op.shape;
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let (span, part) = (index / self.parts, index % self.parts);
        let words = &self.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        for row in part_of(span.rows as usize, self.parts, 1, part) {
            let row = span.first_row as usize + row;
            // SAFETY: a row belongs to one task.
            let (line, decay, beta) = unsafe {
                let line = self.qkv.part(row * channels, channels);
                (line, self.decay.part(row * heads, heads), self.beta.part(row * heads, heads))
            };
            simd.call(UnitHeads { shape, row: line });
            self.op.of_row(row, decay, beta);
        }
    }
}

/// Unit queries and keys in place, decay and write strength, of the rows of spans.
pub(crate) fn delta_gates(
    ctx: &mut ExecCtx,
    op: &GateArgs<'_>,
    spans: &[u32],
    [qkv, decay, beta]: [&mut [f32]; 3],
) {
    let (count, channels) = (spans.len() / SpanEntry::WORDS, op.shape.channels());
    let rows = (qkv.len() / channels).div_ceil(count.max(1));
    let parts = ctx.parts(rows, SMALLEST.div_ceil(channels), 1);
    let [qkv, decay, beta] = [qkv, decay, beta].map(SharedSlice::new);
    ctx.run(count * parts, &GatesTask { op, qkv, decay, beta, spans, parts });
}
