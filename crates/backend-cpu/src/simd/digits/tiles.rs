//! A tile of rows with one panel, by tiles of bytes.
//!
//! # Layout
//! Codes are unpacked to `[unit]` tiles of weights: for narrow codes the lines of `16·c` and then those of `c`, which fit one tile up
//! to 32 columns. Exact sums of a few units wait in `[unit][digit][row][channel]` i32 before they are scaled, since a
//! stored tile reaches loads only through the cache. Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7 activations.

use super::super::amx::tile::Configured;
use super::super::isa::LANES;
use super::code::{Code, Scales, VECTORS, weights};
use super::pack::{CHUNK, Recipe};
use std::arch::asm;
use std::arch::x86_64::*;

/// Products that are started before the sums of one are stored.
const LAG: usize = 2;
/// Units of a block: a multiple of four products, so that blocks may follow each other.
pub(super) const UNITS: usize = 4;
/// f32 of room for the sums of a block that wait to be scaled.
const WAITING: usize = UNITS * 3 * LANES * LANES;
/// f32 of room for the sums of two blocks.
pub(super) const RESULTS: usize = 2 * WAITING;
/// f32 of a block's weights.
pub(super) const WEIGHTS: usize = UNITS * 64 * LANES * 2 / 4;
/// f32 of a block's scales: one for each digit, and the offset.
pub(super) const SCALES: usize = UNITS * 4 * LANES;

/// Shapes the tiles for sixteen rows.
///
/// # Safety
/// As for [`Configured::new`].
pub(super) unsafe fn configure(recipe: Recipe) -> Configured {
    // SAFETY: the caller's promise.
    unsafe { Configured::bytes(LANES, recipe.slab()) }
}

/// Unpacks the codes and scales of `units` units from `first` on.
///
/// # Safety
/// The instructions of [`super::Units`]; the units are the panel's; room for [`WEIGHTS`] and [`SCALES`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn unpack<C: Code>(
    code: C,
    (codes, excess): (*const u8, u8),
    scales: Scales,
    [first, units, unit]: [usize; 3],
    [to, factors]: [*mut f32; 2],
) {
    let excess = _mm512_set1_epi8(excess as i8);
    let lines = unit / 4;
    let each = if C::NARROW { 2 * lines } else { lines };
    // SAFETY: the caller's promise.
    unsafe {
        let codes = codes.add(first * unit / CHUNK * C::BITS * 64);
        for chunk in 0..(units * unit).div_ceil(CHUNK) {
            let bytes = code.bytes(codes.add(chunk * C::BITS * 64));
            for i in 0..VECTORS {
                let line = chunk * VECTORS + i;
                let (at, in_unit) = (line / lines * each, line % lines);
                let byte = _mm512_sub_epi8(bytes[i], excess);
                let to = to.cast::<u8>().add((at + in_unit) * 64);
                if C::NARROW {
                    // Four bits that move up leave no trace in the byte above: what they push out is masked.
                    let high =
                        _mm512_and_si512(_mm512_slli_epi16::<4>(byte), _mm512_set1_epi8(-16));
                    _mm512_store_si512(to.cast(), high);
                    _mm512_store_si512(to.add(lines * 64).cast(), byte);
                } else {
                    _mm512_store_si512(to.cast(), byte);
                }
            }
        }
        for unit in 0..units {
            let (scale, offset) = scales.of(first + unit);
            let to = factors.add(unit * 4 * LANES);
            for i in 0..3 {
                let weight = _mm512_set1_ps(weights(C::NARROW)[i]);
                _mm512_store_ps(to.add(i * LANES), _mm512_mul_ps(scale, weight));
            }
            _mm512_store_ps(to.add(3 * LANES), offset);
        }
    }
}

/// One instruction for each number of a tile. Numbers are constants wherever this is used, so one arm is left of it.
macro_rules! numbered {
    ($number:expr, $name:ident($($rest:tt)*)) => {
        match $number % 4 {
            0 => $name!(0, $($rest)*),
            1 => $name!(1, $($rest)*),
            2 => $name!(2, $($rest)*),
            _ => $name!(3, $($rest)*),
        }
    };
}

macro_rules! load {
    ($tile:literal, $at:expr, $line:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{at} + {line}]"),
            at = in(reg) $at, line = in(reg) $line, options(nostack, readonly),
        )
    };
}

macro_rules! zero {
    ($tile:literal,) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem))
    };
}

macro_rules! store {
    ($tile:literal, $at:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}], tmm", $tile),
            at = in(reg) $at, line = in(reg) 64_usize, options(nostack),
        )
    };
}

