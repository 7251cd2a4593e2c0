//! Two to four rows with AMX-native codes: the limbs of all rows are stacked as rows of one tile.
//!
//! # Shape
//! Four panels at a time share a tile of activations. Each has an accumulator tile: the sums of a unit are stored
//! before the next unit takes the tile, three products later, and added, while further products run, to f32 sums that
//! stay in registers.

use super::grouped::TILE;
use super::{SUMS, scales as scales_of, store};
use crate::gemm::amx::tile::{Configured, move_tile};
use crate::gemm::int8::code::{GroupScales, LIMBS, weights};
use crate::gemm::int8::layout::{AUX_WORDS, PackLayout, PackedLimbs};
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use std::arch::asm;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Most rows.
const MOST: usize = 4;
/// How far ahead codes are prefetched.
const PREFETCH_BYTES: usize = 2 * TILE;

/// f32 of scratch: results of each panel, and its sums.
pub(crate) const SCRATCH: usize = MAX_PANELS * (TILE / 4 + SUMS);

/// Whether the limbs of `tile_rows` rows are stacked.
pub(crate) fn stacks(layout: PackLayout, tile_rows: usize) -> bool {
    layout.uses_amx(tile_rows) && layout.amx_native() && tile_rows <= MOST
}

/// A product with one tile of up to [`MOST`] rows.
pub(crate) struct Stacked<'a> {
    pub(crate) product: &'a Product<'a, PackedWeight>,
    pub(crate) packed: PackedLimbs<'a>,
    pub(crate) tile: usize,
}

/// Starts the product of a unit with a panel, in its accumulator tile.
macro_rules! begin {
    ($sums:literal, $weights:literal, $x:literal, $from:expr) => {
        asm!(
            concat!("tileloadd tmm", $weights, ", [{from} + {line}]"),
            concat!("tilezero tmm", $sums),
            concat!("tdpbsud tmm", $sums, ", tmm", $x, ", tmm", $weights),
            from = in(reg) $from, line = in(reg) 64_usize, options(nostack, readonly),
        )
    };
}

/// Scales the limbs' sums of a unit that wait at `$from` and adds them to the rows' `$sums`.
macro_rules! add {
    ($scales:expr, ($aux:expr, $unit:expr), $from:expr, $sums:expr) => {{
        let (from, unit, scales) = ($from, $unit, &$scales);
        let (scale, offset) = scales.of(Avx512::new_unchecked(), unit);
        for limb in 0..LIMBS {
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(weights(0)[limb]));
            for r in 0..TILE_ROWS {
                let whole = _mm512_load_si512(from.add((limb * TILE_ROWS + r) * 64).cast());
                $sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, $sums[r]);
            }
        }
        if scales.offsets.is_some() {
            for r in 0..TILE_ROWS {
                let sum = _mm512_set1_ps(*$aux.add(unit * AUX_WORDS * TILE_ROWS + r));
                $sums[r] = _mm512_fmadd_ps(sum, offset, $sums[r]);
            }
        }
    }};
}

impl Stacked<'_> {
    /// Computes and stores everything, with [`SCRATCH`] of scratch.
    ///
    /// # Safety
    /// AMX, AVX-512 VNNI and VBMI are there. As for [`Product::run`]; the product's rows are completely packed in
    /// `tile`, and its codes are [`PackLayout::amx_native`].
    pub(crate) unsafe fn run(&self, gathered: &mut [f32], scratch: &mut [f32]) {
        let (layout, tile_rows) = (self.packed.layout(), self.packed.tile_rows());
        // SAFETY: this function's contract; a task configures tiles only here, and panels are the product's.
        unsafe {
            let _configured = Configured::bytes(LIMBS * tile_rows, layout.unit());
            for_each_panels(self.product, MAX_PANELS, gathered, |panels| match tile_rows {
                2 => self.panels::<2>(panels, scratch),
                _ => self.panels::<4>(panels, scratch),
            });
        }
    }

    /// All rows with up to four panels.
    ///
    /// # Safety
    /// As for [`Stacked::run`]; AMX tiles are configured for the limbs of `TILE_ROWS` rows; `panels` are one to four of
    /// the product's.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const TILE_ROWS: usize>(&self, panels: &[Panel], scratch: &mut [f32]) {
        let (layout, matrix) = (self.packed.layout(), self.product.matrix);
        let (unit, units) = (layout.unit(), layout.units());
        let (results, kept) = scratch.split_at_mut(MAX_PANELS * TILE / 4);
        let results = results.as_mut_ptr().cast::<u8>();
        // With fewer than four panels the last one is repeated, and its extra results dropped.
        let last = panels.len() - 1;
        let codes: [*const u8; MAX_PANELS] = from_fn(|i| panels[i.min(last)].planes[0]);
        let scales: [GroupScales; MAX_PANELS] =
            from_fn(|i| scales_of(matrix, &panels[i.min(last)], unit));
        let (x, aux) = self.packed.unit(self.tile, 0);
        let mut sums = [[_mm512_setzero_ps(); TILE_ROWS]; MAX_PANELS];
        // SAFETY: this function's contract; every unit is one of the panels' and of the tile's, results fit scratch,
        // and outputs belong to this thread.
        unsafe {
            macro_rules! unit {
                ($x:literal, $at:expr) => {{
                    let at = $at;
                    asm!(
                        concat!("tileloadd tmm", $x, ", [{x} + {line}]"),
                        x = in(reg) x.wrapping_add(at * LIMBS * TILE_ROWS * unit),
                        line = in(reg) unit, options(nostack, readonly),
                    );
                    unit!(@ $x, at, [(0, 4), (1, 5), (2, 4), (3, 5)]);
                    if at > 0 {
                        for i in 0..MAX_PANELS {
                            add!(scales[i], (aux, at - 1), results.add(i * TILE), sums[i]);
                        }
                    }
                }};
                (@ $x:literal, $at:ident, [$(($panel:literal, $weights:literal)),*]) => {$({
                    let from = codes[$panel].wrapping_add($at * unit * LANES);
                    for line in (0..unit * LANES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES + line).cast());
                    }
                    if $at > 0 {
                        move_tile!(store $panel, results.wrapping_add($panel * TILE));
                    }
                    begin!($panel, $weights, $x, from);
                })*};
            }
            // A load waits for the products that still read its tile, so consecutive units use different tiles.
            for at in (0..units).step_by(2) {
                unit!(6, at);
                if at + 1 < units {
                    unit!(7, at + 1);
                }
            }
            move_tile!(store 0, results);
            move_tile!(store 1, results.wrapping_add(TILE));
            move_tile!(store 2, results.wrapping_add(2 * TILE));
            move_tile!(store 3, results.wrapping_add(3 * TILE));
            for i in 0..MAX_PANELS {
                add!(scales[i], (aux, units - 1), results.add(i * TILE), sums[i]);
            }
            for (i, panel) in panels.iter().enumerate() {
                let kept = &mut kept[i * SUMS..][..SUMS];
                for r in 0..TILE_ROWS {
                    _mm512_store_ps(kept[r * LANES..].as_mut_ptr(), sums[i][r]);
                }
                let rows = panels::rows_of(
                    self.product,
                    RowTile { index: self.tile, first: self.tile, rows: TILE_ROWS },
                );
                store(self.product, panel, rows, (kept, self.packed.row_scales(self.tile)));
            }
        }
    }
}
