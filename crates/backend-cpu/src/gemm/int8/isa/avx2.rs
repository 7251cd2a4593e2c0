//! AVX2: two registers hold sixteen channels. Bytes are multiplied by `vpdpbusd` (AVX-VNNI), or by `vpmaddubsw` in
//! pairs of 16 bits.
//!
//! # Numerics
//! Pairs are summed in 16 bits, only as many as cannot overflow, and then widened. Integer sums are exact in any order.

use super::{Int8Isa, Int8Kernel};
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::layout::PackLayout;
use crate::gemm::int8::pack::ByteLimbs;
use crate::simd::avx2::Avx2;
use crate::simd::isa::LANES;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Sixteen 32-bit lanes in two registers.
type PairI32 = [__m256i; 2];

/// Proof that the processor has AVX2 and the dot product `M`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2Int8<M>(Avx2, PhantomData<M>);

/// How bytes are multiplied and summed.
pub(crate) trait DotProduct: Copy + Send + Sync {
    /// Whether codes may have more than six bits.
    const BYTES: bool;

    /// Whether the processor has the instructions.
    fn present() -> bool;

    /// Runs a kernel with the instructions enabled. Not inlined.
    ///
    /// # Safety
    /// The CPU supports AVX2, FMA, F16C and the instructions of `Self`, as a value of `Avx2Int8<Self>` proves.
    unsafe fn call<K: Int8Kernel>(simd: Avx2Int8<Self>, kernel: K);

    /// As [`Int8Isa::dots`].
    ///
    /// # Safety
    /// As for [`Int8Isa::dots`], and the CPU supports AVX2 and the instructions of `Self`.
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        sums: &mut [[PairI32; P]; R],
        codes: &[PairI32; N],
        x: &[*const u8; P],
        slab: usize,
    );
}

impl<M: DotProduct> Avx2Int8<M> {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| M::present()).map(|avx2| Self(avx2, PhantomData))
    }
}

/// `vpmaddubsw`: pairs of bytes summed in 16 bits, saturating. What AVX2 alone can do, with codes of up to six bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaddubsPairs;

impl DotProduct for MaddubsPairs {
    const BYTES: bool = false;

    fn present() -> bool {
        true
    }

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn call<K: Int8Kernel>(simd: Avx2Int8<Self>, kernel: K) {
        kernel.run(simd);
    }

    #[inline(always)]
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        sums: &mut [[PairI32; P]; R],
        codes: &[PairI32; N],
        x: &[*const u8; P],
        slab: usize,
    ) {
        // Two products are below 2^(BITS + 8) and a 16-bit sum holds 2^15, so nothing saturates. More than four pairs
        // per widening would be summed as a tree, for which there are no registers.
        let pairs_per_widening =
            const { if C::BITS < 5 { 4 } else { 1 << 7_usize.saturating_sub(C::BITS) } };
        // SAFETY: AVX2 is there; `broadcast_word` reads bytes `4j..4j+4` of row `r` of plane `p`, which the contract of
        // `dots` makes readable.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for p in 0..P {
                let mut pairs = [[_mm256_setzero_si256(); 2]; R];
                for j in 0..N {
                    for r in 0..R {
                        let limbs = broadcast_word(x[p].wrapping_add(r * slab + 4 * j));
                        for half in 0..2 {
                            let products = _mm256_maddubs_epi16(codes[j][half], limbs);
                            pairs[r][half] = _mm256_add_epi16(pairs[r][half], products);
                        }
                    }
                    if (j + 1) % pairs_per_widening == 0 || j + 1 == N {
                        for r in 0..R {
                            for half in 0..2 {
                                let wide = _mm256_madd_epi16(pairs[r][half], ones);
                                let sum = &mut sums[r][p][half];
                                *sum = _mm256_add_epi32(*sum, wide);
                            }
                            pairs[r] = [_mm256_setzero_si256(); 2];
                        }
                    }
                }
            }
        }
    }
}

/// `vpdpbusd`, whose intrinsic has one name in AVX-VNNI and another in AVX-512.
macro_rules! dot_products {
    ($(#[$about:meta])* $name:ident, $dot:ident, $features:literal, $present:expr) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl DotProduct for $name {
            const BYTES: bool = true;

            fn present() -> bool {
                $present
            }

            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn call<K: Int8Kernel>(simd: Avx2Int8<Self>, kernel: K) {
                kernel.run(simd);
            }

            #[inline(always)]
            unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
                sums: &mut [[PairI32; P]; R],
                codes: &[PairI32; N],
                x: &[*const u8; P],
                slab: usize,
            ) {
                for p in 0..P {
                    for j in 0..N {
                        for r in 0..R {
                            for half in 0..2 {
                                let sum = &mut sums[r][p][half];
                                // SAFETY: the instructions are there; bytes `4j..4j+4` of row `r` of plane `p` are
                                // readable by the contract of `dots`.
                                *sum = unsafe {
                                    let limbs = broadcast_word(x[p].wrapping_add(r * slab + 4 * j));
                                    $dot(*sum, codes[j][half], limbs)
                                };
                            }
                        }
                    }
                }
            }
        }
    };
}

dot_products!(
    /// AVX-VNNI.
    AvxVnni, _mm256_dpbusd_avx_epi32, "avx2,fma,f16c,avxvnni", has!("avxvnni")
);
#[cfg(test)]
dot_products!(
    /// The same instruction in its AVX-512 encoding, so that machines without AVX-VNNI can test these kernels.
    Avx512VnniYmm, _mm256_dpbusd_epi32, "avx2,fma,f16c,avx512vl,avx512vnni",
    has!("avx512vl") && has!("avx512vnni")
);

