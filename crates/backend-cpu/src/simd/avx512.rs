//! AVX-512 (F, BW, DQ, VL) with F16C: one register holds the sixteen lanes.

use super::isa::{CodeSpread, Isa, Kernel};
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let present = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        (present && has!("avx2") && has!("fma") && has!("f16c")).then_some(Self(()))
    }

    /// The proof without detection.
    ///
    /// # Safety
    /// The CPU supports AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) const unsafe fn new_unchecked() -> Self {
        Self(())
    }

    /// The proof, implied by a stronger one.
    pub(crate) fn from_amx(_by: crate::gemm::amx::Amx) -> Self {
        Self(())
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn enabled<K: Kernel>(simd: Avx512, kernel: K) -> K::Out {
    kernel.run(simd)
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: an `Avx512` exists only where the processor has these instructions; where an intrinsic takes a
        // pointer, the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

/// Exactly `BYTES` (4, 6, 8, 10 or 12) bytes, in every 128-bit lane.
///
/// # Safety
/// `at` is readable for `BYTES` bytes; the CPU supports AVX-512 F.
#[inline(always)]
unsafe fn broadcast<const BYTES: usize>(at: *const u8) -> __m512i {
    // SAFETY: the reads of each arm add up to `BYTES`.
    unsafe {
        match BYTES {
            4 => _mm512_set1_epi32(at.cast::<i32>().read_unaligned()),
            8 => _mm512_set1_epi64(at.cast::<i64>().read_unaligned()),
            _ => _mm512_broadcast_i32x4(super::x86::load_bytes::<BYTES>(at)),
        }
    }
}

/// Codes shifted to the bottom of their lanes; higher bits are unspecified.
///
/// # Safety
/// `at` is readable for `2·BITS` bytes; the CPU supports AVX-512 F and BW.
#[inline(always)]
unsafe fn spread<const BITS: usize>(at: *const u8) -> __m512i {
    let (bytes, shifts) = (&CodeSpread::<BITS>::BYTES, &CodeSpread::<BITS>::SHIFTS);
    // SAFETY: the tables are 64 bytes each, and `broadcast` reads the `2·BITS` bytes that are readable (contract
    // above).
    unsafe {
        let all = match BITS {
            2 => broadcast::<4>(at),
            3 => broadcast::<6>(at),
            4 => broadcast::<8>(at),
            5 => broadcast::<10>(at),
            _ => broadcast::<12>(at),
        };
        let pairs = _mm512_shuffle_epi8(all, _mm512_loadu_si512(bytes.as_ptr().cast()));
        _mm512_srlv_epi32(pairs, _mm512_loadu_si512(shifts.as_ptr().cast()))
    }
}

/// The first fold of two sums of lanes, side by side.
///
/// # Safety
/// The CPU supports AVX-512 F.
#[inline(always)]
unsafe fn by8(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the CPU supports AVX-512 F (contract above); registers only.
    unsafe {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
    }
}

impl Isa for Avx512 {
    type F = __m512;
    type I = __m512i;
    const TILE: (usize, usize) = (6, 4);
    const FUSED: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        intrinsic!(enabled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        intrinsic!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsic!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn if_less(self, [a, b]: [__m512; 2], yes: __m512, no: __m512) -> __m512 {
        intrinsic!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        intrinsic!({
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        intrinsic!({
            let high = _mm512_extractf32x8_ps::<1>(a);
            super::x86::sum8(_mm256_add_ps(_mm512_castps512_ps256(a), high))
        })
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        intrinsic!({
            // The tree of `sum`, four at a time: after each fold the halves of two vectors share one.
            let (ab, cd) = (by8(a, b), by8(c, d));
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let by4 = _mm512_add_ps(even, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            let by2 = _mm512_add_ps(by4, _mm512_permute_ps::<0b01_00_11_10>(by4));
            let by1 = _mm512_add_ps(by2, _mm512_permute_ps::<0b10_11_00_01>(by2));
            let first = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, by1);
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(first));
            out
        })
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        intrinsic!(_mm512_reduce_max_ps(a))
    }
    #[inline(always)]
    fn lookup(self, table: __m512, codes: __m512i) -> __m512 {
        intrinsic!(_mm512_permutexvar_ps(codes, table))
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
    unsafe fn load(self, at: *const f32) -> __m512 {
        intrinsic!(_mm512_loadu_ps(at))
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: __m512) {
        intrinsic!(_mm512_storeu_ps(at, a));
    }
    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> __m512 {
        intrinsic!(_mm512_maskz_loadu_ps(((1_u32 << count) - 1) as u16, at))
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut f32, count: usize, a: __m512) {
        intrinsic!(_mm512_mask_storeu_ps(at, ((1_u32 << count) - 1) as u16, a));
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> __m512 {
        intrinsic!(_mm512_cvtph_ps(_mm256_loadu_si256(at.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> __m512 {
        intrinsic!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, at: *const u8) -> __m512 {
        intrinsic!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))))
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> __m512i {
        intrinsic!(spread::<BITS>(at))
    }
    #[inline(always)]
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> __m512 {
        intrinsic!({
            let codes = if BITS == 8 {
                _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))
            } else {
                _mm512_and_si512(spread::<BITS>(at), _mm512_set1_epi32((1 << BITS) - 1))
            };
            _mm512_cvtepi32_ps(codes)
        })
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> __m512 {
        intrinsic!({
            let f16s = super::x86::e4m3_as_f16(_mm_loadu_si128(at.cast()));
            _mm512_mul_ps(_mm512_cvtph_ps(f16s), _mm512_set1_ps(256.0))
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, at: *mut u16, a: __m512) {
        intrinsic!(_mm256_storeu_si256(at.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a)));
    }
    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut u16, a: __m512) {
        intrinsic!({
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, up));
            let quiet = _mm512_or_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(0x40));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let both = _mm512_mask_blend_epi32(nan, rounded, quiet);
            _mm256_storeu_si256(at.cast(), _mm512_cvtepi32_epi16(both));
        });
    }
}
