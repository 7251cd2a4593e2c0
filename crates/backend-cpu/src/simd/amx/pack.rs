//! Activations as three bfloat16 parts, in the order that tiles load them.
//!
//! # Layout
//! Rows come in tiles of [`Packed::class`] rows: sixteen, or one tile of fewer. A tile is `[step][part][row][32]`
//! bfloat16 with the highest parts first, and then `[step][3][row]` f32: the sums of a step's columns, and of its two halves.
//! Rows and columns past the end are zeros.

use super::super::Scratch;
use super::super::avx512::Avx512;
use super::super::crew::piece;
use super::super::isa::{Isa, LANES, Task};
use super::super::product::Input;
use super::super::tiled::STEP;
use super::super::walk::class;
use super::Amx;
use crate::pool::Shared;
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// Parts of a number: three times eight bits are all of an f32.
pub(super) const PARTS: usize = 3;
/// Steps that one task packs at least.
const GRAIN: usize = 8;

/// See the module's text.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    data: &'a [f32],
    steps: usize,
    class: usize,
}

/// f32 of a step of a tile: two bfloat16 in each.
fn step_len(class: usize) -> usize {
    PARTS * class * STEP / 2
}

/// f32 of a tile.
fn tile_len(class: usize, steps: usize) -> usize {
    steps * step_len(class) + (3 * steps * class).next_multiple_of(LANES)
}

/// f32 of `rows` rows of `cols` columns.
pub(crate) fn packed_len(rows: usize, cols: usize) -> usize {
    let class = class(rows);
    rows.div_ceil(class) * tile_len(class, cols.div_ceil(STEP))
}

impl<'a> Packed<'a> {
    /// What a [`PackTask`] left for `rows` rows of `cols` columns.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        let data = &data[..packed_len(rows, cols)];
        Self { data, steps: cols.div_ceil(STEP), class: class(rows) }
    }

    /// Rows of a tile.
    pub(super) fn class(&self) -> usize {
        self.class
    }

    /// First bfloat16 and first sum of `tile`, from `step` on.
    pub(super) fn tile(&self, tile: usize, step: usize) -> (*const u8, *const f32) {
        let len = tile_len(self.class, self.steps);
        let (parts, sums) =
            self.data[tile * len..(tile + 1) * len].split_at(self.steps * step_len(self.class));
        (
            parts[step * step_len(self.class)..].as_ptr().cast(),
            sums[3 * step * self.class..].as_ptr(),
        )
    }
}

/// Packs the rows `rows` of `input`, each `cols` wide.
pub(crate) struct PackTask<'a> {
    input: Input<'a>,
    rows: Range<usize>,
    cols: usize,
    out: Shared<'a, f32>,
    amx: Amx,
}

impl<'a> PackTask<'a> {
    /// To the front of `out`.
    pub(crate) fn new(
        amx: Amx,
        input: Input<'a>,
        rows: Range<usize>,
        cols: usize,
        out: &'a mut [f32],
    ) -> Self {
        let out = Shared::new(&mut out[..packed_len(rows.len(), cols)]);
        Self { input, rows, cols, out, amx }
    }

    /// Tasks to cut it into.
    pub(crate) fn tasks(&self) -> usize {
        (self.rows.len().div_ceil(class(self.rows.len())) * self.cols.div_ceil(STEP))
            .div_ceil(GRAIN)
    }

    /// Everything, on this thread.
    pub(super) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.part(index));
    }

    fn part(&self, index: usize) {
        let (class, steps) = (class(self.rows.len()), self.cols.div_ceil(STEP));
        let tiles = self.rows.len().div_ceil(class);
        for unit in piece(tiles * steps, self.tasks(), 1, index) {
            let (tile, step) = (unit / steps, unit % steps);
            let first = tile * tile_len(class, steps);
            let sums = first + steps * step_len(class) + 3 * step * class;
            // SAFETY: a step of a tile belongs to one task.
            let (parts, sums) = unsafe {
                let at = first + step * step_len(class);
                (self.out.part(at, step_len(class)), self.out.part(sums, 3 * class))
            };
            for row in 0..class {
                let place = self.rows.start + tile * class + row;
                let x = if place < self.rows.end {
                    let at = self.input.places.at(place) * self.cols;
                    let (from, to) =
                        (at + step * STEP, (at + (step + 1) * STEP).min(at + self.cols));
                    &self.input.data[from..to]
                } else {
                    &[]
                };
                let [high, middle, low] =
                    from_fn(|part| parts[(part * class + row) * LANES..][..LANES].as_mut_ptr());
                // SAFETY: the proof is there; every part of a row is sixteen f32 long.
                let halves = unsafe { split(self.amx, x, [high, middle, low]) };
                sums[row] = halves[0] + halves[1];
                (sums[class + row], sums[2 * class + row]) = (halves[0], halves[1]);
            }
        }
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        self.part(index);
    }
}

/// The parts of up to 32 numbers, zeros behind them; sums of the first and of the last sixteen.
///
/// # Safety
/// The instructions of [`Amx`]; room for 64 bytes at each of `parts`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn split(amx: Amx, x: &[f32], parts: [*mut f32; PARTS]) -> [f32; 2] {
    let mut sums = [0.0; 2];
    for (half, sum) in sums.iter_mut().enumerate() {
        let rest = x.get(half * LANES..).unwrap_or(&[]);
        let mask = ((1_u32 << rest.len().min(LANES)) - 1) as u16;
        // SAFETY: the mask ends with the slice; the stores are 32 of 64 bytes.
        unsafe {
            let mut x = _mm512_maskz_loadu_ps(mask, rest.as_ptr());
            *sum = Avx512::proven(amx).sum(x);
            for part in parts {
                let top = _mm512_cvtneps_pbh(x);
                x = _mm512_sub_ps(x, _mm512_cvtpbh_ps(top));
                part.add(half * LANES / 2).cast::<__m256bh>().write_unaligned(top);
            }
        }
    }
    sums
}
