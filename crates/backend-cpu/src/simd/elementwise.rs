//! Gates and norms: every element, or every head, on its own.

use super::Scratch;
use super::crew::{Crew, piece};
use super::isa::{Isa, Kernel, Task};
use super::math::{PlusGated, ScaledTimes, SiluTimes, TimesSigmoid, TimesSilu, Zip, squares, zip};
use crate::pool::Shared;

/// Elements below which a task is not worth its start.
const SMALLEST: usize = 1 << 13;

/// What is done to `out[i]` with `other[i]`.
#[derive(Clone, Copy)]
pub(crate) enum Gate {
    /// `silu(out) · other`.
    SwiGlu,
    /// `out · σ(other)`.
    Sigmoid,
}

struct GateTask<'a> {
    gate: Gate,
    out: Shared<'a, f32>,
    other: &'a [f32],
    pieces: usize,
}

impl Task for GateTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let part = piece(self.other.len(), self.pieces, 16, index);
        // SAFETY: pieces are disjoint.
        let out = unsafe { self.out.part(part.start, part.len()) };
        let other = &self.other[part];
        match self.gate {
            Gate::SwiGlu => simd.call(Zip { out, other, pair: SiluTimes }),
            Gate::Sigmoid => simd.call(Zip { out, other, pair: TimesSigmoid }),
        }
    }
}

/// Applies `gate` to all elements.
pub(crate) fn gate(crew: &mut Crew, gate: Gate, out: &mut [f32], other: &[f32]) {
    let pieces = crew.pieces(other.len(), SMALLEST, 1);
    crew.run(pieces, &GateTask { gate, out: Shared::new(out), other, pieces });
}

struct AddGatedTask<'a> {
    x: &'a [f32],
    gates: &'a [f32],
    out: Shared<'a, f32>,
    pieces: usize,
}

impl Task for AddGatedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let dim = self.x.len() / self.gates.len();
        for row in piece(self.gates.len(), self.pieces, 1, index) {
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(row * dim, dim) };
            let x = &self.x[row * dim..(row + 1) * dim];
            simd.call(Zip { out, other: x, pair: PlusGated(self.gates[row]) });
        }
    }
}

/// `out[r] += σ(gates[r]) · x[r]`.
pub(crate) fn add_gated(crew: &mut Crew, x: &[f32], gates: &[f32], out: &mut [f32]) {
    if gates.is_empty() {
        return;
    }
    let pieces = crew.pieces(gates.len(), SMALLEST.div_ceil((x.len() / gates.len()).max(1)), 1);
    crew.run(pieces, &AddGatedTask { x, gates, out: Shared::new(out), pieces });
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
    pub(super) fn scale<S: Isa>(&self, simd: S, x: &[f32]) -> f32 {
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

struct NormTask<'a> {
    norm: Norm<'a>,
    x: Option<&'a [f32]>,
    gate: Option<&'a [f32]>,
    out: Shared<'a, f32>,
    pieces: usize,
}

impl Task for NormTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let dim = self.norm.weight.len();
        for head in piece(self.out.len() / dim, self.pieces, 1, index) {
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
    crew: &mut Crew,
    norm: Norm<'_>,
    x: Option<&[f32]>,
    gate: Option<&[f32]>,
    out: &mut [f32],
) {
    let dim = norm.weight.len();
    let pieces = crew.pieces(out.len() / dim, SMALLEST.div_ceil(dim), 1);
    crew.run(pieces, &NormTask { norm, x, gate, out: Shared::new(out), pieces });
}
