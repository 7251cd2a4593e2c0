//! A tile of rows with one panel, by tiles of bytes.
//!
//! # Layout
//! Codes are unpacked to `[unit]` tiles of weights: for narrow codes the lines of `16·c` and then those of `c`, which fit one tile up
//! to 32 columns. Exact sums of a few units wait in `[unit][digit][row][channel]` i32 before they are scaled, since a
//! stored tile reaches loads only through the cache. Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7 activations.

use super::super::amx::tile::Configured;
use super::super::isa::LANES;
use super::code::{AHEAD, Code, Scales, VECTORS, weights};
use super::pack::{CHUNK, Recipe};
use std::arch::asm;
use std::arch::x86_64::*;

/// Products that are started before the sums of one are stored.
const LAG: usize = 2;
/// Most units of a block.
pub(super) const UNITS: usize = 4;
/// f32 of room for the sums of a block that wait to be scaled.
const WAITING: usize = UNITS * 3 * LANES * LANES;
/// f32 of room for the sums of two blocks.
pub(super) const RESULTS: usize = 2 * WAITING;
/// f32 of a block's weights.
pub(super) const WEIGHTS: usize = UNITS * 64 * LANES * 2 / 4;
/// f32 of a block's scales: one for each digit, and the offset.
pub(super) const SCALES: usize = UNITS * 4 * LANES;

/// Shapes the tiles for `class` rows.
///
/// # Safety
/// As for [`Configured::new`].
pub(super) unsafe fn configure(recipe: Recipe, class: usize) -> Configured {
    // SAFETY: the caller's promise.
    unsafe { Configured::bytes(class, recipe.slab()) }
}

/// Whether codes lie as tiles of weights do, so that nothing is to be unpacked.
pub(super) fn is_tile<C: Code>(excess: u8) -> bool {
    C::BITS == 8 && excess == 0
}

/// First code of unit `first` of a panel.
pub(super) fn codes_of<C: Code>(codes: *const u8, first: usize, unit: usize) -> *const u8 {
    codes.wrapping_add(first * unit / CHUNK * C::BITS * 64)
}

/// Unpacks the codes of `units` units from `first` on.
///
/// # Safety
/// The instructions of [`super::Units`]; the units are the panel's; room for [`WEIGHTS`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn unpack<C: Code>(
    code: C,
    (codes, excess): (*const u8, u8),
    [first, units, unit]: [usize; 3],
    to: *mut f32,
) {
    let excess = _mm512_set1_epi8(excess as i8);
    // Units have 16, 32 or 64 columns; a division for every vector would cost more than the vector.
    let (lines, shift) = (unit / 4, (unit / 4).ilog2());
    let double = usize::from(C::NARROW);
    // SAFETY: the caller's promise.
    unsafe {
        let codes = codes_of::<C>(codes, first, unit);
        for chunk in 0..(units * unit).div_ceil(CHUNK) {
            let bytes = code.bytes(codes.add(chunk * C::BITS * 64), AHEAD);
            for i in 0..VECTORS {
                let line = chunk * VECTORS + i;
                // Lines of the units before, twice where codes are narrow.
                let before = line >> shift << shift << double;
                let byte = _mm512_sub_epi8(bytes[i], excess);
                let to = to.cast::<u8>().add((before + (line & (lines - 1))) * 64);
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
    }
}

/// Brings the scales of `units` units from `first` on to f32, for each digit.
///
/// # Safety
/// The instructions of [`super::Units`]; the units are the panel's; room for [`SCALES`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn widen_scales<C: Code>(
    scales: Scales,
    [first, units]: [usize; 2],
    to: *mut f32,
) {
    for unit in 0..units {
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, offset) = scales.of(first + unit);
            let to = to.add(unit * 4 * LANES);
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
    /// Rows of the tile: four, eight or sixteen.
    pub(super) class: usize,
    /// Whether weights have a sign.
    pub(super) signed: bool,
    pub(super) offsets: bool,
    /// Activations and their words, from the first unit on.
    pub(super) x: (*const u8, *const f32),
    pub(super) weights: *const u8,
    /// Bytes that are worth asking for on the way, as many as the weights have.
    pub(super) ahead: Option<*const u8>,
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
    /// The tile that takes the next product; the two before it hold the last ones.
    phase: usize,
    /// The block whose last products are still in tiles, and where its sums go.
    before: Option<(Block, *mut u8)>,
}

impl<const NARROW: bool> Pipeline<NARROW> {
    const DIGITS: usize = if NARROW { 2 } else { 3 };

    /// `results` is room for [`RESULTS`].
    pub(super) fn new(results: *mut f32) -> Self {
        Self { results: results.cast(), odd: false, phase: 0, before: None }
    }

    /// Adds a block's products to its sums, in the end: call [`Pipeline::finish`] before looking at them.
    ///
    /// # Safety
    /// The instructions of [`super::Units`] and tiles, configured for the class and the recipe; every pointer of the block as its field
    /// says: weights until this returns, the others until a further block was pushed or the pipeline is finished.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn push(&mut self, block: Block) {
        let to = self.results.wrapping_add(if self.odd { WAITING * 4 } else { 0 });
        let before = self.before.as_ref().map(|(block, results)| (block, *results));
        // SAFETY: the caller's promise; the blocks before and now use different halves of the results.
        unsafe {
            match self.phase {
                0 => block.products::<0, NARROW>(to, before),
                1 => block.products::<1, NARROW>(to, before),
                2 => block.products::<2, NARROW>(to, before),
                _ => block.products::<3, NARROW>(to, before),
            }
        }
        self.phase = (self.phase + block.units * Self::DIGITS) % 4;
        self.odd = !self.odd;
        self.before = Some((block, to));
    }

    /// Brings everything to its sums.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn finish(&mut self) {
        let Some((block, results)) = self.before.take() else { return };
        // SAFETY: the caller's promise.
        unsafe {
            for i in 0..LAG {
                let to = block.last_place::<NARROW>(i, results);
                numbered!(self.phase + 4 - LAG + i, store(to));
            }
            block.add_rest::<NARROW>(results, 0);
        }
    }
}

