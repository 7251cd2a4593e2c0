//! AVX-512 with dot products of bytes: one register holds sixteen channels.

use super::super::super::avx512::Avx512;
use super::super::super::isa::LANES;
use super::super::code::{Code, DIGITS};
use super::super::whole::{Whole, WholeKernel};
use super::super::write::Room;
use super::super::write_wide::write_wide;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vnni(Avx512);

impl Vnni {
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
    pub(in super::super) unsafe fn promised() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Avx512::promised() })
    }
}

#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn enabled<K: WholeKernel>(simd: Vnni, kernel: K) {
    kernel.run(simd);
}

macro_rules! sound {
    ($intrinsic:expr) => {
        // SAFETY: a `Vnni` exists only where the processor has these instructions; what a pointer needs is promised by the caller of the
        // unsafe method this stands in.
        unsafe { $intrinsic }
    };
}

impl Whole for Vnni {
    type Floats = Avx512;
    type W = __m512i;
    const LONG: bool = true;
    const PLANES: usize = DIGITS;

    #[inline(always)]
    fn floats(self) -> Avx512 {
        self.0
    }
    #[inline(always)]
    fn call<K: WholeKernel>(self, kernel: K) {
        sound!(enabled(self, kernel));
    }

    #[inline(always)]
    fn splat(self, x: i32) -> __m512i {
        sound!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> __m512i {
        sound!(_mm512_set1_epi8(x as i8))
    }
    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        sound!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        sound!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        sound!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        sound!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        sound!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn up<const N: i32>(self, a: __m512i) -> __m512i {
        sound!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn down<const N: i32>(self, a: __m512i) -> __m512i {
        sound!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn moved(self, a: __m512i, from: usize, to: usize) -> __m512i {
        // The compiler makes constants of counts.
        if from >= to {
            sound!(_mm512_srl_epi16(a, _mm_cvtsi32_si128((from - to) as i32)))
        } else {
            sound!(_mm512_sll_epi16(a, _mm_cvtsi32_si128((to - from) as i32)))
        }
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], bytes: __m512i) -> __m512i {
        sound!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), bytes)
        })
    }
    #[inline(always)]
    fn float(self, a: __m512i) -> __m512 {
        sound!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512i {
        sound!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn total(self, a: __m512i) -> i32 {
        sound!(_mm512_reduce_add_epi32(a))
    }
    #[inline(always)]
    fn digits(self, raised: __m512i, order: &[u8; LANES]) -> [[u8; LANES]; DIGITS] {
        let mut out = [[0; LANES]; DIGITS];
        sound!({
            let order = _mm_loadu_si128(order.as_ptr().cast());
            for p in 0..DIGITS {
                let down = _mm_cvtsi32_si128(8 * (DIGITS - 1 - p) as i32);
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
        sound!(_mm512_loadu_si512(at.cast()))
    }
    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> __m512i {
        sound!(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())))
    }

    #[inline(always)]
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[__m512i; P]; R],
        codes: &[__m512i; N],
        x: &[*const u8; P],
        slab: usize,
    ) {
        // A product waits for the one before it, and a single row has too few of them to keep the units busy: its second half has sums
        // of its own.
        let mut second = [[self.splat(0); P]; R];
        for j in 0..N {
            for r in 0..R {
                for p in 0..P {
                    let sum = if R == 1 && j >= 4 { &mut second[r][p] } else { &mut sums[r][p] };
                    let x = x[p].wrapping_add(r * slab + 4 * j).cast::<i32>();
                    *sum = sound!(_mm512_dpbusd_epi32(
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

    unsafe fn write(self, room: &Room, rows: &[&[f32]]) {
        sound!(write_wide(room, rows));
    }
}
