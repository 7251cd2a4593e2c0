//! Parallel residual streams: norms of groups, gates, mixing. Lanes run along a stream.

use super::Scratch;
use super::elementwise::{Norm, norm_head};
use super::exec_ctx::{ExecCtx, part_of};
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{sigmoid, silu};
use crate::pool::SharedSlice;
use crate::reference::{UpdateRows, turn_tail};
use forerun_backend::op::{StreamUpdate, TurnTails, UpdateStreams};

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;

struct GroupNormTask<'a> {
    weight: &'a [f32],
    group: usize,
    eps: f32,
    x: &'a [f32],
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for GroupNormTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let group = self.group;
        let of_row = self.weight.len() / group;
        for i in part_of(self.x.len() / group, self.parts, 1, index) {
            let first = i % of_row * group;
            let norm = Norm { weight: &self.weight[first..first + group], eps: self.eps };
            let x = &self.x[i * group..(i + 1) * group];
            // SAFETY: a group belongs to one task.
            norm_head(simd, norm, x, unsafe { self.out.part(i * group, group) });
        }
    }
}

/// Norms groups of `group` numbers, each row with the same weights.
pub(crate) fn group_norm(
    ctx: &mut ExecCtx,
    (weight, eps): (&[f32], f32),
    group: usize,
    x: &[f32],
    out: &mut [f32],
) {
    let parts = ctx.parts(x.len() / group, SMALLEST.div_ceil(group), 1);
    let out = SharedSlice::new(out);
    ctx.run(parts, &GroupNormTask { weight, group, eps, x, out, parts });
}

/// `x ← silu(x)`.
struct SiluAll<'a>(&'a mut [f32]);

impl Kernel for SiluAll<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        for part in self.0.chunks_mut(LANES) {
            let (at, count) = (part.as_mut_ptr(), part.len());
            // SAFETY: exactly the `count` elements of the chunk are loaded and stored.
            unsafe { simd.store_part(at, count, silu(simd, simd.load_part(at, count))) };
        }
    }
}

struct SiluTask<'a> {
    x: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for SiluTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let part = part_of(self.x.len(), self.parts, LANES, index);
        // SAFETY: parts of a partition are disjoint.
        simd.call(SiluAll(unsafe { self.x.part(part.start, part.len()) }));
    }
}

/// `x ← silu(x)`, everywhere.
pub(crate) fn silu_rows(ctx: &mut ExecCtx, x: &mut [f32]) {
    let parts = ctx.parts(x.len(), SMALLEST, 1);
    ctx.run(parts, &SiluTask { x: SharedSlice::new(x), parts });
}

/// `out = Σ σ(gates)·x` over streams as wide as `out`.
struct MixRow<'a> {
    x: &'a [f32],
    gates: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for MixRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let dim = self.out.len();
        assert!(self.x.len() == self.gates.len() && self.x.len().is_multiple_of(dim));
        for at in (0..dim).step_by(LANES) {
            let count = LANES.min(dim - at);
            let mut sum = simd.splat(0.0);
            for first in (at..self.x.len()).step_by(dim) {
                // SAFETY: `count` elements of a stream are left at `first` in both, which are equally long.
                let (x, gate) = unsafe {
                    let gate = simd.load_part(self.gates.as_ptr().add(first), count);
                    (simd.load_part(self.x.as_ptr().add(first), count), gate)
                };
                sum = simd.fma(sigmoid(simd, gate), x, sum);
            }
            // SAFETY: `count` elements are left.
            unsafe { simd.store_part(self.out.as_mut_ptr().add(at), count, sum) };
        }
    }
}

struct MixTask<'a> {
    x: &'a [f32],
    gates: &'a [f32],
    wide: usize,
    dim: usize,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for MixTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (wide, dim) = (self.wide, self.dim);
        for row in part_of(self.out.len() / dim, self.parts, 1, index) {
            let of_row = row * wide..(row + 1) * wide;
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(row * dim, dim) };
            simd.call(MixRow { x: &self.x[of_row.clone()], gates: &self.gates[of_row], out });
        }
    }
}

