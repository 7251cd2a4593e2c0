//! AVX-512 with dot products of bytes: one register holds sixteen channels.

use super::ops::{Int8Isa, Int8Kernel};
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::pack::LimbTile;
use crate::gemm::int8::pack_avx512::write_limbs;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    /// The proof, where it holds.
    pub(crate) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect()?;
        (has!("avx512vnni") && has!("avx512vbmi")).then_some(Self(avx512))
    }

    /// The proof, by the caller's word.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Avx512::new_unchecked() })
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn enabled<K: Int8Kernel>(simd: Avx512Vnni, kernel: K) {
    kernel.run(simd);
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: a `Avx512Vnni` exists only where the processor has these instructions; what a pointer needs is
        // promised by the caller of the unsafe method this stands in.
        unsafe { $intrinsic }
    };
}

impl Int8Isa for Avx512Vnni {
    type F32 = Avx512;
    type W = __m512i;
    const WIDE_LIMBS: bool = true;
    const SUM_PLANES: usize = LIMBS;

    #[inline(always)]
    fn f32(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn call<K: Int8Kernel>(self, kernel: K) {
        intrinsic!(enabled(self, kernel));
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        intrinsic!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> __m512i {
        intrinsic!(_mm512_set1_epi8(x as i8))
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsic!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: __m512i) -> __m512i {
        intrinsic!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn shr<const N: i32>(self, a: __m512i) -> __m512i {
        intrinsic!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn move_bits(self, a: __m512i, from: usize, to: usize) -> __m512i {
        // The compiler makes constants of counts.
        if from >= to {
            intrinsic!(_mm512_srl_epi16(a, _mm_cvtsi32_si128((from - to) as i32)))
        } else {
            intrinsic!(_mm512_sll_epi16(a, _mm_cvtsi32_si128((to - from) as i32)))
        }
    }
    #[inline(always)]
    fn lookup16(self, table: &[u8; 16], bytes: __m512i) -> __m512i {
        intrinsic!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bytes)
        })
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        intrinsic!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn round_i32(self, a: __m512) -> __m512i {
        intrinsic!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512i) -> i32 {
        intrinsic!(_mm512_reduce_add_epi32(a))
    }
    #[inline(always)]
    fn limbs(self, raised: __m512i, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS] {
        let mut out = [[0; LANES]; LIMBS];
        intrinsic!({
            let order = _mm_loadu_si128(order.as_ptr().cast());
            for p in 0..LIMBS {
                let down = _mm_cvtsi32_si128(8 * (LIMBS - 1 - p) as i32);
                let plane = _mm512_cvtepi32_epi8(_mm512_srl_epi32(raised, down));
                // A byte less 128 is the byte with the other highest bit.
                let plane = _mm_xor_si128(_mm_shuffle_epi8(plane, order), _mm_set1_epi8(-128));
                _mm_storeu_si128(out[p].as_mut_ptr().cast(), plane);
            }
        });
        out
    }

    #[inline(always)]
    unsafe fn load(self, at: *const u8) -> __m512i {
        intrinsic!(_mm512_loadu_si512(at.cast()))
    }
    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> __m512i {
        intrinsic!(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))
    }

    #[inline(always)]
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[__m512i; P]; R],
        codes: &[__m512i; N],
        x: &[*const u8; P],
        slab: usize,
    ) {
        // A product waits for the one before it, and a single row has too few of them to keep the units busy: its
        // second half has sums of its own.
        let mut second = [[self.splat(0); P]; R];
        for j in 0..N {
            for r in 0..R {
                for p in 0..P {
                    let sum = if R == 1 && j >= 4 { &mut second[r][p] } else { &mut sums[r][p] };
                    let x = x[p].wrapping_add(r * slab + 4 * j).cast::<i32>();
                    *sum = intrinsic!(_mm512_dpbusd_epi32(
                        *sum,
                        codes[j],
                        _mm512_set1_epi32(x.read_unaligned())
                    ));
                }
            }
        }
        if R == 1 && N > 4 {
            for p in 0..P {
                sums[0][p] = self.add(sums[0][p], second[0][p]);
            }
        }
    }

    unsafe fn write(self, dst: &LimbTile, rows: &[&[f32]]) {
        intrinsic!(write_limbs(dst, rows));
    }
}
