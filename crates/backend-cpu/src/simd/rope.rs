//! Angles of the rotary embedding. See [`forerun_backend::op::RopeTable`] for the math.

use super::Scratch;
use super::isa::{Isa, Task};
use crate::pool::SharedSlice;
use crate::reference::shifted;
use crate::simd::exec_ctx::{ExecCtx, part_of};

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
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for TableTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let Angles { inv_freq, shift, scale } = self.angles;
        let pairs = inv_freq.len();
        for row in part_of(self.positions.len(), self.parts, 1, index) {
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
pub(crate) fn rope_table(
    ctx: &mut ExecCtx,
    positions: &[u32],
    angles: Angles<'_>,
    out: &mut [f32],
) {
    let parts = ctx.parts(positions.len(), 16, 2);
    ctx.run(parts, &TableTask { positions, angles, out: SharedSlice::new(out), parts });
}
