//! A few rows with one panel whose scales are nested.

use super::super::code::Code;
use super::super::nested::{STEP, Vectors};
use super::super::pack::CHUNK;
use super::super::vnni::Few;
use super::{DIGITS, Dots, Half, Pair, codes, put};
use crate::simd::avx2::widen;
use crate::simd::isa::LANES;
use forerun_base::{SUPERBLOCK, ScaleType};
use std::arch::x86_64::*;
use std::array::from_fn;

/// Exact totals of a superblock, by row and digit.
type Totals<const R: usize> = [[Pair<__m256i>; DIGITS]; R];

impl Few for Half<Vectors> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<C: Code, const R: usize>(
        &self,
        _code: C,
        first: usize,
        out: &mut [[f32; LANES]; R],
    ) {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for block in 0..self.0.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let totals = self.totals::<C, R>(block, first);
                let d = widen(ScaleType::F16, self.0.levels.factor_at(block));
                for half in 0..2 {
                    let factors = [_mm256_mul_ps(d[half], _mm256_set1_ps(65536.0)), d[half]];
                    for r in 0..R {
                        let total = carry(totals[r].map(|plane| plane[half]));
                        for i in 0..2 {
                            let whole = _mm256_cvtepi32_ps(total[i]);
                            sums[r][half] = _mm256_fmadd_ps(whole, factors[i], sums[r][half]);
                        }
                    }
                }
                self.offsets(block, first, &mut sums);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { put(sums, out) };
    }
}

impl Half<Vectors> {
    /// Exact totals of a superblock.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn totals<C: Code, const R: usize>(&self, block: usize, first: usize) -> Totals<R> {
        let panel = &self.0;
        let mut totals = [[[_mm256_setzero_si256(); 2]; DIGITS]; R];
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            // SAFETY: the caller's promise.
            unsafe {
                let all = codes::<C>(panel.codes.add(chunk * C::BITS * 64));
                for column in (chunk * CHUNK..(chunk + 1) * CHUNK).step_by(panel.part) {
                    let words = panel.words(column, first);
                    let step = column / STEP * DIGITS * STEP * panel.class + column % STEP;
                    let s = whole(panel.levels.whole_at(column));
                    for p in 0..DIGITS {
                        let x = step + (p * panel.class + first) * STEP;
                        let x = panel.digits.wrapping_add(x);
                        let mut dots = Dots::<R, 1>::begun(panel.raised, words, [panel.class, p]);
                        if panel.part < CHUNK {
                            let some: [_; 4] = from_fn(|j| all[column % CHUNK / 4 + j]);
                            dots.add::<C, 4>(&some, [x], STEP);
                        } else {
                            dots.add::<C, 8>(&all, [x], STEP);
                        }
                        for r in 0..R {
                            for half in 0..2 {
                                let scaled = _mm256_mullo_epi32(dots.0[r][0][half], s[half]);
                                let total = &mut totals[r][p][half];
                                *total = _mm256_add_epi32(*total, scaled);
                            }
                        }
                    }
                }
            }
        }
        totals
    }

    /// Adds the offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn offsets<const R: usize>(
        &self,
        block: usize,
        first: usize,
        sums: &mut [Pair<__m256>; R],
    ) {
        let panel = &self.0;
        let Some(d) = panel.levels.offset_factor_at(block) else { return };
        // SAFETY: the caller's promise.
        unsafe {
            let d = widen(ScaleType::F16, d);
            for column in (block * SUPERBLOCK..(block + 1) * SUPERBLOCK).step_by(panel.part) {
                let words = panel.words(column, first);
                let s = whole(panel.levels.offset_whole_at(column));
                for half in 0..2 {
                    let offset = _mm256_mul_ps(d[half], _mm256_cvtepi32_ps(s[half]));
                    for r in 0..R {
                        let of_row = _mm256_set1_ps(*words.add(r));
                        sums[r][half] = _mm256_fmadd_ps(of_row, offset, sums[r][half]);
                    }
                }
            }
        }
    }
}

/// Sixteen whole numbers of a byte.
///
/// # Safety
/// AVX2; sixteen bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn whole(at: *const u8) -> Pair<__m256i> {
    // SAFETY: the caller's promise.
    [0, LANES / 2].map(|from| unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(from).cast())) })
}

/// As [`super::super::nested`] brings digits to two parts.
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn carry([high, middle, low]: [__m256i; DIGITS]) -> [__m256i; 2] {
    let below = _mm256_srli_epi32::<16>(_mm256_slli_epi32::<24>(middle));
    let low = _mm256_add_epi32(low, below);
    let high = _mm256_add_epi32(high, _mm256_srai_epi32::<8>(middle));
    let high = _mm256_add_epi32(high, _mm256_srai_epi32::<16>(low));
    [high, _mm256_and_si256(low, _mm256_set1_epi32(0xffff))]
}
