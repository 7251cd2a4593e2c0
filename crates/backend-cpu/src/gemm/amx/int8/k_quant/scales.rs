//! Scales for tiles, by AVX-512.

use crate::gemm::decode::scales_at;
use crate::gemm::int8::k_quant::{NestedScales, STEP};
use crate::simd::avx512::Avx512;
use forerun_base::{SUPERBLOCK, ScaleType};
use std::arch::x86_64::*;

/// Steps of a superblock.
pub(crate) const STEPS: usize = SUPERBLOCK / STEP;

impl NestedScales {
    /// The same, asking for scales `prefetch_bytes` bytes before their use.
    pub(crate) fn with_prefetch(self, prefetch_bytes: usize) -> Self {
        Self { prefetch_bytes, ..self }
    }

    /// The factor of a superblock.
    ///
    /// # Safety
    /// The instructions of [`crate::gemm::int8::k_quant::Int8Gemm`]; the superblock is one of the panel's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn d(&self, block: usize) -> __m512 {
        let at = self.d_at(block);
        // SAFETY: the caller's promise.
        unsafe {
            self.prefetch_scales_l1(at);
            scales_at(Avx512::new_unchecked(), ScaleType::F16, at)
        }
    }

    /// Asks the first-level cache for a superblock of a plane, ahead of `at`.
    #[inline(always)]
    fn prefetch_scales_l1(&self, at: *const u8) {
        for line in 0..self.lines() {
            // SAFETY: a prefetch may point anywhere.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(
                    at.wrapping_add(self.prefetch_bytes + line * 64).cast(),
                );
            }
        }
    }

    /// The whole numbers `s` of the group of a column.
    ///
    /// # Safety
    /// As for [`NestedScales::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn s(&self, column: usize) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(self.s_at(column).cast()) }
    }

    /// The offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`NestedScales::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn offsets(&self, block: usize) -> Option<NestedOffsets<'_>> {
        let at = self.offset_d_at(block)?;
        self.prefetch_scales_l1(at);
        // SAFETY: the caller's promise.
        let factor = unsafe { scales_at(Avx512::new_unchecked(), ScaleType::F16, at) };
        Some(NestedOffsets { levels: self, factor })
    }
}

/// The offsets of a superblock.
pub(crate) struct NestedOffsets<'a> {
    levels: &'a NestedScales,
    factor: __m512,
}

impl NestedOffsets<'_> {
    /// Those of the group of a column.
    ///
    /// # Safety
    /// As for [`NestedScales::factor`]; the column is one of the superblock's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn of(&self, column: usize) -> __m512 {
        let s = self.levels.offset_s_at(column);
        // SAFETY: the caller's promise.
        let s = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(s.cast())) };
        _mm512_mul_ps(self.factor, _mm512_cvtepi32_ps(s))
    }
}
