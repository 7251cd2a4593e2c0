//! Unpacks FP8 codes of a panel to bf16 tiles, and its scales to f32.

use crate::gemm::decode::scales_at;
use crate::gemm::packed_weight::VECTOR;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use forerun_base::{Format, ScaleKind, ScaleType};
use std::arch::x86_64::*;

/// Bytes of a tile of weights.
pub(crate) const TILE: usize = 1024;
/// How far ahead codes are prefetched.
const PREFETCH_BYTES: usize = 4096;

/// How a format's codes and scales are read.
#[derive(Clone, Copy)]
pub(crate) struct Decoder {
    format: Format,
}

impl Decoder {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether the format has offsets, so that column sums are needed.
    pub(crate) fn offsets(&self) -> bool {
        matches!(self.format, Format::Grouped { offset: true, .. })
    }

    /// Type of scales and offsets, if the format has some. FP8 codes never have nested ones.
    pub(crate) fn scale(&self) -> Option<ScaleType> {
        match self.format {
            Format::Grouped { scale: ScaleKind::Float(float), .. } => Some(float),
            _ => None,
        }
    }

    /// Whether a scale covers steps of 16 columns: where groups are not a multiple of 32.
    pub(crate) fn half_steps(&self) -> bool {
        matches!(self.format, Format::Grouped { group, .. } if group % 32 != 0)
    }

    /// Unpacks `steps` steps of codes at `from` to as many tiles at `to`.
    ///
    /// # Safety
    /// The CPU supports AVX-512 F, BW, DQ, VL and BF16. `from` is readable for `steps` steps of codes, `to` writable
    /// for as many tiles and 64-byte aligned.
    pub(crate) unsafe fn tiles(&self, from: *const u8, to: *mut u8, steps: usize) {
        for step in 0..steps {
            // SAFETY: step `step` of both sides (contract above).
            unsafe { e4m3(from.add(step * 8 * VECTOR), to.add(step * TILE)) };
        }
    }

    /// Widens scales and offsets of `groups` groups to `[group][2][channel]`. `from` are their first bytes.
    ///
    /// # Safety
    /// The CPU supports AVX-512 F, BW, DQ, VL and BF16. `from[0]`, and `from[1]` if the format has offsets, are
    /// readable for sixteen numbers of each group; `to` is writable for 32 f32 of each, 64-byte aligned.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(crate) unsafe fn scales(&self, from: [*const u8; 2], to: *mut f32, groups: usize) {
        let Some(scale) = self.scale() else { return };
        for group in 0..groups {
            // SAFETY: group `group` of both sides (contract above).
            unsafe {
                let (simd, at) = (Avx512::new_unchecked(), group * LANES * scale.size());
                let factor = scales_at(simd, scale, from[0].add(at));
                let shift = if self.offsets() {
                    scales_at(simd, scale, from[1].add(at))
                } else {
                    _mm512_setzero_ps()
                };
                let to = to.add(group * 2 * LANES);
                _mm512_store_ps(to, factor);
                _mm512_store_ps(to.add(LANES), shift);
            }
        }
    }
}

/// Interleaves f32 numbers of even and odd columns, exact in bf16, as a line of 32 bf16.
///
/// # Safety
/// The CPU supports AVX-512 F; `to` is writable for 64 bytes and 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn join(even: __m512, odd: __m512, to: *mut u8) {
    let even = _mm512_srli_epi32::<16>(_mm512_castps_si512(even));
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let words = _mm512_ternarylogic_epi32::<0xca>(upper, _mm512_castps_si512(odd), even);
    // SAFETY: 64 aligned bytes at `to` (contract above).
    unsafe { _mm512_store_si512(to.cast(), words) };
}

/// Unpacks one step of FP8 e4m3 numbers.
///
/// # Safety
/// The CPU supports AVX-512 F; `from` is readable for eight vectors, `to` writable for a tile and 64-byte aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn e4m3(from: *const u8, to: *mut u8) {
    // Exponent and mantissa shifted to their places in an f32 give 2⁻¹²⁰ times the number.
    let factor = _mm512_set1_ps(f32::from_bits((127 + 120) << 23));
    for pair in 0..8 {
        // SAFETY: vector `pair` of the step and two lines of the tile (contract above); a prefetch may point anywhere.
        unsafe {
            let at = from.add(pair * VECTOR);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_BYTES).cast());
            let codes = _mm512_loadu_si512(at.cast());
            let tops = [
                _mm512_slli_epi32::<24>(codes),
                _mm512_slli_epi32::<16>(codes),
                _mm512_slli_epi32::<8>(codes),
                codes,
            ];
            let mut numbers = [factor; 4];
            for (number, top) in numbers.iter_mut().zip(tops) {
                let spread = _mm512_srai_epi32::<4>(top);
                let kept = _mm512_and_si512(spread, _mm512_set1_epi32(0x87f0_0000_u32 as i32));
                *number = _mm512_mul_ps(_mm512_castsi512_ps(kept), factor);
            }
            join(numbers[0], numbers[2], to.add(2 * pair * VECTOR));
            join(numbers[1], numbers[3], to.add((2 * pair + 1) * VECTOR));
        }
    }
}
