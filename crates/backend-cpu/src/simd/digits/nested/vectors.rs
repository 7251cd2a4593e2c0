//! A few rows with one panel, by dot products of bytes: codes are unpacked in registers and used at once.

use super::super::super::isa::LANES;
use super::super::code::Code;
use super::super::pack::{CHUNK, WORDS};
use super::super::vnni::{Dots, Few};
use super::{DIGITS, Levels, STEP, add_total, carry, factors};
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;
use std::array::from_fn;

/// A panel, and where the rows' digits and words begin.
pub(in super::super) struct Panel {
    pub(in super::super) codes: *const u8,
    pub(in super::super) levels: Levels,
    /// Whether stored codes are too large, see [`super::super::pack`].
    pub(in super::super) raised: bool,
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
    unsafe fn rows<C: Code, const R: usize>(
        &self,
        code: C,
        first: usize,
        out: &mut [[f32; LANES]; R],
    ) {
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
        // SAFETY: sixteen f32 for each row.
        unsafe { (0..R).for_each(|r| _mm512_storeu_ps(out[r].as_mut_ptr(), sums[r])) };
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
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            // SAFETY: the caller's promise.
            unsafe {
                let mut dots = self.begun::<R>(chunk * CHUNK, first);
                let codes = code.bytes_at_once(self.codes.add(chunk * C::BITS * 64));
                for half in 0..2 {
                    let column = chunk * CHUNK + half * LANES;
                    let step = column / STEP * DIGITS * STEP * self.class + column % STEP;
                    let x = self.digits.add(step + first * STEP);
                    let x: [_; DIGITS] = from_fn(|p| x.wrapping_add(p * self.class * STEP));
                    dots.add(from_fn(|j| codes[4 * half + j]), &x, STEP, half);
                    if HALF || half == 1 {
                        self.add_part(column, &dots, &mut totals);
                    }
                    if HALF && half == 0 {
                        dots = self.begun::<R>(column + LANES, first);
                    }
                }
            }
        }
        totals
    }

    /// The words of the part of a column, of the rows from `first` on.
    #[inline(always)]
    pub(in super::super) fn words(&self, column: usize, first: usize) -> *const f32 {
        let part = column >> self.part.ilog2();
        self.words.wrapping_add(part * WORDS * self.class + first)
    }

    /// What the sums of the part of a column begin with: what raised codes will be too much, less.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn begun<const R: usize>(&self, column: usize, first: usize) -> Dots<R> {
        if !self.raised {
            return Dots::none();
        }
        let words = self.words(column, first);
        // SAFETY: the caller's promise.
        unsafe { Dots::less(words, self.class) }
    }

    /// Adds the dot products of the part that ends with sixteen columns from `column` on.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn add_part<const R: usize>(
        &self,
        column: usize,
        dots: &Dots<R>,
        totals: &mut [[__m512i; DIGITS]; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let s = _mm512_cvtepi8_epi32(self.levels.whole(column));
            for r in 0..R {
                let dots = dots.of(r);
                for p in 0..DIGITS {
                    let scaled = _mm512_mullo_epi32(dots[p], s);
                    totals[r][p] = _mm512_add_epi32(totals[r][p], scaled);
                }
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
                let words = self.words(column, first);
                for r in 0..R {
                    sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(*words.add(r)), offset, sums[r]);
                }
            }
        }
    }
}
