//! Rotary embedding. See [`forerun_backend::op::Rope`] for the math.

use super::Scratch;
use super::crew::{Crew, piece};
use super::elementwise::Norm;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{ScaledTimes, zip};
use crate::pool::Shared;
use crate::reference::shifted;

/// Elements below which a task is not worth its start.
const SMALLEST: usize = 1 << 13;

/// Heads of a row and their turning part.
#[derive(Clone, Copy)]
pub(crate) struct RopeShape {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) rotary: usize,
}

struct RopeTask<'a> {
    x: Shared<'a, f32>,
    table: &'a [f32],
    norm: Option<Norm<'a>>,
    shape: RopeShape,
    pieces: usize,
}

impl Task for RopeTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let RopeShape { heads, head_dim, rotary } = self.shape;
        for head in piece(self.x.len() / head_dim, self.pieces, 1, index) {
            let row = head / heads;
            let (cos, sin) = self.table[row * rotary..(row + 1) * rotary].split_at(rotary / 2);
            // SAFETY: a head belongs to one task.
            let x = unsafe { self.x.part(head * head_dim, head_dim) };
            simd.call(Turn { x, norm: self.norm, cos, sin });
        }
    }
}

struct Turn<'a> {
    x: &'a mut [f32],
    norm: Option<Norm<'a>>,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Turn<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { x, norm, cos, sin } = self;
        if let Some(norm) = norm {
            let factor = norm.scale(simd, x);
            zip(simd, x, norm.weight, ScaledTimes(factor));
        }
        let half = cos.len();
        let (low, rest) = x.split_at_mut(half);
        let high = &mut rest[..half];
        for at in (0..half).step_by(LANES) {
            let count = LANES.min(half - at);
            let (low, high) = (low[at..].as_mut_ptr(), high[at..].as_mut_ptr());
            // SAFETY: `count` elements are left in each of the four slices of `half`.
            unsafe {
                let (a, b) = (simd.load_part(low, count), simd.load_part(high, count));
                let cos = simd.load_part(cos[at..].as_ptr(), count);
                let sin = simd.load_part(sin[at..].as_ptr(), count);
                simd.store_part(low, count, simd.sub(simd.mul(a, cos), simd.mul(b, sin)));
                simd.store_part(high, count, simd.add(simd.mul(b, cos), simd.mul(a, sin)));
            }
        }
    }
}

/// Norms and turns every head of `x`.
pub(crate) fn rope(
    crew: &mut Crew,
    x: &mut [f32],
    table: &[f32],
    norm: Option<Norm<'_>>,
    shape: RopeShape,
) {
    let pieces = crew.pieces(x.len() / shape.head_dim, SMALLEST.div_ceil(shape.head_dim), 1);
    crew.run(pieces, &RopeTask { x: Shared::new(x), table, norm, shape, pieces });
}

/// What a table of cosines and sines is made of, besides positions.
#[derive(Clone, Copy)]
pub(crate) struct Angles<'a> {
    pub(crate) inv_freq: &'a [f32],
    pub(crate) shift: u32,
    pub(crate) scale: f32,
}

struct TableTask<'a> {
    positions: &'a [u32],
    angles: Angles<'a>,
    out: Shared<'a, f32>,
    pieces: usize,
}

impl Task for TableTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let Angles { inv_freq, shift, scale } = self.angles;
        let pairs = inv_freq.len();
        for row in piece(self.positions.len(), self.pieces, 1, index) {
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(2 * row * pairs, 2 * pairs) };
            let (cos, sin) = out.split_at_mut(pairs);
            for ((cos, sin), &inv) in cos.iter_mut().zip(sin).zip(inv_freq) {
                let angle = shifted(self.positions[row], shift) * inv;
                *cos = angle.cos() * scale;
                *sin = angle.sin() * scale;
            }
        }
    }
}

/// Cosines and sines of the rows' positions.
pub(crate) fn rope_table(crew: &mut Crew, positions: &[u32], angles: Angles<'_>, out: &mut [f32]) {
    let pieces = crew.pieces(positions.len(), 16, 2);
    crew.run(pieces, &TableTask { positions, angles, out: Shared::new(out), pieces });
}
