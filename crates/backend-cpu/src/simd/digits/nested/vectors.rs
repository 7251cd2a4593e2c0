//! A few rows with one panel, by dot products of bytes: codes are unpacked in registers and used at once.

use super::super::super::isa::LANES;
use super::super::code::{AHEAD, Code};
use super::super::pack::CHUNK;
use super::super::vnni::Few;
use super::{DIGITS, Levels, STEP, add_total, carry, factors};
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;

/// A panel, and where the rows' digits and words begin.
pub(in super::super) struct Panel {
    pub(in super::super) codes: *const u8,
    pub(in super::super) levels: Levels,
    /// What every stored code has too much, as a power of two.
    pub(in super::super) excess: Option<u32>,
    pub(in super::super) digits: *const u8,
    pub(in super::super) words: *const f32,
    /// Rows of the tile.
    pub(in super::super) class: usize,
    /// Columns of a sum: 16 or 32.
    pub(in super::super) part: usize,
    pub(in super::super) blocks: usize,
}

impl Few for Panel {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn rows<C: Code, const R: usize>(&self, code: C, first: usize) -> [__m512; R] {
        let mut sums = [_mm512_setzero_ps(); R];
        for block in 0..self.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let totals = if self.part == LANES {
                    self.totals::<C, R, true>(code, block, first)
                } else {
                    self.totals::<C, R, false>(code, block, first)
                };
                let factors = factors(self.levels.factor(block));
                for r in 0..R {
                    sums[r] = add_total(sums[r], carry(totals[r]), factors);
                }
                self.offsets(block, first, &mut sums);
            }
        }
        sums
    }
}

impl Panel {
    /// Exact totals of a superblock by digits; parts have 16 columns where `HALF`, else 32.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn totals<C: Code, const R: usize, const HALF: bool>(
        &self,
        code: C,
        block: usize,
        first: usize,
    ) -> [[__m512i; DIGITS]; R] {
        let mut totals = [[_mm512_setzero_si512(); DIGITS]; R];
        let mut dots = [[_mm512_setzero_si512(); DIGITS]; R];
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = code.bytes(self.codes.add(chunk * C::BITS * 64), AHEAD);
                for half in 0..2 {
                    let column = chunk * CHUNK + half * LANES;
                    let step = column / STEP * DIGITS * STEP * self.class + column % STEP;
                    for r in 0..R {
                        for p in 0..DIGITS {
                            let at = step + (p * self.class + first + r) * STEP;
                            let x = self.digits.add(at).cast::<i32>();
                            for j in 0..4 {
                                let x = _mm512_set1_epi32(x.add(j).read_unaligned());
                                dots[r][p] =
                                    _mm512_dpbusd_epi32(dots[r][p], bytes[4 * half + j], x);
                            }
                        }
                    }
                    if HALF || half == 1 {
                        self.add_part(column, first, &mut dots, &mut totals);
                    }
                }
            }
        }
        totals
    }

    /// Adds the dot products of the part that ends with sixteen columns from `column` on, and clears them.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add_part<const R: usize>(
        &self,
        column: usize,
        first: usize,
        dots: &mut [[__m512i; DIGITS]; R],
        totals: &mut [[__m512i; DIGITS]; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let s = _mm512_cvtepi8_epi32(self.levels.whole(column));
            let words = self.words.add(column / self.part * 4 * self.class + first);
            for r in 0..R {
                for p in 0..DIGITS {
                    let mut dot = dots[r][p];
                    if let Some(excess) = self.excess {
                        let sum = *words.add((1 + p) * self.class + r).cast::<i32>() << excess;
                        dot = _mm512_sub_epi32(dot, _mm512_set1_epi32(sum));
                    }
                    totals[r][p] = _mm512_add_epi32(totals[r][p], _mm512_mullo_epi32(dot, s));
                }
                dots[r] = [_mm512_setzero_si512(); DIGITS];
            }
        }
    }

    /// Adds the offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn offsets<const R: usize>(&self, block: usize, first: usize, sums: &mut [__m512; R]) {
        // SAFETY: the caller's promise.
        let Some(offsets) = (unsafe { self.levels.offsets(block) }) else { return };
        for column in (block * SUPERBLOCK..(block + 1) * SUPERBLOCK).step_by(self.part) {
            // SAFETY: the caller's promise.
            unsafe {
                let offset = offsets.of(column);
                let words = self.words.add(column / self.part * 4 * self.class + first);
                for r in 0..R {
                    sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(*words.add(r)), offset, sums[r]);
                }
            }
        }
    }
}
