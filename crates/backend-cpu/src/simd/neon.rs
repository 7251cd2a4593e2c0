//! NEON: four registers hold the sixteen lanes.
//!
//! Conversions of f16 and prefetches are inline assembly: Rust has no stable intrinsics for them in the oldest version
//! that builds this crate.

use super::isa::{CodeSpread, Isa, Kernel, LANES};
use std::arch::aarch64::*;
use std::arch::asm;
use std::arch::is_aarch64_feature_detected as has;

/// Proof that the processor has NEON and is little-endian, so that lanes are in the order of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

#[inline(never)]
#[target_feature(enable = "neon")]
fn enabled<K: Kernel>(simd: Neon, kernel: K) -> K::Out {
    kernel.run(simd)
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: a `Neon` exists only where the processor has these instructions; where an intrinsic takes a pointer,
        // the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

/// Evaluates an expression for each register, whose number is `i`, inside the `intrinsic!` of the using module.
macro_rules! four {
    ($i:ident => $one:expr) => {
        intrinsic!([
            {
                let $i = 0;
                $one
            },
            {
                let $i = 1;
                $one
            },
            {
                let $i = 2;
                $one
            },
            {
                let $i = 3;
                $one
            },
        ])
    };
}

pub(crate) use four;

type Quad = [float32x4_t; 4];

/// [`CodeSpread`] for lanes of 16 bits, which hold the two bytes that a code can lie in.
struct Pairs<const BITS: usize>;

impl<const BITS: usize> Pairs<BITS> {
    /// Two byte numbers per lane.
    const BYTES: [u8; 32] = {
        let mut bytes = [0; 32];
        let mut i = 0;
        while i < bytes.len() {
            bytes[i] = CodeSpread::<BITS>::BYTES[i / 2 * 4 + i % 2];
            i += 1;
        }
        bytes
    };

    /// Bits below the code in its lane, negative because the instruction shifts up.
    const SHIFTS: [i16; LANES] = {
        let mut shifts = [0; LANES];
        let mut lane = 0;
        while lane < LANES {
            shifts[lane] = -(CodeSpread::<BITS>::SHIFTS[lane] as i16);
            lane += 1;
        }
        shifts
    };
}

/// Exactly `2·BITS` bytes, zeros above.
///
/// # Safety
/// `at` is readable for `2·BITS` bytes.
#[inline(always)]
unsafe fn load_bytes<const BITS: usize>(at: *const u8) -> [u64; 2] {
    // SAFETY: the reads of each arm add up to `2·BITS`.
    unsafe {
        let half = |offset| u64::from(at.add(offset).cast::<u16>().read_unaligned());
        let word = |offset| u64::from(at.add(offset).cast::<u32>().read_unaligned());
        let long = || at.cast::<u64>().read_unaligned();
        match BITS {
            2 => [word(0), 0],
            3 => [word(0) | (half(4) << 32), 0],
            4 => [long(), 0],
            5 => [long(), half(8)],
            _ => [long(), word(8)],
        }
    }
}

impl Neon {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        (cfg!(target_endian = "little") && has!("neon")).then_some(Self(()))
    }

    /// Codes of 2 to 6 bits, one per byte; higher bits are unspecified.
    ///
    /// # Safety
    /// `at` is readable for `2·BITS` bytes.
    #[inline(always)]
    unsafe fn spread<const BITS: usize>(self, at: *const u8) -> uint8x16_t {
        let (bytes, shifts) = (&Pairs::<BITS>::BYTES, &Pairs::<BITS>::SHIFTS);
        // SAFETY: the tables are 32 bytes each, and `load_bytes` reads the `2·BITS` bytes that are readable (contract
        // above).
        unsafe {
            let [low, high] = load_bytes::<BITS>(at);
            let all = vcombine_u8(vcreate_u8(low), vcreate_u8(high));
            if BITS == 4 {
                return vzip1q_u8(all, vshrq_n_u8::<4>(all));
            }
            let (bytes, shifts) = (bytes.as_ptr(), shifts.as_ptr());
            let low = vreinterpretq_u16_u8(vqtbl1q_u8(all, vld1q_u8(bytes)));
            let high = vreinterpretq_u16_u8(vqtbl1q_u8(all, vld1q_u8(bytes.add(16))));
            let low = vshlq_u16(low, vld1q_s16(shifts));
            let high = vshlq_u16(high, vld1q_s16(shifts.add(8)));
            vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
        }
    }

    /// Four f16, widened.
    #[inline(always)]
    fn widen(self, f16s: uint16x4_t) -> float32x4_t {
        let wide;
        intrinsic!(asm!(
            "fcvtl {wide:v}.4s, {f16s:v}.4h",
            wide = lateout(vreg) wide,
            f16s = in(vreg) f16s,
            options(pure, nomem, nostack, preserves_flags),
        ));
        wide
    }

    /// Narrows to four f16, ties to even.
    #[inline(always)]
    fn narrow(self, wide: float32x4_t) -> uint16x4_t {
        let f16s;
        intrinsic!(asm!(
            "fcvtn {f16s:v}.4h, {wide:v}.4s",
            f16s = lateout(vreg) f16s,
            wide = in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags),
        ));
        f16s
    }

    /// Sixteen f16, widened.
    #[inline(always)]
    fn widen_all(self, [a, b]: [uint16x8_t; 2]) -> Quad {
        intrinsic!([
            self.widen(vget_low_u16(a)),
            self.widen(vget_high_u16(a)),
            self.widen(vget_low_u16(b)),
            self.widen(vget_high_u16(b)),
        ])
    }

    /// The first two folds of a sum of lanes.
    #[inline(always)]
    fn sum_by4(self, a: Quad) -> float32x4_t {
        intrinsic!(vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3])))
    }

    /// The third fold of two sums: two lanes of `a`, then two of `b`.
    #[inline(always)]
    fn sum_by2(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        intrinsic!({
            let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
            let (low, high) = (vzip1q_f64(a, b), vzip2q_f64(a, b));
            vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
        })
    }
}