/// Where the sums of product `t` of a block wait.
#[inline(always)]
fn place<const NARROW: bool>(t: usize, results: *mut u8) -> *mut u8 {
    let digits = Pipeline::<NARROW>::DIGITS;
    results.wrapping_add((t / digits * 3 + t % digits) * LANES * 64)
}

impl Block {
    /// Product `T`: digit `T mod DIGITS` of unit `T / DIGITS`, in tile `T + PHASE`.
    ///
    /// A load waits for the product that still reads its tile, so neighbours take turns.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline(always)]
    unsafe fn product<const T: usize, const PHASE: usize, const NARROW: bool>(&self) {
        let digits = const { if NARROW { 2 } else { 3 } };
        let (i, digit) = (T / digits, T % digits);
        let (slab, columns) = (self.recipe.slab(), self.recipe.unit());
        let x = self.x.0.wrapping_add(i * self.recipe.unit_bytes(self.class));
        let bytes = columns / 4 * 64;
        let w = self.weights.wrapping_add(i * if NARROW { 2 * bytes } else { bytes });
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(ahead) = self.ahead {
                // A few at a time: many at once would wait for each other.
                let lines = bytes.div_ceil(64 * digits);
                for line in T * lines..(T + 1) * lines {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * 64).cast());
                }
            }
            if NARROW && columns > CHUNK {
                // Both halves of a digit have lines of their own.
                if digit == 0 {
                    load!(4, w, 64_usize);
                    load!(5, w.wrapping_add(bytes), 64_usize);
                }
                load!(6, x.wrapping_add(2 * digit * self.class * slab), slab);
                numbered!(T + PHASE, zero());
                numbered!(T + PHASE, dot(6, 4, self.signed));
                load!(7, x.wrapping_add((2 * digit + 1) * self.class * slab), slab);
                numbered!(T + PHASE, dot(7, 5, self.signed));
                return;
            }
            let odd = i % 2 == 1;
            if digit == 0 {
                if odd { load!(5, w, 64_usize) } else { load!(4, w, 64_usize) }
            }
            let x = x.wrapping_add(digit * self.class * slab);
            if T % 2 == 1 {
                load!(7, x, slab)
            } else {
                load!(6, x, slab)
            }
            numbered!(T + PHASE, zero());
            match (odd, T % 2) {
                (false, 0) => numbered!(T + PHASE, dot(6, 4, self.signed)),
                (false, _) => numbered!(T + PHASE, dot(7, 4, self.signed)),
                (true, 0) => numbered!(T + PHASE, dot(6, 5, self.signed)),
                (true, _) => numbered!(T + PHASE, dot(7, 5, self.signed)),
            }
        }
    }

    /// Where the sums of product `i` of the last [`LAG`] wait.
    #[inline(always)]
    fn last_place<const NARROW: bool>(&self, i: usize, results: *mut u8) -> *mut u8 {
        place::<NARROW>(self.units * Pipeline::<NARROW>::DIGITS - LAG + i, results)
    }

    /// All products; those before the last [`LAG`] are stored at `to`. Meanwhile the block before is stored and added.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn products<const PHASE: usize, const NARROW: bool>(
        &self,
        to: *mut u8,
        before: Option<(&Self, *mut u8)>,
    ) {
        let all = self.units * Pipeline::<NARROW>::DIGITS;
        macro_rules! each {
            ($($t:literal),*) => {$(
                if $t < all {
                    self.product::<$t, PHASE, NARROW>();
                    if $t >= LAG {
                        let to = place::<NARROW>($t - LAG, to);
                        numbered!($t + PHASE + 4 - LAG, store(to));
                    } else if let Some((block, results)) = before {
                        let to = block.last_place::<NARROW>($t, results);
                        numbered!($t + PHASE + 4 - LAG, store(to));
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
            if let Some((block, results)) = before {
                block.add_rest::<NARROW>(results, shares::<NARROW>(all));
            }
        }
    }

    /// The share of the adding that comes after product `T` of the next block.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline(always)]
    unsafe fn share<const T: usize, const NARROW: bool>(&self, results: *const u8) {
        let turn = const { shares::<NARROW>(T) };
        let due = const { shares::<NARROW>(T + 1) > shares::<NARROW>(T) };
        // SAFETY: the caller's promise.
        unsafe {
            if due && turn * 4 < self.class {
                self.add::<4, NARROW>(results, turn * 4);
            }
        }
    }

    /// The shares from number `first` on.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add_rest<const NARROW: bool>(&self, results: *const u8, first: usize) {
        for turn in first..self.class / 4 {
            // SAFETY: the caller's promise.
            unsafe { self.add::<4, NARROW>(results, turn * 4) };
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
                    let words = self.x.1.add(i * 4 * self.class + first);
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

/// Shares of four rows that are added while a further block makes `products` products: none of the first four, since the
/// last sums are stored after the second.
const fn shares<const NARROW: bool>(products: usize) -> usize {
    let due = products.saturating_sub(4);
    let due = if NARROW { due } else { due.div_ceil(2) };
    if due < LANES / 4 { due } else { LANES / 4 }
}
