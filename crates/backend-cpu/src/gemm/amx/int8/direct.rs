//! Tiles of eight or sixteen rows with codes that AMX loads as they are stored: 8-bit codes without a zero point.
//!
//! # Shape
//! A software pipeline as in [`grouped`](super::grouped): while a product is started, the exact sums of the second
//! before it are stored, and those of the third before it are scaled and added. So a unit is added while the next one
//! is multiplied, also across the end of a panel, and the sums of a panel stay in registers from its first unit to its
//! last. A function call in the loop over units would spill them, so it calls nothing.

use super::grouped::{RESULTS, TILE, dot, load, numbered, store, zero};
use super::{SUMS, l2_tiles, prefetch_outputs, scales as scales_of, store as put};
use crate::gemm::amx::tile::{Configured, move_tile};
use crate::gemm::int8::code::{LIMBS, weights};
use crate::gemm::int8::layout::{AUX_WORDS, PackedLimbs};
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, DirectOutput, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead codes are prefetched.
const PREFETCH_BYTES: usize = 4 * TILE;

/// f32 of scratch: results of products, and the sums of a panel.
pub(crate) const SCRATCH: usize = RESULTS + SUMS;

/// Where a tile of rows is, and where its results wait.
#[derive(Clone, Copy)]
struct TileCursor {
    /// Activations and their aux words.
    x: *const u8,
    aux: *const f32,
    results: *mut u8,
    /// Columns of a unit.
    unit: usize,
}

/// Starts product `$t`: limb `$t mod 3` of unit `$at`, whose codes are at `$w`, in tile `$t mod 4`. A load waits for
/// the product that still reads its tile, so consecutive products use different tiles.
macro_rules! begin {
    ($t:expr, $place:expr, $w:expr, $at:expr) => {
        let (limb, w, unit) = (const { ($t) % LIMBS }, $w, $place.unit);
        // A third of the unit's lines with each limb: many prefetches at once would queue.
        let lines = (unit * LANES).div_ceil(64 * LIMBS);
        for line in limb * lines..(limb + 1) * lines {
            _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(PREFETCH_BYTES + line * 64).cast());
        }
        if limb == 0 {
            if ($t) / LIMBS % 2 == 0 { load!(4, w, 64_usize) } else { load!(5, w, 64_usize) }
        }
        let x = $place.x.wrapping_add(($at * LIMBS + limb) * TILE_ROWS * unit);
        if ($t) % 2 == 0 {
            load!(6, x, unit)
        } else {
            load!(7, x, unit)
        }
        numbered!($t, zero());
        match (($t) % 2, ($t) / LIMBS % 2) {
            (0, 0) => numbered!($t, dot(6, 4, false)),
            (0, _) => numbered!($t, dot(6, 5, false)),
            (_, 0) => numbered!($t, dot(7, 4, false)),
            (_, _) => numbered!($t, dot(7, 5, false)),
        }
    };
}

/// Adds limb `$limb` of unit `$at`, product `$t`, to `$sums`; after the last one the offsets too.
///
/// A macro, since a call that is not inlined would spill the sums.
macro_rules! add {
    ($t:expr, $limb:expr, $place:expr, $at:expr, ($scales:expr, $factors:expr), $sums:expr) => {
        let (scale, offset) = $factors;
        let from = $place.results.add(($t) % 4 * TILE);
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(weights(0)[$limb]));
        for r in 0..TILE_ROWS {
            let whole = _mm512_load_si512(from.add(r * 64).cast());
            $sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, $sums[r]);
        }
        if $limb == LIMBS - 1 && $scales.offsets.is_some() {
            let aux = $place.aux.add($at * AUX_WORDS * TILE_ROWS);
            for r in 0..TILE_ROWS {
                $sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(*aux.add(r)), offset, $sums[r]);
            }
        }
    };
}

/// Multiplies unit `$at`, `$number` units after the first, while unit `$before` is added.
macro_rules! unit {
    ($number:expr, $($rest:tt)*) => {
        match $number % 4 {
            0 => unit!(@ 0, $($rest)*),
            1 => unit!(@ 1, $($rest)*),
            2 => unit!(@ 2, $($rest)*),
            _ => unit!(@ 3, $($rest)*),
        }
    };
    (@ $s:literal, $place:expr, $w:expr, $at:expr, $before:expr, $scales:expr, $sums:expr) => {{
        let factors = $scales.of(Avx512::new_unchecked(), $before);
        unit!(@ $s, $place, $w, $at, $before, ($scales, factors), $sums, [0, 1, 2]);
    }};
    (@ $s:literal, $place:expr, $w:expr, $at:expr, $before:expr, ($scales:expr, $factors:expr), $sums:expr, [$($d:literal),*]) => {$(
        begin!(LIMBS * $s + $d, $place, $w, $at);
        numbered!(LIMBS * $s + $d + 2, store($place.results));
        add!(LIMBS * $s + $d + 1, $d, $place, $before, ($scales, $factors), $sums);
    )*};
}

