//! NEON: four registers hold the sixteen lanes.

use super::isa::{Isa, Kernel, LANES, Spread};
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected as has;

/// Proof that the processor has the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, where it holds.
    pub(crate) fn detect() -> Option<Self> {
        has!("neon").then_some(Self(()))
    }
}

#[inline(never)]
#[target_feature(enable = "neon")]
fn enabled<K: Kernel>(simd: Neon, kernel: K) -> K::Out {
    kernel.run(simd)
}

macro_rules! sound {
    ($intrinsic:expr) => {
        // SAFETY: a `Neon` exists only where the processor has these instructions; what a pointer
        // needs is promised by the caller of the unsafe method this stands in.
        unsafe { $intrinsic }
    };
}

/// The same intrinsic on each of the four registers.
macro_rules! each {
    ($f:ident($a:expr)) => {
        sound!([$f($a[0]), $f($a[1]), $f($a[2]), $f($a[3])])
    };
    ($f:ident($a:expr, $b:expr)) => {
        sound!([$f($a[0], $b[0]), $f($a[1], $b[1]), $f($a[2], $b[2]), $f($a[3], $b[3])])
    };
    ($f:ident($a:expr, $b:expr, $c:expr)) => {
        sound!([
            $f($a[0], $b[0], $c[0]),
            $f($a[1], $b[1], $c[1]),
            $f($a[2], $b[2], $c[2]),
            $f($a[3], $b[3], $c[3]),
        ])
    };
}

type Quad = [float32x4_t; 4];
type QuadI = [uint32x4_t; 4];

/// Codes shifted to the bottom of their lanes; higher bits are unspecified.
///
/// # Safety
/// `2·BITS` readable bytes, and NEON.
#[inline(always)]
unsafe fn spread<const BITS: usize>(at: *const u8) -> QuadI {
    let (bytes, shifts) = (&Spread::<BITS>::BYTES, &Spread::<BITS>::SHIFTS);
    let mut copy = [0_u8; 16];
    // SAFETY: `2·BITS` bytes are readable by the caller's promise; the tables are 64 bytes each.
    unsafe {
        std::ptr::copy_nonoverlapping(at, copy.as_mut_ptr(), 2 * BITS);
        let all = vld1q_u8(copy.as_ptr());
        [
            spread4(all, bytes.as_ptr(), shifts.as_ptr()),
            spread4(all, bytes.as_ptr().add(16), shifts.as_ptr().add(4)),
            spread4(all, bytes.as_ptr().add(32), shifts.as_ptr().add(8)),
            spread4(all, bytes.as_ptr().add(48), shifts.as_ptr().add(12)),
        ]
    }
}

/// Four lanes of [`spread`]. A byte number of 0x80 is out of range for the table lookup, which then gives zero.
///
/// # Safety
/// 16 readable bytes each, and NEON.
#[inline(always)]
unsafe fn spread4(all: uint8x16_t, bytes: *const u8, shifts: *const u32) -> uint32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs = vreinterpretq_u32_u8(vqtbl1q_u8(all, vld1q_u8(bytes)));
        vshlq_u32(pairs, vnegq_s32(vreinterpretq_s32_u32(vld1q_u32(shifts))))
    }
}

/// Four halves of 16 bits, zero-extended.
///
/// # Safety
/// 32 readable bytes, and NEON.
#[inline(always)]
unsafe fn halves(at: *const u8) -> QuadI {
    // SAFETY: the caller's promise; byte loads need no alignment.
    unsafe {
        let low = vreinterpretq_u16_u8(vld1q_u8(at));
        let high = vreinterpretq_u16_u8(vld1q_u8(at.add(16)));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_u16(vget_high_u16(low)),
            vmovl_u16(vget_low_u16(high)),
            vmovl_u16(vget_high_u16(high)),
        ]
    }
}

/// Four IEEE halves to f32, as [`forerun_base::f16_to_f32`] does it.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn widen_f16(bits: uint32x4_t) -> float32x4_t {
    // SAFETY: register arithmetic alone.
    unsafe {
        let rest = vandq_u32(bits, vdupq_n_u32(0x7fff));
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        let moved = vshlq_n_u32::<13>(rest);
        let factor = vreinterpretq_f32_u32(vdupq_n_u32(0x7780_0000));
        let finite = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(moved), factor));
        let special = vorrq_u32(moved, vdupq_n_u32(0x7f80_0000));
        let is_special = vcgeq_u32(rest, vdupq_n_u32(0x7c00));
        vreinterpretq_f32_u32(vorrq_u32(sign, vbslq_u32(is_special, special, finite)))
    }
}

/// Four e4m3 codes to f32, as [`forerun_base::e4m3_to_f32`] does it.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn widen_e4m3(code: uint32x4_t) -> float32x4_t {
    // SAFETY: register arithmetic alone.
    unsafe {
        let moved = vshlq_n_u32::<20>(vandq_u32(code, vdupq_n_u32(0x7f)));
        let sign = vshlq_n_u32::<24>(vandq_u32(code, vdupq_n_u32(0x80)));
        let factor = vreinterpretq_f32_u32(vdupq_n_u32(0x7b80_0000));
        let value = vreinterpretq_u32_f32(vmulq_f32(vreinterpretq_f32_u32(moved), factor));
        vreinterpretq_f32_u32(vorrq_u32(sign, value))
    }
}

