//! AVX2 with FMA and F16C: two registers hold the sixteen lanes.

use super::isa::{CodeSpread, Isa, Kernel, LANES};
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        (has!("avx2") && has!("fma") && has!("f16c")).then_some(Self(()))
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
fn enabled<K: Kernel>(simd: Avx2, kernel: K) -> K::Out {
    kernel.run(simd)
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: an `Avx2` exists only where the processor has these instructions; where an intrinsic takes a pointer,
        // the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

type Pair = [__m256; 2];
type PairI = [__m256i; 2];

/// Codes shifted to the bottom of their lanes; higher bits are unspecified.
///
/// # Safety
/// `at` is readable for `2·BITS` bytes; the CPU supports AVX2.
#[inline(always)]
unsafe fn spread<const BITS: usize>(at: *const u8) -> PairI {
    let (bytes, shifts) = (&CodeSpread::<BITS>::BYTES, &CodeSpread::<BITS>::SHIFTS);
    // SAFETY: the tables are 64 bytes each, and `load_bytes` reads the `2·BITS` bytes that are readable (contract
    // above).
    unsafe {
        let all = _mm256_broadcastsi128_si256(match BITS {
            2 => super::x86::load_bytes::<4>(at),
            3 => super::x86::load_bytes::<6>(at),
            4 => super::x86::load_bytes::<8>(at),
            5 => super::x86::load_bytes::<10>(at),
            _ => super::x86::load_bytes::<12>(at),
        });
        let (bytes, shifts) = (bytes.as_ptr(), shifts.as_ptr());
        let low = _mm256_shuffle_epi8(all, _mm256_loadu_si256(bytes.cast()));
        let high = _mm256_shuffle_epi8(all, _mm256_loadu_si256(bytes.add(32).cast()));
        [
            _mm256_srlv_epi32(low, _mm256_loadu_si256(shifts.cast())),
            _mm256_srlv_epi32(high, _mm256_loadu_si256(shifts.add(8).cast())),
        ]
    }
}

/// Eight lookups in a table of sixteen: a permute has eight entries, and bit 3 of the code selects one of two permutes.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
unsafe fn lookup8(table: Pair, codes: __m256i) -> __m256 {
    // SAFETY: the CPU supports AVX2 (contract above); registers only.
    unsafe {
        let low = _mm256_permutevar8x32_ps(table[0], codes);
        let high = _mm256_permutevar8x32_ps(table[1], codes);
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
    }
}

impl Isa for Avx2 {
    type F = Pair;
    type I = PairI;
    const TILE: (usize, usize) = (3, 2);
    const FUSED: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        intrinsic!(enabled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        intrinsic!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        intrinsic!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        intrinsic!([_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }
    #[inline(always)]
    fn if_less(self, [a, b]: [Pair; 2], yes: Pair, no: Pair) -> Pair {
        intrinsic!([
            _mm256_blendv_ps(no[0], yes[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
            _mm256_blendv_ps(no[1], yes[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])),
        ])
    }
    #[inline(always)]
    fn pow2(self, n: Pair) -> Pair {
        intrinsic!({
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvtps_epi32(n[0]), bias);
            let high = _mm256_add_epi32(_mm256_cvtps_epi32(n[1]), bias);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            ]
        })
    }
    #[inline(always)]
    fn sum(self, a: Pair) -> f32 {
        intrinsic!(super::x86::sum8(_mm256_add_ps(a[0], a[1])))
    }
    #[inline(always)]
    fn largest(self, a: Pair) -> f32 {
        intrinsic!({
            let by8 = _mm256_max_ps(a[0], a[1]);
            let by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps::<1>(by8));
            let by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
            _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)))
        })
    }
    #[inline(always)]
    fn lookup(self, table: Pair, codes: PairI) -> Pair {
        intrinsic!([lookup8(table, codes[0]), lookup8(table, codes[1])])
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        intrinsic!(_mm_prefetch::<_MM_HINT_T1>(at.cast()));
    }
    #[inline(always)]
    fn prefetch_write(self, at: *const f32) {
        intrinsic!(_mm_prefetch::<_MM_HINT_ET0>(at.cast()));
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Pair {
        intrinsic!([_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))])
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: Pair) {
        intrinsic!({
            _mm256_storeu_ps(at, a[0]);
            _mm256_storeu_ps(at.add(8), a[1]);
        });
    }
    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> Pair {
        if count == LANES {
            return intrinsic!(self.load(at));
        }
        let mut lanes = [0.0; LANES];
        intrinsic!({
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), count);
            self.load(lanes.as_ptr())
        })
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Pair) {
        if count == LANES {
            return intrinsic!(self.store(at, a));
        }
        let mut lanes = [0.0; LANES];
        intrinsic!({
            self.store(lanes.as_mut_ptr(), a);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, count);
        });
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> Pair {
        intrinsic!([
            _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(at.add(16).cast())),
        ])
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> Pair {
        intrinsic!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, at: *const u8) -> Pair {
        intrinsic!({
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        })
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> PairI {
        intrinsic!(spread::<BITS>(at))
    }
    #[inline(always)]
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Pair {
        intrinsic!({
            let codes = if BITS == 8 {
                [
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())),
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.add(8).cast())),
                ]
            } else {
                let mask = _mm256_set1_epi32((1 << BITS) - 1);
                let [a, b] = spread::<BITS>(at);
                [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)]
            };
            [_mm256_cvtepi32_ps(codes[0]), _mm256_cvtepi32_ps(codes[1])]
        })
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> Pair {
        intrinsic!({
            let f16s = super::x86::e4m3_as_f16(_mm_loadu_si128(at.cast()));
            let wide = [
                _mm256_cvtph_ps(_mm256_castsi256_si128(f16s)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(f16s)),
            ];
            self.mul(wide, self.splat(256.0))
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, at: *mut u16, a: Pair) {
        intrinsic!({
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            _mm_storeu_si128(at.cast(), _mm256_cvtps_ph::<NEAREST>(a[0]));
            _mm_storeu_si128(at.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(a[1]));
        });
    }
    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut u16, a: Pair) {
        let mut lanes = [0.0; LANES];
        intrinsic!({
            self.store(lanes.as_mut_ptr(), a);
            for (i, x) in lanes.into_iter().enumerate() {
                at.add(i).write_unaligned(forerun_base::f32_to_bf16(x));
            }
        });
    }
}
