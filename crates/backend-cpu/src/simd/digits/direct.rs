//! Tiles of eight or sixteen rows with codes that lie as tiles do, so that nothing is to be unpacked.
//!
//! # Shape
//! As in [`super::tiles`]: a product is begun, the exact sums of the second before it are stored, and those of the third before it are
//! scaled and added. So a unit is added while the next one is multiplied, also where that is of the next panel, and the sums of
//! a panel stay in registers from its first unit to its last. A call in the loop over units would send them to memory, so it calls
//! nothing.

use super::super::amx::tile::{Configured, move_tile};
use super::super::avx512::Avx512;
use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::by_tiles::{SUMS, expect, near_tiles, scales as scales_of, store as put};
use super::code::{DIGITS, weights};
use super::pack::{Packed, WORDS};
use super::tiles::{RESULTS, TILE, dot, load, numbered, store, zero};
use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead of their use codes are asked for.
const AHEAD: usize = 4 * TILE;

/// f32 of scratch: results of products, and the sums of a panel.
pub(super) const SCRATCH: usize = RESULTS + SUMS;

/// Where a tile of rows is, and where its results wait.
#[derive(Clone, Copy)]
struct Place {
    /// Activations and their words.
    x: *const u8,
    words: *const f32,
    results: *mut u8,
    /// Columns of a unit.
    unit: usize,
}

/// Begins product `$t`: digit `$t mod 3` of unit `$at`, whose codes are at `$w`, in tile `$t mod 4`. A load waits for the product that
/// still reads its tile, so neighbours take turns.
macro_rules! begin {
    ($t:expr, $place:expr, $w:expr, $at:expr) => {
        let (digit, w, unit) = (const { ($t) % DIGITS }, $w, $place.unit);
        // A few at a time: many at once would wait for each other.
        let lines = (unit * LANES).div_ceil(64 * DIGITS);
        for line in digit * lines..(digit + 1) * lines {
            _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(AHEAD + line * 64).cast());
        }
        if digit == 0 {
            if ($t) / DIGITS % 2 == 0 { load!(4, w, 64_usize) } else { load!(5, w, 64_usize) }
        }
        let x = $place.x.wrapping_add(($at * DIGITS + digit) * CLASS * unit);
        if ($t) % 2 == 0 {
            load!(6, x, unit)
        } else {
            load!(7, x, unit)
        }
        numbered!($t, zero());
        match (($t) % 2, ($t) / DIGITS % 2) {
            (0, 0) => numbered!($t, dot(6, 4, false)),
            (0, _) => numbered!($t, dot(6, 5, false)),
            (_, 0) => numbered!($t, dot(7, 4, false)),
            (_, _) => numbered!($t, dot(7, 5, false)),
        }
    };
}

/// Adds digit `$digit` of unit `$at`, product `$t`, to `$sums`; after the last one the offsets too.
///
/// Not a function, since one that is not inlined could not keep the sums in registers.
macro_rules! add {
    ($t:expr, $digit:expr, $place:expr, $at:expr, ($scales:expr, $factors:expr), $sums:expr) => {
        let (scale, offset) = $factors;
        let from = $place.results.add(($t) % 4 * TILE);
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(weights(0)[$digit]));
        for r in 0..CLASS {
            let whole = _mm512_load_si512(from.add(r * 64).cast());
            $sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, $sums[r]);
        }
        if $digit == DIGITS - 1 && $scales.offsets.is_some() {
            let words = $place.words.add($at * WORDS * CLASS);
            for r in 0..CLASS {
                $sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(*words.add(r)), offset, $sums[r]);
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
        let factors = $scales.of(Avx512::promised(), $before);
        unit!(@ $s, $place, $w, $at, $before, ($scales, factors), $sums, [0, 1, 2]);
    }};
    (@ $s:literal, $place:expr, $w:expr, $at:expr, $before:expr, ($scales:expr, $factors:expr), $sums:expr, [$($d:literal),*]) => {$(
        begin!(DIGITS * $s + $d, $place, $w, $at);
        numbered!(DIGITS * $s + $d + 2, store($place.results));
        add!(DIGITS * $s + $d + 1, $d, $place, $before, ($scales, $factors), $sums);
    )*};
}

