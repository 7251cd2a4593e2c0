//! Gates and norms: every element, or every head, on its own.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{
    Cap, ClampedSiluTimes, GeluTimes, PlusGated, ReluTimes, ScaledTimes, SiluTimes, TimesSigmoid,
    TimesSilu, Zip, squares, zip,
};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::Activation;

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;

/// What is done to `out[i]` with `other[i]`.
#[derive(Clone, Copy)]
pub(crate) enum Gate {
    /// `act(out) · other`.
    Glu(Activation),
    /// `out · σ(other)`.
    Sigmoid,
}

/// Rows of `dim` elements, each of which has its partners in a row of `width` from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Partners<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) dim: usize,
    pub(crate) width: usize,
    pub(crate) first: usize,
}

impl<'a> Partners<'a> {
    /// Element by element.
    pub(crate) fn same(data: &'a [f32]) -> Self {
        Self { data, dim: data.len(), width: data.len(), first: 0 }
    }
}

/// `out ← act(out) · other`.
pub(crate) fn activate<S: Isa>(simd: S, activation: Activation, out: &mut [f32], other: &[f32]) {
    match activation {
        Activation::Silu => simd.call(Zip { out, other, pair: SiluTimes }),
        Activation::GeluTanh => simd.call(Zip { out, other, pair: GeluTimes }),
        Activation::Relu => simd.call(Zip { out, other, pair: ReluTimes }),
        Activation::ClampedSilu { limit } => {
            simd.call(Zip { out, other, pair: ClampedSiluTimes(limit) })
        }
    }
}

struct GateTask<'a> {
    gate: Gate,
    out: SharedSlice<'a, f32>,
    others: Partners<'a>,
    parts: usize,
}

impl Task for GateTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let Partners { data, dim, width, first } = self.others;
        let mut part = part_of(self.out.len(), self.parts, 16, index);
        while !part.is_empty() {
            let (row, column) = (part.start / dim, part.start % dim);
            let count = part.len().min(dim - column);
            // SAFETY: parts of a partition are disjoint.
            let out = unsafe { self.out.part(part.start, count) };
            let other = &data[row * width + first + column..][..count];
            match self.gate {
                Gate::Glu(activation) => activate(simd, activation, out, other),
                Gate::Sigmoid => simd.call(Zip { out, other, pair: TimesSigmoid }),
            }
            part.start += count;
        }
    }
}

/// Applies `gate` to all elements.
pub(crate) fn gate(ctx: &mut ExecCtx, gate: Gate, out: &mut [f32], others: Partners<'_>) {
    let parts = ctx.parts(out.len(), SMALLEST, 1);
    ctx.run(parts, &GateTask { gate, out: SharedSlice::new(out), others, parts });
}

struct CapTask<'a> {
    x: SharedSlice<'a, f32>,
    cap: f32,
    parts: usize,
}

impl Task for CapTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let part = part_of(self.x.len(), self.parts, 16, index);
        // SAFETY: parts of a partition are disjoint.
        simd.call(Cap { x: unsafe { self.x.part(part.start, part.len()) }, cap: self.cap });
    }
}

/// `x ← cap · tanh(x / cap)`.
pub(crate) fn softcap(ctx: &mut ExecCtx, x: &mut [f32], cap: f32) {
    let parts = ctx.parts(x.len(), SMALLEST, 1);
    ctx.run(parts, &CapTask { x: SharedSlice::new(x), cap, parts });
}

struct AddGatedTask<'a> {
    x: &'a [f32],
    gates: &'a [f32],
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for AddGatedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let dim = self.x.len() / self.gates.len();
        for row in part_of(self.gates.len(), self.parts, 1, index) {
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(row * dim, dim) };
            let x = &self.x[row * dim..(row + 1) * dim];
            simd.call(Zip { out, other: x, pair: PlusGated(self.gates[row]) });
        }
    }
}

/// `out[r] += σ(gates[r]) · x[r]`.
pub(crate) fn add_gated(ctx: &mut ExecCtx, x: &[f32], gates: &[f32], out: &mut [f32]) {
    if gates.is_empty() {
        return;
    }
    let parts = ctx.parts(gates.len(), SMALLEST.div_ceil((x.len() / gates.len()).max(1)), 1);
    ctx.run(parts, &AddGatedTask { x, gates, out: SharedSlice::new(out), parts });
}

/// A norm over heads (or rows) of `weight.len()`.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
}

impl Norm<'_> {
    /// `1 / sqrt(mean(x²) + eps)`.
    #[inline(always)]
    pub(crate) fn scale<S: Isa>(&self, simd: S, x: &[f32]) -> f32 {
        1.0 / (squares(simd, x) / x.len() as f32 + self.eps).sqrt()
    }
}