/// Rows of `wide` numbers to rows of `dim`.
pub(crate) fn mix_streams(
    ctx: &mut ExecCtx,
    [x, gates]: [&[f32]; 2],
    [wide, dim]: [usize; 2],
    out: &mut [f32],
) {
    let parts = ctx.parts(out.len() / dim, SMALLEST.div_ceil(wide), 1);
    ctx.run(parts, &MixTask { x, gates, wide, dim, out: SharedSlice::new(out), parts });
}

/// `x_s ← post_s · y + Σ_j comb[j][s] · x_j`.
struct MixedRow<'a> {
    y: &'a [f32],
    post: &'a [f32],
    comb: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for MixedRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { y, post, comb, x } = self;
        let (dim, streams) = (y.len(), post.len());
        assert!(x.len() == dim * streams && comb.len() == streams * streams);
        assert!(streams <= UpdateStreams::MOST_MIXED, "checked by the description");
        let mut old = [simd.splat(0.0); UpdateStreams::MOST_MIXED];
        for at in (0..dim).step_by(LANES) {
            let count = LANES.min(dim - at);
            // SAFETY: `count` elements are left at `at` of `y` and of every stream.
            unsafe {
                let y = simd.load_part(y.as_ptr().add(at), count);
                for (j, old) in old[..streams].iter_mut().enumerate() {
                    *old = simd.load_part(x.as_ptr().add(j * dim + at), count);
                }
                for s in 0..streams {
                    let mut sum = simd.mul(simd.splat(post[s]), y);
                    for (j, &old) in old[..streams].iter().enumerate() {
                        sum = simd.fma(simd.splat(comb[j * streams + s]), old, sum);
                    }
                    simd.store_part(x.as_mut_ptr().add(s * dim + at), count, sum);
                }
            }
        }
    }
}

struct TurnTask<'a> {
    op: TurnTails,
    weight: &'a [f32],
    table: &'a [f32],
    x: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for TurnTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let TurnTails { rotary, heads, dim, .. } = self.op;
        for head in part_of(self.x.len() / dim, self.parts, 1, index) {
            let row = head / heads;
            let angles = &self.table[row * rotary..(row + 1) * rotary];
            // SAFETY: a head belongs to one task.
            turn_tail(&self.op, self.weight, angles, unsafe { self.x.part(head * dim, dim) });
        }
    }
}

/// Norms and turns all heads.
pub(crate) fn turn_tails(
    ctx: &mut ExecCtx,
    op: TurnTails,
    [weight, table]: [&[f32]; 2],
    x: &mut [f32],
) {
    let parts = ctx.parts(x.len() / op.dim, SMALLEST.div_ceil(op.dim), 1);
    ctx.run(parts, &TurnTask { op, weight, table, x: SharedSlice::new(x), parts });
}

struct UpdateTask<'a> {
    update: UpdateRows<'a>,
    wide: usize,
    x: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for UpdateTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        for row in part_of(self.x.len() / self.wide, self.parts, 1, index) {
            // SAFETY: a row belongs to one task.
            let x = unsafe { self.x.part(row * self.wide, self.wide) };
            match self.update.update {
                StreamUpdate::Mixed { .. } => {
                    let [y, post, comb] = self.update.mixed(row);
                    simd.call(MixedRow { y, post, comb, x });
                }
                _ => self.update.row(row, x),
            }
        }
    }
}

/// A block's output to rows of streams that are `wide` together.
pub(crate) fn update_streams(
    ctx: &mut ExecCtx,
    update: UpdateRows<'_>,
    wide: usize,
    x: &mut [f32],
) {
    let parts = ctx.parts(x.len() / wide, SMALLEST.div_ceil(wide), 1);
    ctx.run(parts, &UpdateTask { update, wide, x: SharedSlice::new(x), parts });
}
