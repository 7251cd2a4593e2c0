//! Convolved rows made ready for KDA's delta rule. See [`forerun_backend::op::KdaGates`] for the math.
//!
//! # Numerics
//! `softplus(x) = max(x, 0) + ln(1 + t)` with `t = e^−|x|`, and `ln(1 + t) = 2·artanh(t / (2 + t))`, whose argument is
//! at most a third: nine terms of its series reach the last place of an f32.

use super::Scratch;
use super::delta_gates::unit_heads;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{exp, sigmoid};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::{DeltaShape, SpanEntry};

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 12;

/// Operands, checked.
pub(crate) struct KdaGateArgs<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) rate: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) shape: DeltaShape,
    /// Span entries, no two of the same row.
    pub(crate) spans: &'a [u32],
}

struct KdaGatesTask<'a> {
    op: &'a KdaGateArgs<'a>,
    qkv: SharedSlice<'a, f32>,
    decay: SharedSlice<'a, f32>,
    beta: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for KdaGatesTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let DeltaShape { value_heads: heads, dk, .. } = self.op.shape;
        let (channels, wide) = (self.op.shape.channels(), heads * dk);
        let (span, part) = (index / self.parts, index % self.parts);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        for row in part_of(span.rows as usize, self.parts, 1, part) {
            let row = span.first_row as usize + row;
            // SAFETY: a row belongs to one task.
            let (line, decay, beta) = unsafe {
                let line = self.qkv.part(row * channels, channels);
                (line, self.decay.part(row * wide, wide), self.beta.part(row * heads, heads))
            };
            simd.call(GateRow { op: self.op, row, line, decay, beta });
        }
    }
}

struct GateRow<'a> {
    op: &'a KdaGateArgs<'a>,
    row: usize,
    line: &'a mut [f32],
    decay: &'a mut [f32],
    beta: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { op, row, line, decay, beta } = self;
        let DeltaShape { value_heads: heads, dk, .. } = op.shape;
        unit_heads(simd, op.shape, 0, line);
        let a = &op.a[row * heads * dk..(row + 1) * heads * dk];
        for head in 0..heads {
            let rate = simd.splat(op.rate[head]);
            for first in (head * dk..(head + 1) * dk).step_by(LANES) {
                let count = LANES.min((head + 1) * dk - first);
                let (a, bias) = (&a[first..][..count], &op.dt_bias[first..][..count]);
                // SAFETY: `count` elements in each.
                unsafe {
                    let x = simd.load_part(a.as_ptr(), count);
                    let x = simd.add(x, simd.load_part(bias.as_ptr(), count));
                    let decayed = exp(simd, simd.mul(rate, softplus(simd, x)));
                    simd.store_part(decay[first..][..count].as_mut_ptr(), count, decayed);
                }
            }
        }
        let b = &op.b[row * heads..(row + 1) * heads];
        for (b, beta) in b.chunks(LANES).zip(beta.chunks_mut(LANES)) {
            let count = b.len();
            // SAFETY: `count` elements in each.
            unsafe {
                let strength = sigmoid(simd, simd.load_part(b.as_ptr(), count));
                simd.store_part(beta.as_mut_ptr(), count, strength);
            }
        }
    }
}

/// `ln(1 + eˣ)`.
#[inline(always)]
fn softplus<S: Isa>(simd: S, x: S::F) -> S::F {
    let zero = simd.splat(0.0);
    let negative = simd.sub(zero, x);
    // Not a number stays so: of the two, `max` takes the second where either is none.
    let t = exp(simd, simd.min(negative, x));
    let s = simd.div(t, simd.add(t, simd.splat(2.0)));
    let square = simd.mul(s, s);
    let mut series = simd.splat(1.0 / 17.0);
    let mut term = 15.0_f32;
    while term > 0.0 {
        series = simd.fma(series, square, simd.splat(1.0 / term));
        term -= 2.0;
    }
    simd.fma(simd.add(s, s), series, simd.max(zero, x))
}

/// Unit queries and keys in place, decays and write strength, of the rows of spans.
pub(crate) fn kda_gates(
    ctx: &mut ExecCtx,
    op: &KdaGateArgs<'_>,
    [qkv, decay, beta]: [&mut [f32]; 3],
) {
    let (count, channels) = (op.spans.len() / SpanEntry::WORDS, op.shape.channels());
    let rows = (qkv.len() / channels).div_ceil(count.max(1));
    let parts = ctx.parts(rows, SMALLEST.div_ceil(channels), 1);
    let [qkv, decay, beta] = [qkv, decay, beta].map(SharedSlice::new);
    ctx.run(count * parts, &KdaGatesTask { op, qkv, decay, beta, parts });
}