/// Stores the sums of a panel, by way of `$kept` where they are not whole vectors.
macro_rules! finish {
    ($product:expr, $panel:expr, $rows:expr, $worth:expr, $kept:expr, $sums:expr) => {
        let (rows, worth) = ($rows, $worth);
        match $panel.vectors($product, &rows, 1).filter(|_| rows.len() == CLASS) {
            Some((first, stride, add)) => {
                for r in 0..CLASS {
                    let to = first.wrapping_add(r * stride);
                    let sums = _mm512_mul_ps($sums[r], _mm512_set1_ps(worth[r]));
                    let sums = if add { _mm512_add_ps(_mm512_loadu_ps(to), sums) } else { sums };
                    _mm512_storeu_ps(to, sums);
                }
            }
            None => {
                for r in 0..CLASS {
                    _mm512_storeu_ps($kept[r * LANES..].as_mut_ptr(), $sums[r]);
                }
                put($product, $panel, rows, ($kept, worth));
            }
        }
    };
}

/// A product with its activations packed.
pub(super) struct Direct<'a> {
    pub(super) product: &'a Product<'a, Tiled>,
    pub(super) packed: Packed<'a>,
    /// Tiles of the product's rows.
    pub(super) tiles: Range<usize>,
}

impl Direct<'_> {
    /// Computes and stores everything, with [`SCRATCH`] of scratch.
    ///
    /// # Safety
    /// The instructions of [`super::Units`] and tiles; as for [`Product::run`]; codes are whole bytes without a sign.
    pub(super) unsafe fn run(&self, room: &mut [f32], scratch: &mut [f32]) {
        let (recipe, class) = (self.packed.recipe(), self.packed.class());
        // SAFETY: the caller's promise; tasks hold tiles only here.
        unsafe {
            let _configured = Configured::bytes(class, recipe.unit());
            for from in self.tiles.clone().step_by(near_tiles(recipe)) {
                let tiles = from..self.tiles.end.min(from + near_tiles(recipe));
                walk(self.product, TOGETHER, room, |panels| {
                    for tile in tiles.clone() {
                        match class {
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
    /// As for [`Direct::run`]; tiles are configured for `CLASS` rows.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const CLASS: usize>(
        &self,
        tile: usize,
        panels: &[Panel],
        scratch: &mut [f32],
    ) {
        let recipe = self.packed.recipe();
        let (unit, units) = (recipe.unit(), recipe.units());
        let (results, kept) = scratch.split_at_mut(RESULTS);
        let (x, words) = self.packed.unit(tile, 0);
        let place = Place { x, words, results: results.as_mut_ptr().cast(), unit };
        let rows = walk::rows_of(self.product, [tile, self.tiles.start, CLASS]);
        // SAFETY: the caller's promise: rows were packed before.
        let worth = unsafe { self.packed.worth(tile) };
        let matrix = self.product.matrix;
        let mut scales = scales_of(matrix, &panels[0], unit);
        let mut sums = [_mm512_setzero_ps(); CLASS];
        // Units that were begun.
        let mut begun = 0;
        // SAFETY: the caller's promise; a unit is one of a panel's and of the rows'.
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
                    finish!(self.product, &panels[i - 1], rows.clone(), worth, kept, sums);
                    sums = [_mm512_setzero_ps(); CLASS];
                    scales = scales_of(matrix, panel, unit);
                }
                begun += 1;
                expect(self.product, panel, rows.clone());
                for at in 1..units {
                    let w = codes.wrapping_add(at * unit * LANES);
                    unit!(begun, place, w, at, at - 1, scales, sums);
                    begun += 1;
                }
            }
            let next = DIGITS * begun;
            numbered!(next + 2, store(place.results));
            numbered!(next + 3, store(place.results));
            let factors = scales.of(Avx512::promised(), units - 1);
            add!(next + 1, 0, place, units - 1, (scales, factors), sums);
            add!(next + 2, 1, place, units - 1, (scales, factors), sums);
            add!(next + 3, 2, place, units - 1, (scales, factors), sums);
            finish!(self.product, &panels[panels.len() - 1], rows, worth, kept, sums);
        }
    }
}