macro_rules! dot {
    ($sums:literal, $x:literal, $weights:literal, $signed:expr) => {
        if $signed {
            dot!(@ "tdpbssd", $sums, $x, $weights)
        } else {
            dot!(@ "tdpbsud", $sums, $x, $weights)
        }
    };
    (@ $dot:literal, $sums:literal, $x:literal, $weights:literal) => {
        asm!(
            concat!($dot, " tmm", $sums, ", tmm", $x, ", tmm", $weights),
            options(nostack, nomem),
        )
    };
}

/// Rows of a tile with one panel over up to [`UNITS`] units.
pub(super) struct Block {
    pub(super) recipe: Recipe,
    /// Whether weights have a sign.
    pub(super) signed: bool,
    pub(super) offsets: bool,
    /// Activations and their words, from the first unit on.
    pub(super) x: (*const u8, *const f32),
    pub(super) weights: *const u8,
    pub(super) scales: *const f32,
    pub(super) units: usize,
    /// `[row][channel]`.
    pub(super) sums: *mut f32,
    /// Whether the sums start here.
    pub(super) fresh: bool,
}

/// Blocks on their way: while the products of one run, the sums of the one before are stored and scaled. A store waits for its product,
/// and what it stored reaches loads only through the cache, so neither should come at once.
pub(super) struct Pipeline<const NARROW: bool> {
    results: *mut u8,
    /// Which half of the results the next block takes.
    odd: bool,
    /// The block whose last products are still in tiles, and where its sums go.
    before: Option<(Block, *mut u8)>,
}

impl<const NARROW: bool> Pipeline<NARROW> {
    const DIGITS: usize = if NARROW { 2 } else { 3 };
    const PRODUCTS: usize = UNITS * Self::DIGITS;

    /// `results` is room for [`RESULTS`].
    pub(super) fn new(results: *mut f32) -> Self {
        Self { results: results.cast(), odd: false, before: None }
    }

    /// Adds a block's products to its sums, in the end: call [`Pipeline::finish`] before looking at them.
    ///
    /// # Safety
    /// The instructions of [`super::Units`] and tiles, configured for sixteen rows and the recipe; every pointer of the block as its field
    /// says, until the pipeline is finished.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn push(&mut self, block: Block) {
        let to = self.results.wrapping_add(if self.odd { WAITING * 4 } else { 0 });
        // SAFETY: the caller's promise; the blocks before and now use different halves of the results.
        unsafe {
            match self.before.take() {
                Some((before, results)) if block.units == UNITS => {
                    block.products::<NARROW>(to, Some((&before, results)));
                }
                before => {
                    Self::last(before);
                    block.products::<NARROW>(to, None);
                }
            }
            if block.units == UNITS {
                self.odd = !self.odd;
                self.before = Some((block, to));
            } else {
                // Its tiles are not in the order that the next block expects.
                Self::last(Some((block, to)));
            }
        }
    }

    /// Brings everything to its sums.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn finish(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { Self::last(self.before.take()) };
    }

    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn last(before: Option<(Block, *mut u8)>) {
        let Some((block, results)) = before else { return };
        let all = block.units * Self::DIGITS;
        // SAFETY: the caller's promise.
        unsafe {
            for t in all.saturating_sub(LAG)..all {
                store::<NARROW>(t, results);
            }
            for first in (0..LANES).step_by(4) {
                block.add::<4, NARROW>(results, first);
            }
        }
    }
}

/// Stores the sums of product `t` of a block.
///
/// # Safety
/// As for [`Pipeline::push`].
#[inline(always)]
unsafe fn store<const NARROW: bool>(t: usize, results: *mut u8) {
    let digits = const { if NARROW { 2 } else { 3 } };
    let to = results.wrapping_add((t / digits * 3 + t % digits) * LANES * 64);
    // SAFETY: the caller's promise.
    unsafe { numbered!(t, store(to)) };
}

