//! Activations as three bf16 parts, in the order in which tiles load them.
//!
//! # Layout
//! Rows come in tiles of [`PackedBf16::tile_rows`] rows: sixteen, or one smaller tile. A tile is
//! `[step][part][row][32]` bf16 with the highest parts first, then `[step][3][row]` f32: the sums of a step's columns,
//! and of its two halves. Rows and columns past the end are zeros.

use crate::gemm::amx::Amx;
use crate::gemm::packed_rows::RowBatch;
use crate::gemm::packed_weight::STEP;
use crate::gemm::panels::tile_rows;
use crate::gemm::product::GemmInput;
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use crate::simd::avx512::Avx512;
use crate::simd::elementwise::FusedNorm;
use crate::simd::isa::{Isa, LANES, Task};
use crate::simd::portable::Portable;
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// Parts of an f32: three bf16 of eight significant bits each hold all 24.
pub(crate) const PARTS: usize = 3;

/// Packed rows, see the module's text.
#[derive(Clone, Copy)]
pub(crate) struct PackedBf16<'a> {
    data: SharedSlice<'a, f32>,
    steps: usize,
    tile_rows: usize,
}

/// f32 of a step of a tile, two bf16 in each.
fn step_len(tile_rows: usize) -> usize {
    PARTS * tile_rows * STEP / 2
}

/// f32 of a tile.
fn tile_len(tile_rows: usize, steps: usize) -> usize {
    steps * step_len(tile_rows) + (3 * steps * tile_rows).next_multiple_of(LANES)
}

/// f32 that `rows` rows of `cols` columns take.
pub(crate) fn packed_len(rows: usize, cols: usize) -> usize {
    let tile_rows = tile_rows(rows);
    rows.div_ceil(tile_rows) * tile_len(tile_rows, cols.div_ceil(STEP))
}

impl<'a> PackedBf16<'a> {
    /// What [`PackBf16Task`] writes for `rows` rows of `cols` columns.
    pub(crate) fn new(data: SharedSlice<'a, f32>, rows: usize, cols: usize) -> Self {
        Self { data, steps: cols.div_ceil(STEP), tile_rows: tile_rows(rows) }
    }

    /// Rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// First bf16 and first column sum of a tile, from a step on.
    pub(crate) fn tile(&self, tile: usize, step: usize) -> (*const u8, *const f32) {
        let (tile, len) = (tile * tile_len(self.tile_rows, self.steps), step_len(self.tile_rows));
        let sums = self.steps * len + 3 * step * self.tile_rows;
        (
            self.data.address(tile + step * len, len).cast_const().cast(),
            self.data.address(tile + sums, 3 * self.tile_rows),
        )
    }
}

/// Packs rows.
pub(crate) struct PackBf16Task<'a> {
    batch: RowBatch<'a>,
    cols: usize,
    out: SharedSlice<'a, f32>,
    amx: Amx,
}

impl<'a> PackBf16Task<'a> {
    /// Packs the rows `rows` of `input`, each `cols` wide, to the front of `out`.
    pub(crate) fn new(
        amx: Amx,
        input: GemmInput<'a>,
        rows: Range<usize>,
        cols: usize,
        out: SharedSlice<'a, f32>,
    ) -> Self {
        let tile_rows = tile_rows(rows.len());
        let batch = RowBatch::new(input, rows, cols, tile_rows).padded(true);
        Self { batch, cols, out, amx }
    }

    /// As [`RowBatch::normed`].
    pub(crate) fn normed(self, norm: FusedNorm<'a>) -> Self {
        Self { batch: self.batch.normed(norm), ..self }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.batch.tasks()
    }

    /// All tasks, on this thread.
    pub(crate) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.pack(Portable, index));
    }

    fn pack<S: Isa>(&self, simd: S, index: usize) {
        let (part, tile_rows) = (self.batch.part(simd, index), self.batch.tile_rows());
        let steps = self.cols.div_ceil(STEP);
        let tile = part.tile * tile_len(tile_rows, steps);
        for step in 0..steps {
            // Rows of a step are interleaved, so tasks share addresses and no reference.
            let parts = self.out.address(tile + step * step_len(tile_rows), step_len(tile_rows));
            let sums = tile + steps * step_len(tile_rows) + 3 * step * tile_rows;
            let sums = self.out.address(sums, 3 * tile_rows);
            for (row, x) in (part.first..).zip(part.rows()) {
                let from = (step * STEP).min(x.len());
                let x = &x[from..x.len().min(from + STEP)];
                let to = from_fn(|part| parts.wrapping_add((part * tile_rows + row) * LANES));
                // SAFETY: the `Amx` proves the instructions; both addresses were checked to be inside `out`, with
                // sixteen f32 per part and row; rows of different tasks are disjoint.
                unsafe {
                    let half_sums = split(self.amx, x, to);
                    let all = [half_sums[0] + half_sums[1], half_sums[0], half_sums[1]];
                    for (i, sum) in all.into_iter().enumerate() {
                        *sums.wrapping_add(i * tile_rows + row) = sum;
                    }
                }
            }
        }
    }
}

impl Task for PackBf16Task<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        self.pack(simd, index);
    }
}

/// Splits up to 32 numbers, zeros behind them; returns the sums of the first and of the last sixteen.
///
/// # Safety
/// The CPU supports AVX-512 F, BW, DQ, VL and BF16; each of `parts` is writable for 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn split(amx: Amx, x: &[f32], parts: [*mut f32; PARTS]) -> [f32; 2] {
    let mut sums = [0.0; 2];
    for (half, sum) in sums.iter_mut().enumerate() {
        let rest = x.get(half * LANES..).unwrap_or(&[]);
        let mask = ((1_u32 << rest.len().min(LANES)) - 1) as u16;
        // SAFETY: the mask ends with the slice; the two stores of a part are its 64 bytes.
        unsafe {
            let mut x = _mm512_maskz_loadu_ps(mask, rest.as_ptr());
            *sum = Avx512::from_amx(amx).sum(x);
            for part in parts {
                let top = _mm512_cvtneps_pbh(x);
                x = _mm512_sub_ps(x, _mm512_cvtpbh_ps(top));
                part.add(half * LANES / 2).cast::<__m256bh>().write_unaligned(top);
            }
        }
    }
    sums
}
