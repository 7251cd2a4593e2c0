//! Products of heads with matrices of their own. See [`forerun_backend::op::HeadLinear`] for the math.
//!
//! # Layout
//! A task is a run of channels of all heads. Four channels of a head are decoded to scratch at a time, and every row is
//! multiplied with them while they are there, so a weight is read and decoded once a call.
//!
//! # Numerics
//! Sums in lanes, as everywhere: alone or with three others, a channel has the same bits.

use super::Scratch;
use super::embed::ToScratch;
use super::exec_ctx::{ExecCtx, part_of};
use super::isa::{Isa, Kernel, LANES, Task};
use crate::gemm::decode::{padded_groups, with_decode};
use crate::gemm::micro_kernel::steps;
use crate::pool::SharedSlice;
use crate::weight::{Weight, WeightForm};

/// Channels that are decoded at a time.
const TILE: usize = 4;
/// A task with fewer weights costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 14;

/// Operands, checked.
pub(crate) struct HeadLinearArgs<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a Weight,
    pub(crate) heads: usize,
    pub(crate) carry: usize,
}

struct HeadLinearTask<'a> {
    op: &'a HeadLinearArgs<'a>,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for HeadLinearTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let &HeadLinearArgs { weight, heads, .. } = self.op;
        let each = weight.rows() / heads;
        let line = steps(weight.cols()) * LANES;
        let mut channels = part_of(weight.rows(), self.parts, TILE, index);
        let scratch = scratch.floats();
        while !channels.is_empty() {
            let (head, first) = (channels.start / each, channels.start % each);
            let count = TILE.min(each - first).min(channels.len());
            for i in 0..count {
                // The scales of a row lie behind it, where the next one goes.
                let scratch = &mut scratch[i * line..];
                match &weight.0 {
                    WeightForm::Canonical(matrix) => {
                        let row = channels.start + i;
                        with_decode(matrix.format(), ToScratch { simd, matrix, row, scratch });
                    }
                    WeightForm::Packed(packed) => {
                        packed.decode_row(channels.start + i, &mut scratch[..weight.cols()]);
                    }
                }
            }
            simd.call(Products { task: self, tile: scratch, head, first, count });
            channels.start += count;
        }
    }
}

/// All rows of a head with up to four decoded channels.
struct Products<'a> {
    task: &'a HeadLinearTask<'a>,
    tile: &'a [f32],
    head: usize,
    first: usize,
    count: usize,
}

impl Kernel for Products<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { task, tile, head, first, count } = self;
        let HeadLinearArgs { x, weight, heads, carry } = *task.op;
        let (inner, each) = (weight.cols(), weight.rows() / heads);
        let line = steps(inner) * LANES;
        for (row, x) in x.chunks_exact(heads * (carry + inner)).enumerate() {
            let x = &x[head * (carry + inner)..][..carry + inner];
            let at = (row * heads + head) * (carry + each);
            // SAFETY: a channel belongs to one task, and what goes before the product to that of a head's first.
            let out = unsafe { task.out.part(at + carry + first, count) };
            if first == 0 {
                // SAFETY: as above.
                unsafe { task.out.part(at, carry) }.copy_from_slice(&x[..carry]);
            }
            if count == TILE {
                let tile = std::array::from_fn(|i| &tile[i * line..][..inner]);
                out.copy_from_slice(&dots(simd, &x[carry..], tile));
            } else {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = dots(simd, &x[carry..], [&tile[i * line..][..inner]; TILE])[0];
                }
            }
        }
    }
}

/// `x · wᵢ` for four rows.
#[inline(always)]
fn dots<S: Isa>(simd: S, x: &[f32], w: [&[f32]; TILE]) -> [f32; TILE] {
    let mut sums = [simd.splat(0.0); TILE];
    let whole = x.len() / LANES * LANES;
    assert!(w.iter().all(|w| w.len() == x.len()), "rows of one width");
    // SAFETY: whole vectors end at `whole`, the rest is partial, and all rows have the length of `x`.
    unsafe {
        for at in (0..whole).step_by(LANES) {
            let x = simd.load(x.as_ptr().add(at));
            for i in 0..TILE {
                sums[i] = simd.fma(x, simd.load(w[i].as_ptr().add(at)), sums[i]);
            }
        }
        if whole < x.len() {
            let rest = x.len() - whole;
            let x = simd.load_part(x.as_ptr().add(whole), rest);
            for i in 0..TILE {
                let w = simd.load_part(w[i].as_ptr().add(whole), rest);
                sums[i] = simd.fma(x, w, sums[i]);
            }
        }
    }
    simd.sum4(sums)
}

/// `out[r][h] = [x[r][h][..carry] | W_h x[r][h][carry..]]`.
pub(crate) fn head_linear(ctx: &mut ExecCtx, op: &HeadLinearArgs<'_>, out: &mut [f32]) {
    let (rows, cols) = (op.weight.rows(), op.weight.cols());
    let scales = 2 * padded_groups(op.weight.format(), cols);
    ctx.reserve(TILE * steps(cols) * LANES + scales, 0);
    let parts = ctx.parts(rows, SMALLEST.div_ceil(cols).next_multiple_of(TILE), 4);
    ctx.run(parts, &HeadLinearTask { op, out: SharedSlice::new(out), parts });
}
