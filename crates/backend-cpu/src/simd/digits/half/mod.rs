//! The same products on processors without dot products of bytes, by AVX2: vectors of 32 bytes, codes of up to six bits.
//!
//! # Numerics
//! Two products of a code and a digit are summed in sixteen bits, and as many of those as surely fit before they are widened. Whole numbers
//! are exact however they are summed, and what follows is done in the order of [`super::vnni`], so bits are the same.

mod nested;
mod vectors;
mod write;

pub(super) use write::write;

use super::super::isa::LANES;
use super::code::{AHEAD, Code, DIGITS};
use std::arch::x86_64::*;

/// What multiplies a few rows with a panel, by these instructions.
pub(super) struct Half<T>(pub(super) T);

/// The two halves of sixteen channels.
type Pair<T> = [T; 2];

/// The largest codes of this module, in bits.
pub(super) const MOST_BITS: u8 = 6;

/// The codes of 32 columns, as [`Code::bytes`].
///
/// # Safety
/// AVX2; `BITS` vectors of 64 bytes at `from`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn codes<C: Code>(from: *const u8) -> [Pair<__m256i>; 8] {
    let mut out = [[_mm256_setzero_si256(); 2]; 8];
    let [low, high] = const { C::PLANES };
    // SAFETY: the caller's promise: the first plane, then the second.
    unsafe {
        for i in 0..low {
            fields(from.add(i * 64), [low, 0], &mut out[i * (8 / low)..(i + 1) * (8 / low)]);
        }
        for i in 0..high {
            let each = 8 / high.max(1);
            fields(from.add((low + i) * 64), [high, low], &mut out[i * each..(i + 1) * each]);
        }
    }
    out
}

/// Adds the fields of a vector of 64 bytes, of `bits` bits each, to codes from bit `to` on.
///
/// # Safety
/// AVX2; 64 bytes at `from`.
#[inline(always)]
unsafe fn fields(from: *const u8, [bits, to]: [usize; 2], out: &mut [Pair<__m256i>]) {
    // SAFETY: the caller's promise; a prefetch may point anywhere.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(AHEAD).cast());
        let all = [0, 32].map(|half| _mm256_loadu_si256(from.add(half).cast()));
        let mask = _mm256_set1_epi8((((1_u32 << bits) - 1) << to) as i8);
        for (field, out) in out.iter_mut().enumerate() {
            // Counts are constants wherever this is used. Bits that cross into the byte beside are masked.
            let right = _mm_cvtsi32_si128((field * bits).saturating_sub(to) as i32);
            let left = _mm_cvtsi32_si128(to.saturating_sub(field * bits) as i32);
            for half in 0..2 {
                let moved = if field * bits >= to {
                    _mm256_srl_epi16(all[half], right)
                } else {
                    _mm256_sll_epi16(all[half], left)
                };
                out[half] = _mm256_or_si256(out[half], _mm256_and_si256(moved, mask));
            }
        }
    }
}

/// Exact sums of `R` rows by `P` planes.
struct Dots<const R: usize, const P: usize>([[Pair<__m256i>; P]; R]);

impl<const R: usize, const P: usize> Dots<R, P> {
    /// Nothing, or where codes are `raised` what they will be too much, less: the words of a part for planes from `plane` on, for tiles
    /// of `class` rows.
    ///
    /// # Safety
    /// AVX2; words as [`super::pack`] says.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn begun(raised: bool, words: *const f32, [class, plane]: [usize; 2]) -> Self {
        let mut dots = Self([[[_mm256_setzero_si256(); 2]; P]; R]);
        if raised {
            for (r, row) in dots.0.iter_mut().enumerate() {
                for (p, sums) in row.iter_mut().enumerate() {
                    let at = words.wrapping_add((1 + plane + p) * class + r).cast::<i32>();
                    // SAFETY: the caller's promise.
                    *sums = [_mm256_set1_epi32(unsafe { *at }); 2];
                }
            }
        }
        dots
    }

    /// Adds `4·N` columns whose planes are at `x`, rows `slab` bytes apart.
    ///
    /// # Safety
    /// AVX2; codes have the bits of `C`, and every row the columns.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add<C: Code, const N: usize>(
        &mut self,
        codes: &[Pair<__m256i>; N],
        x: [*const u8; P],
        slab: usize,
    ) {
        // Two products are below 2^(BITS + 8), and sums of sixteen bits hold 2^15. More than four would be summed as a tree, for which
        // there are no registers.
        let together = const { if C::BITS < 5 { 4 } else { 1 << 7_usize.saturating_sub(C::BITS) } };
        let ones = _mm256_set1_epi16(1);
        for (p, x) in x.into_iter().enumerate() {
            let mut pairs = [[_mm256_setzero_si256(); 2]; R];
            for (j, code) in codes.iter().enumerate() {
                for r in 0..R {
                    let x = x.wrapping_add(r * slab + 4 * j).cast::<i32>();
                    // SAFETY: the caller's promise.
                    let digits = _mm256_set1_epi32(unsafe { x.read_unaligned() });
                    for half in 0..2 {
                        let products = _mm256_maddubs_epi16(code[half], digits);
                        pairs[r][half] = _mm256_add_epi16(pairs[r][half], products);
                    }
                }
                if (j + 1) % together == 0 || j + 1 == N {
                    for r in 0..R {
                        for half in 0..2 {
                            let wide = _mm256_madd_epi16(pairs[r][half], ones);
                            self.0[r][p][half] = _mm256_add_epi32(self.0[r][p][half], wide);
                        }
                        pairs[r] = [_mm256_setzero_si256(); 2];
                    }
                }
            }
        }
    }
}

/// Stores sums of sixteen channels for each row.
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put<const R: usize>(sums: [Pair<__m256>; R], out: &mut [[f32; LANES]; R]) {
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sums) in out.chunks_exact_mut(LANES / 2).zip(sums) {
            // SAFETY: eight f32.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sums) };
        }
    }
}