impl Block {
    /// Product `T`: digit `T mod DIGITS` of unit `T / DIGITS`.
    ///
    /// A load waits for the product that still reads its tile, so neighbours take turns.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline(always)]
    unsafe fn product<const T: usize, const NARROW: bool>(&self) {
        let digits = const { if NARROW { 2 } else { 3 } };
        let (i, digit) = (T / digits, T % digits);
        let (slab, columns) = (self.recipe.slab(), self.recipe.unit());
        let x = self.x.0.wrapping_add(i * self.recipe.unit_bytes(LANES));
        let bytes = columns / 4 * 64;
        let w = self.weights.wrapping_add(i * if NARROW { 2 * bytes } else { bytes });
        // SAFETY: the caller's promise.
        unsafe {
            if NARROW && columns > CHUNK {
                // Both halves of a digit have lines of their own.
                if digit == 0 {
                    load!(4, w, 64_usize);
                    load!(5, w.wrapping_add(bytes), 64_usize);
                }
                load!(6, x.wrapping_add(2 * digit * LANES * slab), slab);
                numbered!(T, zero());
                numbered!(T, dot(6, 4, self.signed));
                load!(7, x.wrapping_add((2 * digit + 1) * LANES * slab), slab);
                numbered!(T, dot(7, 5, self.signed));
                return;
            }
            let odd = i % 2 == 1;
            if digit == 0 {
                if odd { load!(5, w, 64_usize) } else { load!(4, w, 64_usize) }
            }
            let x = x.wrapping_add(digit * LANES * slab);
            if T % 2 == 1 {
                load!(7, x, slab)
            } else {
                load!(6, x, slab)
            }
            numbered!(T, zero());
            match (odd, T % 2) {
                (false, 0) => numbered!(T, dot(6, 4, self.signed)),
                (false, _) => numbered!(T, dot(7, 4, self.signed)),
                (true, 0) => numbered!(T, dot(6, 5, self.signed)),
                (true, _) => numbered!(T, dot(7, 5, self.signed)),
            }
        }
    }

    /// All products; those before the last [`LAG`] are stored at `to`. Meanwhile the block before is stored and added.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn products<const NARROW: bool>(&self, to: *mut u8, before: Option<(&Self, *mut u8)>) {
        let all = self.units * Pipeline::<NARROW>::DIGITS;
        macro_rules! each {
            ($($t:literal),*) => {$(
                if $t < all {
                    self.product::<$t, NARROW>();
                    if $t >= LAG {
                        store::<NARROW>($t - LAG, to);
                    } else if let Some((_, results)) = before {
                        store::<NARROW>(Pipeline::<NARROW>::PRODUCTS - LAG + $t, results);
                    }
                    if let Some((block, results)) = before {
                        block.share::<$t, NARROW>(results);
                    }
                }
            )*};
        }
        // SAFETY: the caller's promise.
        unsafe {
            each!(0, 1, 2, 3, 4, 5, 6, 7);
            if !NARROW {
                each!(8, 9, 10, 11);
            }
        }
    }

    /// The share of the adding that comes after product `T` of the next block.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline(always)]
    unsafe fn share<const T: usize, const NARROW: bool>(&self, results: *const u8) {
        // The last sums were stored at `T = LAG − 1`.
        let turn = const { if NARROW { T.wrapping_sub(4) } else { T.wrapping_sub(4) / 2 } };
        let due = const { T >= 4 && (NARROW || T.is_multiple_of(2)) };
        // SAFETY: the caller's promise.
        unsafe {
            if due && turn * 4 < LANES {
                self.add::<4, NARROW>(results, turn * 4);
            }
        }
    }

    /// Adds the waiting sums to the rows `first..first + R`.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add<const R: usize, const NARROW: bool>(&self, results: *const u8, first: usize) {
        let digits = const { if NARROW { 2 } else { 3 } };
        // SAFETY: the caller's promise.
        unsafe {
            let kept = self.sums.add(first * LANES);
            let mut sums = [_mm512_setzero_ps(); R];
            if !self.fresh {
                for r in 0..R {
                    sums[r] = _mm512_load_ps(kept.add(r * LANES));
                }
            }
            for i in 0..self.units {
                let scales = self.scales.add(i * 4 * LANES);
                for digit in 0..digits {
                    let scale = _mm512_load_ps(scales.add(digit * LANES));
                    let at = results.add(((i * 3 + digit) * LANES + first) * 64);
                    for r in 0..R {
                        let whole = _mm512_load_si512(at.add(r * 64).cast());
                        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[r]);
                    }
                }
                if self.offsets {
                    let offset = _mm512_load_ps(scales.add(3 * LANES));
                    let words = self.x.1.add(i * 4 * LANES + first);
                    for r in 0..R {
                        let sum = _mm512_set1_ps(*words.add(r));
                        sums[r] = _mm512_fmadd_ps(sum, offset, sums[r]);
                    }
                }
            }
            for r in 0..R {
                _mm512_store_ps(kept.add(r * LANES), sums[r]);
            }
        }
    }
}
