//! A tile of sixteen rows with superblocks of panels, by tiles of bytes.
//!
//! # Layout
//! Each digit is a tile and meets tiles of high and of low bytes; products of equal power share a tile, and results are
//! `[power][row][channel]`, the highest power of 256 first. Tiles 0 to 3 take sums, 4 and 5 weights, 6 and 7 activations.

use super::super::super::amx::tile::Configured;
use super::super::super::isa::LANES;
use super::unpack::TILE;
use super::{DIGITS, STEP, STEPS, add_total, carry};
use std::arch::asm;
use std::arch::x86_64::*;

/// Powers of 256 in the product of three digits and two bytes.
pub(super) const POWERS: usize = 4;
/// f32 of the results of a superblock.
const RESULT: usize = POWERS * LANES * LANES;
/// f32 of room for the results of two.
pub(super) const RESULTS: usize = 2 * RESULT;

/// Shapes the tiles.
///
/// # Safety
/// As for [`Configured::new`].
pub(super) unsafe fn configure() -> Configured {
    // SAFETY: the caller's promise.
    unsafe { Configured::bytes(LANES, STEP) }
}

/// One superblock of a panel with a tile of rows.
pub(super) struct Block {
    /// Activations and their words, from the superblock's first column on.
    pub(super) x: (*const u8, *const f32),
    /// Tiles of weights.
    pub(super) weights: *const u8,
    pub(super) factors: *const f32,
    /// Sums with offsets.
    pub(super) parts: usize,
    /// Whether words were raised.
    pub(super) raised: bool,
    /// `[row][channel]`.
    pub(super) sums: *mut f32,
    /// Whether the sums start here.
    pub(super) fresh: bool,
}

/// Superblocks on their way: while the products of one run, the results of the one before are added. A store waits for its product,
/// and what it stored reaches loads only through the cache, so neither should come at once.
pub(super) struct Pipeline {
    results: *mut u8,
    /// Which half of the results the next one takes.
    odd: bool,
    before: Option<(Block, *const u8)>,
}

impl Pipeline {
    /// `results` is room for [`RESULTS`].
    pub(super) fn new(results: *mut f32) -> Self {
        Self { results: results.cast(), odd: false, before: None }
    }

    /// Starts a superblock and brings the one before to its sums; after each step `beside` has its turn.
    ///
    /// # Safety
    /// The instructions of [`super::super::Units`] and tiles, configured; every pointer of the block as its field says, until
    /// the next push or the end.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn push(&mut self, block: Block, mut beside: impl FnMut(usize)) {
        let to = self.results.wrapping_add(if self.odd { RESULT * 4 } else { 0 });
        // SAFETY: the caller's promise; the superblocks before and now use different halves of the results.
        unsafe {
            zero();
            for step in 0..STEPS {
                let x = block.x.0.wrapping_add(step * DIGITS * TILE);
                products(x, block.weights.wrapping_add(step * 2 * TILE));
                beside(step);
                if let Some((before, results)) = &self.before {
                    before.add::<LANES, 4>(*results, 4 * step);
                }
            }
            store(to);
        }
        self.odd = !self.odd;
        self.before = Some((block, to));
    }

    /// Brings the last superblock to its sums.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn finish(&mut self) {
        if let Some((before, results)) = self.before.take() {
            for step in 0..STEPS {
                // SAFETY: the caller's promise.
                unsafe { before.add::<LANES, 4>(results, 4 * step) };
            }
        }
    }
}

/// Clears all sums.
///
/// # Safety
/// Tiles are configured.
#[inline(always)]
pub(super) unsafe fn zero() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem),
        );
    }
}

/// Adds the products of a step.
///
/// # Safety
/// As for [`Pipeline::push`].
#[inline(always)]
unsafe fn products(x: *const u8, w: *const u8) {
    let [middle, low] = [1, 2].map(|digit| x.wrapping_add(digit * TILE));
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm4, [{w} + {line}]",
            "tileloadd tmm6, [{x} + {line}]",
            "tdpbssd tmm0, tmm6, tmm4",
            "tileloadd tmm5, [{second} + {line}]",
            "tdpbsud tmm1, tmm6, tmm5",
            "tileloadd tmm7, [{middle} + {line}]",
            "tdpbssd tmm1, tmm7, tmm4",
            "tdpbsud tmm2, tmm7, tmm5",
            "tileloadd tmm6, [{low} + {line}]",
            "tdpbssd tmm2, tmm6, tmm4",
            "tdpbsud tmm3, tmm6, tmm5",
            x = in(reg) x, middle = in(reg) middle, low = in(reg) low,
            w = in(reg) w, second = in(reg) w.wrapping_add(TILE), line = in(reg) 64_usize,
            options(nostack, readonly),
        );
    }
}

/// Stores the results of a superblock.
///
/// # Safety
/// As for [`Pipeline::push`].
#[inline(always)]
unsafe fn store(to: *mut u8) {
    let [second, third, fourth] = [1, 2, 3].map(|i| to.wrapping_add(i * TILE));
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilestored [{to} + {line}], tmm0",
            "tilestored [{second} + {line}], tmm1",
            "tilestored [{third} + {line}], tmm2",
            "tilestored [{fourth} + {line}], tmm3",
            to = in(reg) to, second = in(reg) second, third = in(reg) third,
            fourth = in(reg) fourth, line = in(reg) 64_usize, options(nostack),
        );
    }
}

impl Block {
    /// Adds the results of `R` of `CLASS` rows to their sums.
    ///
    /// # Safety
    /// As for [`Pipeline::push`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn add<const CLASS: usize, const R: usize>(
        &self,
        results: *const u8,
        row: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = self.sums.add(row * LANES);
            let factor = |i: usize| _mm512_load_ps(self.factors.add(i * LANES));
            let both = [factor(0), factor(1)];
            let mut some = [_mm512_setzero_ps(); R];
            for r in 0..R {
                if !self.fresh {
                    some[r] = _mm512_load_ps(sums.add(r * LANES));
                }
                let mut total = total::<CLASS>(results, row + r);
                if self.raised {
                    let words = self.x.1.cast::<i32>().add(row + r);
                    let above = |i: usize| _mm512_set1_epi32(*words.add(i * CLASS));
                    total[0] = _mm512_sub_epi32(total[0], above(1));
                    total[2] = _mm512_sub_epi32(total[2], above(2));
                }
                some[r] = add_total(some[r], carry(total), both);
            }
            for part in 0..self.parts {
                let (offset, words) = (factor(2 + part), self.x.1.add(part * 4 * CLASS + row));
                for r in 0..R {
                    some[r] = _mm512_fmadd_ps(_mm512_set1_ps(*words.add(r)), offset, some[r]);
                }
            }
            for r in 0..R {
                _mm512_store_ps(sums.add(r * LANES), some[r]);
            }
        }
    }
}

/// The total of a row by digits.
///
/// # Safety
/// As for [`Pipeline::push`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn total<const CLASS: usize>(results: *const u8, row: usize) -> [__m512i; DIGITS] {
    // SAFETY: the caller's promise.
    let line = |i: usize| unsafe { _mm512_load_si512(results.add(i * 64).cast()) };
    let [top, high, middle, low] = [0, 1, 2, 3].map(|power| line(power * CLASS + row));
    // Of raised words this may leave 32 bits, into which it comes back with what they are too much.
    [_mm512_add_epi32(_mm512_slli_epi32::<8>(top), high), middle, low]
}