/// Broadcasts four bytes to all channels.
///
/// # Safety
/// The CPU supports AVX2; `at` is readable for 4 bytes.
#[inline(always)]
unsafe fn broadcast_word(at: *const u8) -> __m256i {
    // SAFETY: four bytes are readable at `at` (contract above).
    unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: an `Avx2Int8` exists only where the processor has these instructions; where an intrinsic takes a
        // pointer, the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

/// Applies an intrinsic to both registers.
macro_rules! both {
    ($name:ident($($a:ident),*)) => {
        intrinsic!([$name($($a[0]),*), $name($($a[1]),*)])
    };
    ($name:ident($($a:ident),*; $count:expr)) => {
        intrinsic!({
            let count = _mm_cvtsi32_si128($count);
            [$name($($a[0]),*, count), $name($($a[1]),*, count)]
        })
    };
}

impl<M: DotProduct> Int8Isa for Avx2Int8<M> {
    type F32 = Avx2;
    type W = PairI32;
    type Splitter = ByteLimbs;
    const BYTES: bool = M::BYTES;

    #[inline(always)]
    fn f32(self) -> Avx2 {
        self.0
    }
    #[inline(always)]
    fn call<K: Int8Kernel>(self, kernel: K) {
        intrinsic!(M::call(self, kernel));
    }

    #[inline(always)]
    fn splat(self, x: i32) -> PairI32 {
        intrinsic!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> PairI32 {
        intrinsic!([_mm256_set1_epi8(x as i8); 2])
    }
    #[inline(always)]
    fn add(self, a: PairI32, b: PairI32) -> PairI32 {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: PairI32, b: PairI32) -> PairI32 {
        both!(_mm256_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: PairI32, b: PairI32) -> PairI32 {
        both!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: PairI32, b: PairI32) -> PairI32 {
        both!(_mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: PairI32, b: PairI32) -> PairI32 {
        both!(_mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: PairI32) -> PairI32 {
        both!(_mm256_sll_epi32(a; N))
    }
    #[inline(always)]
    fn shr<const N: i32>(self, a: PairI32) -> PairI32 {
        both!(_mm256_sra_epi32(a; N))
    }
    #[inline(always)]
    fn move_bits(self, a: PairI32, from: usize, to: usize) -> PairI32 {
        // Counts are constants after inlining.
        if from >= to {
            both!(_mm256_srl_epi16(a; (from - to) as i32))
        } else {
            both!(_mm256_sll_epi16(a; (to - from) as i32))
        }
    }
    #[inline(always)]
    fn lookup16(self, table: &[u8; 16], bytes: PairI32) -> PairI32 {
        intrinsic!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, bytes[0]), _mm256_shuffle_epi8(table, bytes[1])]
        })
    }
    #[inline(always)]
    fn to_f32(self, a: PairI32) -> [__m256; 2] {
        both!(_mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn round_i32(self, a: [__m256; 2]) -> PairI32 {
        both!(_mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn reduce_add(self, a: PairI32) -> i32 {
        let mut each = [0; LANES / 2];
        intrinsic!(_mm256_storeu_si256(each.as_mut_ptr().cast(), _mm256_add_epi32(a[0], a[1])));
        each.iter().sum()
    }
    #[inline(always)]
    fn splitter(self, layout: PackLayout, _paired: bool) -> ByteLimbs {
        ByteLimbs::new(layout)
    }
    #[inline(always)]
    fn limbs_of_raised(self, raised: PairI32, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS] {
        intrinsic!({
            // Bytes 2, 1 and 0 of four integers.
            let by_byte = _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1);
            let by_byte = _mm256_broadcastsi128_si256(by_byte);
            // `[byte 2, byte 1, byte 0, none]` of four integers, and of four more.
            let [a, b] =
                [_mm256_shuffle_epi8(raised[0], by_byte), _mm256_shuffle_epi8(raised[1], by_byte)];
            let (a, c) = (_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let (b, d) = (_mm256_castsi256_si128(b), _mm256_extracti128_si256::<1>(b));
            let (low, high) = (_mm_unpacklo_epi32(a, c), _mm_unpacklo_epi32(b, d));
            let last = (_mm_unpackhi_epi32(a, c), _mm_unpackhi_epi32(b, d));
            let planes = [
                _mm_unpacklo_epi64(low, high),
                _mm_unpackhi_epi64(low, high),
                _mm_unpacklo_epi64(last.0, last.1),
            ];
            let order = _mm_loadu_si128(order.as_ptr().cast());
            let mut out = [[0; LANES]; LIMBS];
            for p in 0..LIMBS {
                let plane = _mm_shuffle_epi8(planes[p], order);
                // Subtracting 128 flips the highest bit.
                let plane = _mm_xor_si128(plane, _mm_set1_epi8(-128));
                _mm_storeu_si128(out[p].as_mut_ptr().cast(), plane);
            }
            out
        })
    }

    #[inline(always)]
    unsafe fn load(self, at: *const u8) -> PairI32 {
        intrinsic!([_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(32).cast())])
    }
    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> PairI32 {
        intrinsic!([
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(8).cast())),
        ])
    }

    #[inline(always)]
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[PairI32; P]; R],
        codes: &[PairI32; N],
        x: &[*const u8; P],
        slab: usize,
    ) {
        intrinsic!(M::dots::<C, R, P, N>(sums, codes, x, slab));
    }
}