/// Stores the sums of a panel, by way of `$kept` where they are not whole vectors.
macro_rules! finish {
    ($product:expr, $panel:expr, $rows:expr, $row_scales:expr, $kept:expr, $sums:expr) => {
        let (rows, row_scales) = ($rows, $row_scales);
        match $panel.direct_output($product, &rows, 1).filter(|_| rows.len() == TILE_ROWS) {
            Some(DirectOutput { first, stride, add }) => {
                for r in 0..TILE_ROWS {
                    let to = first.wrapping_add(r * stride);
                    let sums = _mm512_mul_ps($sums[r], _mm512_set1_ps(row_scales[r]));
                    let sums = if add { _mm512_add_ps(_mm512_loadu_ps(to), sums) } else { sums };
                    _mm512_storeu_ps(to, sums);
                }
            }
            None => {
                for r in 0..TILE_ROWS {
                    _mm512_storeu_ps($kept[r * LANES..].as_mut_ptr(), $sums[r]);
                }
                put($product, $panel, rows, ($kept, row_scales));
            }
        }
    };
}

/// A product with its activations packed.
pub(crate) struct Direct<'a> {
    pub(crate) product: &'a Product<'a, PackedWeight>,
    pub(crate) packed: PackedLimbs<'a>,
    /// Tiles of the product's rows.
    pub(crate) tiles: Range<usize>,
}

impl Direct<'_> {
    /// Computes and stores everything, with [`SCRATCH`] of scratch.
    ///
    /// # Safety
    /// AMX, AVX-512 VNNI and VBMI are there. As for [`Product::run`]; the product's rows are completely packed in
    /// `tiles`, and its codes are [`PackLayout::amx_native`](crate::gemm::int8::PackLayout::amx_native).
    pub(crate) unsafe fn run(&self, gathered: &mut [f32], scratch: &mut [f32]) {
        let (layout, tile_rows) = (self.packed.layout(), self.packed.tile_rows());
        // SAFETY: this function's contract; a task configures tiles only here, and panels are the product's.
        unsafe {
            let _configured = Configured::bytes(tile_rows, layout.unit());
            for from in self.tiles.clone().step_by(l2_tiles(layout)) {
                let tiles = from..self.tiles.end.min(from + l2_tiles(layout));
                for_each_panels(self.product, MAX_PANELS, gathered, |panels| {
                    for tile in tiles.clone() {
                        match tile_rows {
                            8 => self.panels::<8>(tile, panels, scratch),
                            _ => self.panels::<16>(tile, panels, scratch),
                        }
                    }
                });
            }
        }
    }

    /// A tile of rows with some panels.
    ///
    /// # Safety
    /// As for [`Direct::run`]; AMX tiles are configured for `TILE_ROWS` rows, `panels` are the product's and not empty.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const TILE_ROWS: usize>(
        &self,
        tile: usize,
        panels: &[Panel],
        scratch: &mut [f32],
    ) {
        let layout = self.packed.layout();
        let (unit, units) = (layout.unit(), layout.units());
        let (results, kept) = scratch.split_at_mut(RESULTS);
        let (x, aux) = self.packed.unit(tile, 0);
        let place = TileCursor { x, aux, results: results.as_mut_ptr().cast(), unit };
        let rows = panels::rows_of(
            self.product,
            RowTile { index: tile, first: self.tiles.start, rows: TILE_ROWS },
        );
        // SAFETY: the tile is completely packed.
        let row_scales = unsafe { self.packed.row_scales(tile) };
        let matrix = self.product.matrix;
        let mut scales = scales_of(matrix, &panels[0], unit);
        let mut sums = [_mm512_setzero_ps(); TILE_ROWS];
        // Units that were started.
        let mut begun = 0;
        // SAFETY: this function's contract; every unit is one of the panel's and of the tile's, results fit scratch,
        // and outputs belong to this thread.
        unsafe {
            for (i, panel) in panels.iter().enumerate() {
                let codes = panel.planes[0];
                if i == 0 {
                    begin!(0, place, codes, 0);
                    begin!(1, place, codes, 0);
                    begin!(2, place, codes, 0);
                    numbered!(0, store(place.results));
                } else {
                    unit!(begun, place, codes, 0, units - 1, scales, sums);
                    finish!(self.product, &panels[i - 1], rows.clone(), row_scales, kept, sums);
                    sums = [_mm512_setzero_ps(); TILE_ROWS];
                    scales = scales_of(matrix, panel, unit);
                }
                begun += 1;
                prefetch_outputs(self.product, panel, rows.clone());
                for at in 1..units {
                    let w = codes.wrapping_add(at * unit * LANES);
                    unit!(begun, place, w, at, at - 1, scales, sums);
                    begun += 1;
                }
            }
            let next = LIMBS * begun;
            numbered!(next + 2, store(place.results));
            numbered!(next + 3, store(place.results));
            let factors = scales.of(Avx512::new_unchecked(), units - 1);
            add!(next + 1, 0, place, units - 1, (scales, factors), sums);
            add!(next + 2, 1, place, units - 1, (scales, factors), sums);
            add!(next + 3, 2, place, units - 1, (scales, factors), sums);
            finish!(self.product, &panels[panels.len() - 1], rows, row_scales, kept, sums);
        }
    }
}
