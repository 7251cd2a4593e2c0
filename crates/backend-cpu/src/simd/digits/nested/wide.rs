//! Scales for tiles, by AVX-512.

use super::super::super::avx512::Avx512;
use super::super::super::codes::scales_at;
use super::{Levels, STEP};
use forerun_base::{SUPERBLOCK, ScaleType};
use std::arch::x86_64::*;

/// Steps of a superblock.
pub(super) const STEPS: usize = SUPERBLOCK / STEP;

impl Levels {
    /// The same, asking for scales `ahead` bytes before their use.
    pub(super) fn asking(self, ahead: usize) -> Self {
        Self { ahead, ..self }
    }

    /// The factor of a superblock.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the superblock is one of the panel's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn factor(&self, block: usize) -> __m512 {
        let at = self.factor_at(block);
        // SAFETY: the caller's promise.
        unsafe {
            self.ask_near(at);
            scales_at(Avx512::promised(), ScaleType::F16, at)
        }
    }

    /// Asks the first-level cache for a superblock of a plane, ahead of `at`.
    #[inline(always)]
    fn ask_near(&self, at: *const u8) {
        for line in 0..self.lines() {
            // SAFETY: a prefetch may point anywhere.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(self.ahead + line * 64).cast());
            }
        }
    }

    /// The whole numbers `s` of the group of a column.
    ///
    /// # Safety
    /// As for [`Levels::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn whole(&self, column: usize) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(self.whole_at(column).cast()) }
    }

    /// The offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`Levels::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn offsets(&self, block: usize) -> Option<Offsets<'_>> {
        let at = self.offset_factor_at(block)?;
        self.ask_near(at);
        // SAFETY: the caller's promise.
        let factor = unsafe { scales_at(Avx512::promised(), ScaleType::F16, at) };
        Some(Offsets { levels: self, factor })
    }
}

/// The offsets of a superblock.
pub(super) struct Offsets<'a> {
    levels: &'a Levels,
    factor: __m512,
}

impl Offsets<'_> {
    /// Those of the group of a column.
    ///
    /// # Safety
    /// As for [`Levels::factor`]; the column is one of the superblock's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn of(&self, column: usize) -> __m512 {
        let s = self.levels.offset_whole_at(column);
        // SAFETY: the caller's promise.
        let s = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(s.cast())) };
        _mm512_mul_ps(self.factor, _mm512_cvtepi32_ps(s))
    }
}
