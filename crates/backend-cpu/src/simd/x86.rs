//! Helpers shared by AVX2 and AVX-512.

use std::arch::x86_64::*;

/// Exactly `BYTES` (4, 6, 8, 10, 12 or 16) bytes, zeros above.
///
/// # Safety
/// `at` is readable for `BYTES` bytes; the CPU supports SSE4.1.
#[inline(always)]
pub(crate) unsafe fn load_bytes<const BYTES: usize>(at: *const u8) -> __m128i {
    // SAFETY: the reads of each arm add up to `BYTES`.
    unsafe {
        match BYTES {
            4 => _mm_cvtsi32_si128(at.cast::<i32>().read_unaligned()),
            6 => {
                let low = _mm_cvtsi32_si128(at.cast::<i32>().read_unaligned());
                _mm_insert_epi16::<2>(low, at.add(4).cast::<i16>().read_unaligned().into())
            }
            8 => _mm_loadl_epi64(at.cast()),
            10 => {
                let low = _mm_loadl_epi64(at.cast());
                _mm_insert_epi16::<4>(low, at.add(8).cast::<i16>().read_unaligned().into())
            }
            12 => {
                let low = _mm_loadl_epi64(at.cast());
                _mm_insert_epi32::<2>(low, at.add(8).cast::<i32>().read_unaligned())
            }
            _ => _mm_loadu_si128(at.cast()),
        }
    }
}

/// FP8 e4m3 codes as f16 of 1/256 their value: sign, exponent and mantissa only change places.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
pub(crate) unsafe fn e4m3_as_f16(codes: __m128i) -> __m256i {
    // SAFETY: the CPU supports AVX2 (contract above); registers only.
    unsafe {
        let moved = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
        _mm256_and_si256(moved, _mm256_set1_epi16(0xbf80_u16 as i16))
    }
}

/// The last three folds of a sum of lanes.
///
/// # Safety
/// The CPU supports AVX.
#[inline(always)]
pub(crate) unsafe fn sum8(a: __m256) -> f32 {
    // SAFETY: the CPU supports AVX (contract above); registers only.
    unsafe {
        let by4 = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
        let by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
        _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)))
    }
}
