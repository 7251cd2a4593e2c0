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

/// Columns of a block: its weights stay in a 48 KiB first-level cache while all rows pass by.
pub(super) const BLOCK: usize = 128;
/// Products that are started before the sums of one are stored.
const LAG: usize = 2;
/// Units whose sums wait.
const WAITING: usize = 4;
/// f32 of room for waiting sums.
pub(super) const RESULTS: usize = WAITING * 3 * LANES * LANES;
/// f32 of a block's weights.
pub(super) const WEIGHTS: usize = BLOCK * LANES * 2 / 4;
/// f32 of a block's scales: one for each digit, and the offset.
pub(super) const SCALES: usize = BLOCK / LANES * 4 * LANES;

/// Shapes the tiles for `class` rows.
///
/// # Safety
/// As for [`Configured::new`].
pub(super) unsafe fn configure(recipe: Recipe, class: usize) -> Configured {
    // SAFETY: the caller's promise.
    unsafe { Configured::bytes(class, recipe.slab()) }
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

/// Rows of a tile with one panel over some units.
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
    /// Room for [`RESULTS`].
    pub(super) results: *mut u8,
    /// Activations that are wanted soon; a unit asks for this many lines of its own.
    pub(super) ahead: (*const u8, usize),
}

impl Block {
    /// Product `T` of a few units from `unit` on: digit `T mod DIGITS` of unit `T / DIGITS`. An earlier one is stored meanwhile.
    ///
    /// A load waits for the product that still reads its tile, so neighbours take turns.
    ///
    /// # Safety
    /// As for [`Block::run`].
    #[inline(always)]
    unsafe fn product<const T: usize, const M: usize, const NARROW: bool>(&self, unit: usize) {
        let digits = const { if NARROW { 2 } else { 3 } };
        let (i, digit) = (T / digits, T % digits);
        let (slab, columns) = (self.recipe.slab(), self.recipe.unit());
        let x = self.x.0.wrapping_add((unit + i) * self.recipe.unit_bytes(M));
        let bytes = columns / 4 * 64;
        let each = if NARROW { 2 * bytes } else { bytes };
        let w = self.weights.wrapping_add((unit + i) * each);
        // SAFETY: the caller's promise.
        unsafe {
            if NARROW && columns > CHUNK {
                // Both halves of a digit have lines of their own.
                if digit == 0 {
                    load!(4, w, 64_usize);
                    load!(5, w.wrapping_add(bytes), 64_usize);
                }
                load!(6, x.wrapping_add(2 * digit * M * slab), slab);
                numbered!(T, zero());
                numbered!(T, dot(6, 4, self.signed));
                load!(7, x.wrapping_add((2 * digit + 1) * M * slab), slab);
                numbered!(T, dot(7, 5, self.signed));
            } else {
                let odd = i % 2 == 1;
                if digit == 0 {
                    if odd { load!(5, w, 64_usize) } else { load!(4, w, 64_usize) }
                }
                let x = x.wrapping_add(digit * M * slab);
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
            if T >= LAG {
                self.store::<M, NARROW>(T - LAG);
            }
        }
    }

    /// Stores the sums of product `t`.
    ///
    /// # Safety
    /// As for [`Block::run`].
    #[inline(always)]
    unsafe fn store<const M: usize, const NARROW: bool>(&self, t: usize) {
        let digits = const { if NARROW { 2 } else { 3 } };
        let to = self.results.wrapping_add((t / digits * 3 + t % digits) * M * 64);
        // SAFETY: the caller's promise.
        unsafe { numbered!(t, store(to)) };
    }

    /// The products of `count` units from `unit` on.
    ///
    /// # Safety
    /// As for [`Block::run`].
    #[inline(always)]
    unsafe fn products<const M: usize, const NARROW: bool>(&self, unit: usize, count: usize) {
        let digits = const { if NARROW { 2 } else { 3 } };
        let all = count * digits;
        macro_rules! each {
            ($($t:literal),*) => {$(
                if $t < all {
                    self.product::<$t, M, NARROW>(unit);
                }
            )*};
        }
        // SAFETY: the caller's promise.
        unsafe {
            each!(0, 1, 2, 3, 4, 5, 6, 7);
            if !NARROW {
                each!(8, 9, 10, 11);
            }
            for t in all.saturating_sub(LAG)..all {
                self.store::<M, NARROW>(t);
            }
        }
    }

    /// Adds the waiting sums of `count` units from `unit` on to the rows `first..first + R`.
    ///
    /// # Safety
    /// As for [`Block::run`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add<const M: usize, const R: usize, const NARROW: bool>(
        &self,
        unit: usize,
        count: usize,
        first: usize,
    ) {
        let digits = if NARROW { 2 } else { 3 };
        // SAFETY: the caller's promise.
        unsafe {
            let kept = self.sums.add(first * LANES);
            let mut sums = [_mm512_setzero_ps(); R];
            if unit > 0 || !self.fresh {
                for r in 0..R {
                    sums[r] = _mm512_load_ps(kept.add(r * LANES));
                }
            }
            for i in 0..count {
                let scales = self.scales.add((unit + i) * 4 * LANES);
                for digit in 0..digits {
                    let scale = _mm512_load_ps(scales.add(digit * LANES));
                    let at = self.results.add(((i * 3 + digit) * M + first) * 64);
                    for r in 0..R {
                        let whole = _mm512_load_si512(at.add(r * 64).cast());
                        sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), scale, sums[r]);
                    }
                }
                if self.offsets {
                    let offset = _mm512_load_ps(scales.add(3 * LANES));
                    let words = self.x.1.add((unit + i) * 4 * M + first);
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

    /// All units.
    ///
    /// # Safety
    /// The instructions of [`super::Units`] and tiles, configured for `M` rows and the recipe; every pointer as its field says.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn run<const M: usize, const NARROW: bool>(&self) {
        for unit in (0..self.units).step_by(WAITING) {
            let count = WAITING.min(self.units - unit);
            // SAFETY: the caller's promise; a slot is read before it is written again.
            unsafe {
                self.products::<M, NARROW>(unit, count);
                for i in unit..unit + count {
                    let ahead = self.ahead.0.wrapping_add(i * self.recipe.unit_bytes(M));
                    for line in 0..self.ahead.1 {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                    }
                }
                if M > 8 {
                    self.add::<M, 8, NARROW>(unit, count, 0);
                    self.add::<M, 8, NARROW>(unit, count, 8);
                } else {
                    self.add::<M, M, NARROW>(unit, count, 0);
                }
            }
        }
    }
}