/// `out ← x · scale · weight`; in place when `x` is `None`.
struct NormHead<'a> {
    norm: Norm<'a>,
    x: Option<&'a [f32]>,
    gate: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for NormHead<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { norm, x, gate, out } = self;
        if let Some(x) = x {
            out.copy_from_slice(x);
        }
        let factor = norm.scale(simd, out);
        zip(simd, out, norm.weight, ScaledTimes(factor));
        if let Some(gate) = gate {
            zip(simd, out, gate, TimesSilu);
        }
    }
}

/// A norm that a product applies to its input, and where the normed rows go.
#[derive(Clone, Copy)]
pub(crate) struct FusedNorm<'a> {
    pub(crate) norm: Norm<'a>,
    pub(crate) out: SharedSlice<'a, f32>,
}

impl<'a> FusedNorm<'a> {
    /// Norms row `row` from `x`.
    ///
    /// # Safety
    /// No other reference covers row `row` of `out` while the result lives.
    pub(crate) unsafe fn row<S: Isa>(&self, simd: S, row: usize, x: &[f32]) -> &'a [f32] {
        let (norm, dim) = (self.norm, self.norm.weight.len());
        // SAFETY: nobody else has the row (contract above).
        let out = unsafe { self.out.part(row * dim, dim) };
        simd.call(NormHead { norm, x: Some(x), gate: None, out });
        out
    }

    /// Norms all rows of `x` now.
    pub(crate) fn all(self, ctx: &mut ExecCtx, x: &[f32]) -> &'a [f32] {
        let len = self.out.len();
        // SAFETY: no task runs here that has any of the rows, and afterwards nothing writes them.
        unsafe {
            norm(ctx, self.norm, Some(x), None, self.out.part(0, len));
            self.out.done(0, len)
        }
    }
}

/// Norms one head, or group, or row of `x` to `out`.
pub(crate) fn norm_head<S: Isa>(simd: S, norm: Norm<'_>, x: &[f32], out: &mut [f32]) {
    simd.call(NormHead { norm, x: Some(x), gate: None, out });
}

struct NormTask<'a> {
    norm: Norm<'a>,
    x: Option<&'a [f32]>,
    gate: Option<&'a [f32]>,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for NormTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let dim = self.norm.weight.len();
        for head in part_of(self.out.len() / dim, self.parts, 1, index) {
            let range = head * dim..(head + 1) * dim;
            simd.call(NormHead {
                norm: self.norm,
                x: self.x.map(|x| &x[range.clone()]),
                gate: self.gate.map(|gate| &gate[range.clone()]),
                // SAFETY: a head belongs to one task.
                out: unsafe { self.out.part(range.start, dim) },
            });
        }
    }
}

/// Norms heads of `x` into `out`, or `out` in place; then times `silu(gate)` if there is one.
pub(crate) fn norm(
    ctx: &mut ExecCtx,
    norm: Norm<'_>,
    x: Option<&[f32]>,
    gate: Option<&[f32]>,
    out: &mut [f32],
) {
    let dim = norm.weight.len();
    let parts = ctx.parts(out.len() / dim, SMALLEST.div_ceil(dim), 1);
    ctx.run(parts, &NormTask { norm, x, gate, out: SharedSlice::new(out), parts });
}

/// `out ← (out + x · scale of the norm · weight) · factor`.
struct AddNormRow<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    factor: f32,
    out: &'a mut [f32],
}

impl Kernel for AddNormRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { norm, x, factor, out } = self;
        let (scale, factor) = (simd.splat(norm.scale(simd, x)), simd.splat(factor));
        let rows = x.chunks(LANES).zip(norm.weight.chunks(LANES)).zip(out.chunks_mut(LANES));
        for ((x, weight), out) in rows {
            let (to, count) = (out.as_mut_ptr(), out.len());
            assert!(x.len() == count && weight.len() == count, "rows have the same length");
            // SAFETY: each chunk has `count` elements.
            unsafe {
                let normed = simd.mul(simd.load_part(x.as_ptr(), count), scale);
                let weight = simd.load_part(weight.as_ptr(), count);
                let sum = simd.fma(normed, weight, simd.load_part(to, count));
                simd.store_part(to, count, simd.mul(sum, factor));
            }
        }
    }
}

struct AddNormTask<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    factor: f32,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for AddNormTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let Self { norm, factor, .. } = *self;
        let dim = norm.weight.len();
        for row in part_of(self.x.len() / dim, self.parts, 1, index) {
            let x = &self.x[row * dim..(row + 1) * dim];
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(row * dim, dim) };
            simd.call(AddNormRow { norm, x, factor, out });
        }
    }
}

/// Adds the normed rows of `x` to `out`, then multiplies by `factor`.
pub(crate) fn add_norm(ctx: &mut ExecCtx, norm: Norm<'_>, x: &[f32], out: &mut [f32], factor: f32) {
    let dim = norm.weight.len();
    let parts = ctx.parts(x.len() / dim, SMALLEST.div_ceil(dim), 1);
    ctx.run(parts, &AddNormTask { norm, x, factor, out: SharedSlice::new(out), parts });
}
