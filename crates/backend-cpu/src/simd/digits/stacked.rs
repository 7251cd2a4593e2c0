//! Up to four rows with codes that lie as tiles do: the digits of all rows are rows of one tile.
//!
//! # Shape
//! Four panels at a time share a tile of activations. Each has a tile of sums: what it holds of one unit is stored before the next
//! unit takes its place, three products later, and added, while further products run, to sums that stay in registers.

use super::super::amx::tile::{Configured, move_tile};
use super::super::avx512::Avx512;
use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::by_tiles::{SUMS, scales as scales_of, store};
use super::code::{DIGITS, Scales, weights};
use super::pack::{Packed, Recipe, WORDS};
use super::tiles::TILE;
use std::arch::asm;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Most rows.
const MOST: usize = 4;
/// How far ahead of their use codes are asked for.
const AHEAD: usize = 2 * TILE;

/// f32 of scratch: results of each panel, and its sums.
pub(super) const SCRATCH: usize = TOGETHER * (TILE / 4 + SUMS);

/// Whether the digits of all of `class` rows are rows of one tile.
pub(super) fn stacks(recipe: Recipe, class: usize) -> bool {
    recipe.by_tiles(class) && recipe.as_tiles() && class <= MOST
}

/// A product with one tile of up to [`MOST`] rows.
pub(super) struct Stacked<'a> {
    pub(super) product: &'a Product<'a, Tiled>,
    pub(super) packed: Packed<'a>,
    pub(super) tile: usize,
}

/// Begins the product of a unit with a panel, in its tile of sums.
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

/// Scales the digits' sums of a unit that wait at `$from` and adds them to the rows' `$sums`.
macro_rules! add {
    ($scales:expr, ($words:expr, $unit:expr), $from:expr, $sums:expr) => {{
        let (from, unit, scales) = ($from, $unit, &$scales);
        let (scale, offset) = scales.of(Avx512::promised(), unit);
        for digit in 0..DIGITS {
            let scale = _mm512_mul_ps(scale, _mm512_set1_ps(weights(0)[digit]));
            for r in 0..CLASS {
                let whole = _mm512_load_si512(from.add((digit * CLASS + r) * 64).cast());
                $sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, $sums[r]);
            }
        }
        if scales.offsets.is_some() {
            for r in 0..CLASS {
                let sum = _mm512_set1_ps(*$words.add(unit * WORDS * CLASS + r));
                $sums[r] = _mm512_fmadd_ps(sum, offset, $sums[r]);
            }
        }
    }};
}

impl Stacked<'_> {
    /// Computes and stores everything, with [`SCRATCH`] of scratch.
    ///
    /// # Safety
    /// The instructions of [`super::Units`] and tiles; as for [`Product::run`]; codes are whole bytes without a sign.
    pub(super) unsafe fn run(&self, room: &mut [f32], scratch: &mut [f32]) {
        let (recipe, class) = (self.packed.recipe(), self.packed.class());
        // SAFETY: the caller's promise; tasks hold tiles only here.
        unsafe {
            let _configured = Configured::bytes(DIGITS * class, recipe.unit());
            walk(self.product, TOGETHER, room, |panels| match class {
                2 => self.panels::<2>(panels, scratch),
                _ => self.panels::<4>(panels, scratch),
            });
        }
    }

    /// All rows with up to four panels.
    ///
    /// # Safety
    /// As for [`Stacked::run`]; tiles are configured for `CLASS` rows.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const CLASS: usize>(&self, panels: &[Panel], scratch: &mut [f32]) {
        let (recipe, matrix) = (self.packed.recipe(), self.product.matrix);
        let (unit, units) = (recipe.unit(), recipe.units());
        let (results, kept) = scratch.split_at_mut(TOGETHER * TILE / 4);
        let results = results.as_mut_ptr().cast::<u8>();
        // Where there are fewer panels the last one is multiplied again, for nobody.
        let last = panels.len() - 1;
        let codes: [*const u8; TOGETHER] = from_fn(|i| panels[i.min(last)].planes[0]);
        let scales: [Scales; TOGETHER] = from_fn(|i| scales_of(matrix, &panels[i.min(last)], unit));
        let (x, words) = self.packed.unit(self.tile, 0);
        let mut sums = [[_mm512_setzero_ps(); CLASS]; TOGETHER];
        // SAFETY: the caller's promise; a unit is one of the panels' and of the rows'.
        unsafe {
            macro_rules! unit {
                ($x:literal, $at:expr) => {{
                    let at = $at;
                    asm!(
                        concat!("tileloadd tmm", $x, ", [{x} + {line}]"),
                        x = in(reg) x.wrapping_add(at * DIGITS * CLASS * unit),
                        line = in(reg) unit, options(nostack, readonly),
                    );
                    unit!(@ $x, at, [(0, 4), (1, 5), (2, 4), (3, 5)]);
                    if at > 0 {
                        for i in 0..TOGETHER {
                            add!(scales[i], (words, at - 1), results.add(i * TILE), sums[i]);
                        }
                    }
                }};
                (@ $x:literal, $at:ident, [$(($panel:literal, $weights:literal)),*]) => {$({
                    let from = codes[$panel].wrapping_add($at * unit * LANES);
                    for line in (0..unit * LANES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + line).cast());
                    }
                    if $at > 0 {
                        move_tile!(store $panel, results.wrapping_add($panel * TILE));
                    }
                    begin!($panel, $weights, $x, from);
                })*};
            }
            // A load waits for the products that still read its tile, so neighbours take turns.
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
            for i in 0..TOGETHER {
                add!(scales[i], (words, units - 1), results.add(i * TILE), sums[i]);
            }
            for (i, panel) in panels.iter().enumerate() {
                let kept = &mut kept[i * SUMS..][..SUMS];
                for r in 0..CLASS {
                    _mm512_store_ps(kept[r * LANES..].as_mut_ptr(), sums[i][r]);
                }
                let rows = walk::rows_of(self.product, [self.tile, self.tile, CLASS]);
                store(self.product, panel, rows, (kept, self.packed.worth(self.tile)));
            }
        }
    }
}