/// Sixteen bytes, one per lane.
///
/// # Safety
/// 16 readable bytes, and NEON.
#[inline(always)]
unsafe fn bytes(at: *const u8) -> QuadI {
    // SAFETY: the caller's promise.
    unsafe {
        let all = vld1q_u8(at);
        let (low, high) = (vmovl_u8(vget_low_u8(all)), vmovl_u8(vget_high_u8(all)));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_u16(vget_high_u16(low)),
            vmovl_u16(vget_low_u16(high)),
            vmovl_u16(vget_high_u16(high)),
        ]
    }
}

/// Four entries of a table of sixteen f32, fetched byte by byte.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn lookup4(table: uint8x16x4_t, codes: uint32x4_t) -> float32x4_t {
    // SAFETY: register arithmetic alone.
    unsafe {
        let index = vandq_u32(codes, vdupq_n_u32(15));
        // Entry i lies in bytes 4i to 4i+3: i·0x04040404 + 0x03020100.
        let places = vaddq_u32(vmulq_n_u32(index, 0x0404_0404), vdupq_n_u32(0x0302_0100));
        vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(places)))
    }
}

/// `2ⁿ` for four integral `n`.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn pow2_4(n: float32x4_t) -> float32x4_t {
    // SAFETY: register arithmetic alone.
    unsafe {
        let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
    }
}

impl Isa for Neon {
    type F = Quad;
    type I = QuadI;
    const TILE: (usize, usize) = (3, 2);
    const FUSED: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        sound!(enabled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        sound!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        each!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        each!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        each!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        each!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        each!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        let above = each!(vcgtq_f32(a, b));
        each!(vbslq_f32(above, a, b))
    }
    #[inline(always)]
    fn min(self, a: Quad, b: Quad) -> Quad {
        let below = each!(vcltq_f32(a, b));
        each!(vbslq_f32(below, a, b))
    }
    #[inline(always)]
    fn if_less(self, [a, b]: [Quad; 2], yes: Quad, no: Quad) -> Quad {
        let below = each!(vcltq_f32(a, b));
        each!(vbslq_f32(below, yes, no))
    }
    #[inline(always)]
    fn pow2(self, n: Quad) -> Quad {
        each!(pow2_4(n))
    }
    #[inline(always)]
    fn sum(self, a: Quad) -> f32 {
        sound!({
            let by4 = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let by2 = vadd_f32(vget_low_f32(by4), vget_high_f32(by4));
            vget_lane_f32::<0>(by2) + vget_lane_f32::<1>(by2)
        })
    }
    #[inline(always)]
    fn largest(self, a: Quad) -> f32 {
        sound!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))))
    }
    #[inline(always)]
    fn lookup(self, table: Quad, codes: QuadI) -> Quad {
        sound!({
            let table = uint8x16x4_t(
                vreinterpretq_u8_f32(table[0]),
                vreinterpretq_u8_f32(table[1]),
                vreinterpretq_u8_f32(table[2]),
                vreinterpretq_u8_f32(table[3]),
            );
            [
                lookup4(table, codes[0]),
                lookup4(table, codes[1]),
                lookup4(table, codes[2]),
                lookup4(table, codes[3]),
            ]
        })
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {
        // No stable intrinsic; the hardware follows streams by itself.
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Quad {
        sound!([vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))])
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: Quad) {
        sound!({
            vst1q_f32(at, a[0]);
            vst1q_f32(at.add(4), a[1]);
            vst1q_f32(at.add(8), a[2]);
            vst1q_f32(at.add(12), a[3]);
        });
    }
    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> Quad {
        if count == LANES {
            return sound!(self.load(at));
        }
        let mut lanes = [0.0; LANES];
        sound!({
            std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), count);
            self.load(lanes.as_ptr())
        })
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Quad) {
        if count == LANES {
            return sound!(self.store(at, a));
        }
        let mut lanes = [0.0; LANES];
        sound!({
            self.store(lanes.as_mut_ptr(), a);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, count);
        });
    }
    #[inline(always)]
    unsafe fn load_f16(self, at: *const u8) -> Quad {
        let bits = sound!(halves(at));
        each!(widen_f16(bits))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> Quad {
        sound!({
            let [a, b, c, d] = halves(at);
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(a)),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(b)),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(c)),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(d)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> QuadI {
        sound!(spread::<BITS>(at))
    }
    #[inline(always)]
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Quad {
        if BITS == 8 {
            let codes = sound!(bytes(at));
            return each!(vcvtq_f32_u32(codes));
        }
        let codes = sound!(spread::<BITS>(at));
        let mask = sound!([vdupq_n_u32((1 << BITS) - 1); 4]);
        let codes = each!(vandq_u32(codes, mask));
        each!(vcvtq_f32_u32(codes))
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> Quad {
        let codes = sound!(bytes(at));
        each!(widen_e4m3(codes))
    }
    #[inline(always)]
    unsafe fn store_f16(self, at: *mut u16, a: Quad) {
        let mut lanes = [0.0; LANES];
        sound!({
            self.store(lanes.as_mut_ptr(), a);
            for (i, x) in lanes.into_iter().enumerate() {
                at.add(i).write_unaligned(forerun_base::f32_to_f16(x));
            }
        });
    }
    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut u16, a: Quad) {
        let mut lanes = [0.0; LANES];
        sound!({
            self.store(lanes.as_mut_ptr(), a);
            for (i, x) in lanes.into_iter().enumerate() {
                at.add(i).write_unaligned(forerun_base::f32_to_bf16(x));
            }
        });
    }
}