impl Isa for Neon {
    type F = Quad;
    /// One code per byte.
    type I = uint8x16_t;
    const TILE: (usize, usize) = (3, 2);
    const FUSED: bool = true;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        intrinsic!(enabled(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Quad {
        intrinsic!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn add(self, a: Quad, b: Quad) -> Quad {
        four!(i => vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: Quad, b: Quad) -> Quad {
        four!(i => vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: Quad, b: Quad) -> Quad {
        four!(i => vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: Quad, b: Quad) -> Quad {
        four!(i => vdivq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: Quad, b: Quad, c: Quad) -> Quad {
        four!(i => vfmaq_f32(c[i], a[i], b[i]))
    }
    // The machine's own maximum and minimum are NaN where either side is.
    #[inline(always)]
    fn max(self, a: Quad, b: Quad) -> Quad {
        four!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: Quad, b: Quad) -> Quad {
        four!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
    }
    #[inline(always)]
    fn if_less(self, [a, b]: [Quad; 2], yes: Quad, no: Quad) -> Quad {
        four!(i => vbslq_f32(vcltq_f32(a[i], b[i]), yes[i], no[i]))
    }
    #[inline(always)]
    fn pow2(self, n: Quad) -> Quad {
        four!(i => {
            let exponent = vaddq_s32(vcvtq_s32_f32(n[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }
    #[inline(always)]
    fn sum(self, a: Quad) -> f32 {
        let by4 = self.sum_by4(a);
        intrinsic!(vpadds_f32(vadd_f32(vget_low_f32(by4), vget_high_f32(by4))))
    }
    #[inline(always)]
    fn sum4(self, [a, b, c, d]: [Quad; 4]) -> [f32; 4] {
        let ab = self.sum_by2(self.sum_by4(a), self.sum_by4(b));
        let cd = self.sum_by2(self.sum_by4(c), self.sum_by4(d));
        let mut out = [0.0; 4];
        intrinsic!(vst1q_f32(out.as_mut_ptr(), vpaddq_f32(ab, cd)));
        out
    }
    #[inline(always)]
    fn largest(self, a: Quad) -> f32 {
        intrinsic!(vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(a[0], a[1]), vmaxnmq_f32(a[2], a[3]))))
    }
    #[inline(always)]
    fn lookup(self, table: Quad, codes: uint8x16_t) -> Quad {
        let table = four!(i => vreinterpretq_u8_f32(table[i]));
        // Byte `p` of every entry stands in `planes[p]`, so that one lookup of words is four of bytes. A loop
        // with one table makes them once.
        let planes = intrinsic!({
            let even = [vuzp1q_u8(table[0], table[1]), vuzp1q_u8(table[2], table[3])];
            let odd = [vuzp2q_u8(table[0], table[1]), vuzp2q_u8(table[2], table[3])];
            [
                vuzp1q_u8(even[0], even[1]),
                vuzp1q_u8(odd[0], odd[1]),
                vuzp2q_u8(even[0], even[1]),
                vuzp2q_u8(odd[0], odd[1]),
            ]
        });
        let codes = intrinsic!(vandq_u8(codes, vdupq_n_u8(15)));
        let bytes = four!(p => vqtbl1q_u8(planes[p], codes));
        intrinsic!({
            let lower = vreinterpretq_u16_u8(vzip1q_u8(bytes[0], bytes[1]));
            let upper = vreinterpretq_u16_u8(vzip1q_u8(bytes[2], bytes[3]));
            let lower_last = vreinterpretq_u16_u8(vzip2q_u8(bytes[0], bytes[1]));
            let upper_last = vreinterpretq_u16_u8(vzip2q_u8(bytes[2], bytes[3]));
            [
                vreinterpretq_f32_u16(vzip1q_u16(lower, upper)),
                vreinterpretq_f32_u16(vzip2q_u16(lower, upper)),
                vreinterpretq_f32_u16(vzip1q_u16(lower_last, upper_last)),
                vreinterpretq_f32_u16(vzip2q_u16(lower_last, upper_last)),
            ]
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        intrinsic!(asm!(
            "prfm pldl2keep, [{at}]",
            at = in(reg) at,
            options(readonly, nostack, preserves_flags),
        ));
    }
    #[inline(always)]
    fn prefetch_write(self, at: *const f32) {
        intrinsic!(asm!(
            "prfm pstl1keep, [{at}]",
            at = in(reg) at,
            options(readonly, nostack, preserves_flags),
        ));
    }

    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> Quad {
        four!(i => vld1q_f32(at.add(4 * i)))
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, a: Quad) {
        four!(i => vst1q_f32(at.add(4 * i), a[i]));
    }
    #[inline(always)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> Quad {
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
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Quad) {
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
    unsafe fn load_f16(self, at: *const u8) -> Quad {
        self.widen_all(intrinsic!([vld1q_u16(at.cast()), vld1q_u16(at.add(16).cast())]))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const u8) -> Quad {
        four!(i => {
            let stored = vld1_u16(at.add(8 * i).cast());
            vreinterpretq_f32_u32(vshll_n_u16::<16>(stored))
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, at: *const u8) -> Quad {
        intrinsic!({
            let codes = vld1q_s8(at.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> uint8x16_t {
        intrinsic!(self.spread::<BITS>(at))
    }
    #[inline(always)]
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Quad {
        intrinsic!({
            let codes = if BITS == 8 {
                vld1q_u8(at)
            } else {
                vandq_u8(self.spread::<BITS>(at), vdupq_n_u8((1 << BITS) - 1))
            };
            let (low, high) = (vmovl_u8(vget_low_u8(codes)), vmovl_high_u8(codes));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]
        })
    }
    #[inline(always)]
    unsafe fn load_e4m3(self, at: *const u8) -> Quad {
        // As f16 of 1/256 their value: sign, exponent and mantissa only move.
        let f16s = intrinsic!({
            let codes = vld1q_s8(at.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes));
            let kept = vdupq_n_u16(0xbf80);
            [
                vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(low)), kept),
                vandq_u16(vreinterpretq_u16_s16(vshlq_n_s16::<7>(high)), kept),
            ]
        });
        self.mul(self.widen_all(f16s), self.splat(256.0))
    }
    #[inline(always)]
    unsafe fn store_f16(self, at: *mut u16, a: Quad) {
        four!(i => vst1_u16(at.add(4 * i), self.narrow(a[i])));
    }
    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut u16, a: Quad) {
        four!(i => {
            let bits = vreinterpretq_u32_f32(a[i]);
            let top = vshrq_n_u32::<16>(bits);
            let up = vaddq_u32(vandq_u32(top, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
            let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, up));
            let quiet = vorrq_u32(top, vdupq_n_u32(0x40));
            let number = vceqq_f32(a[i], a[i]);
            vst1_u16(at.add(4 * i), vmovn_u32(vbslq_u32(number, rounded, quiet)));
        });
    }
}
