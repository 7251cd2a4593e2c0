//! NEON: four registers hold sixteen channels. Bytes are multiplied by `sdot` (`dotprod`), or by `smmla` (`i8mm`), a
//! matrix product of two rows and two channels, where rows come in pairs.
//!
//! Products are inline assembly: Rust has no stable intrinsics for them.

use super::{Int8Isa, Int8Kernel};
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::layout::PackLayout;
use crate::gemm::int8::pack::ByteLimbs;
use crate::simd::isa::LANES;
use crate::simd::neon::{Neon, four};
use std::arch::aarch64::*;
use std::arch::asm;
use std::arch::is_aarch64_feature_detected as has;

/// Sixteen channels of four bytes.
type QuadI8 = [int8x16_t; 4];

/// Proof that the processor has `dotprod`, and `i8mm` where `I8MM`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeonInt8<const I8MM: bool>(Neon);

/// By `sdot`.
pub(crate) type NeonDotprod = NeonInt8<false>;
/// By `smmla`.
pub(crate) type NeonI8mm = NeonInt8<true>;

impl<const I8MM: bool> NeonInt8<I8MM> {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let neon = Neon::detect()?;
        (has!("dotprod") && (!I8MM || has!("i8mm"))).then_some(Self(neon))
    }
}

#[inline(never)]
#[target_feature(enable = "neon,dotprod")]
fn with_dots<S: Int8Isa, K: Int8Kernel>(simd: S, kernel: K) {
    kernel.run(simd);
}

#[inline(never)]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn with_i8mm<S: Int8Isa, K: Int8Kernel>(simd: S, kernel: K) {
    kernel.run(simd);
}

macro_rules! intrinsic {
    ($intrinsic:expr) => {
        // SAFETY: a `NeonInt8` exists only where the processor has these instructions; where an intrinsic takes a
        // pointer, the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

/// `sdot`: adds the products of four channels' bytes with word `$lane` of `$x`.
macro_rules! dot {
    ($sum:expr, $codes:expr, $x:expr, $lane:literal) => {
        asm!(
            ".arch_extension dotprod",
            concat!("sdot {sum:v}.4s, {codes:v}.16b, {x:v}.4b[", $lane, "]"),
            sum = inout(vreg) $sum,
            codes = in(vreg) $codes,
            x = in(vreg) $x,
            options(pure, nomem, nostack, preserves_flags),
        )
    };
}

/// Adds the products of four channels' codes with four words of each row.
///
/// # Safety
/// The CPU supports `dotprod`.
#[inline(always)]
unsafe fn sixteen_columns<const R: usize>(
    sums: &mut [QuadI8; R],
    [a, b, c, d]: [&QuadI8; 4],
    rows: &[int8x16_t; R],
) {
    macro_rules! lanes {
        ($($codes:ident $lane:literal),*) => {$(
            for r in 0..R {
                for i in 0..4 {
                    // SAFETY: the CPU supports `dotprod` (contract above).
                    unsafe { dot!(sums[r][i], $codes[i], rows[r], $lane) };
                }
            }
        )*};
    }
    lanes!(a 0, b 1, c 2, d 3);
}

/// `smmla`: adds the products of two rows of eight bytes with two channels of eight bytes.
///
/// # Safety
/// The CPU supports `i8mm`.
#[inline(always)]
unsafe fn matrix(sum: &mut int8x16_t, rows: int8x16_t, channels: int8x16_t) {
    // SAFETY: the CPU supports `i8mm` (contract above).
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {sum:v}.4s, {rows:v}.16b, {channels:v}.16b",
            sum = inout(vreg) *sum,
            rows = in(vreg) rows,
            channels = in(vreg) channels,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
}

/// Reinterprets bytes as 32-bit lanes.
#[inline(always)]
fn wide(a: int8x16_t) -> int32x4_t {
    // SAFETY: NEON is part of every aarch64 processor; registers only.
    unsafe { vreinterpretq_s32_s8(a) }
}

/// Reinterprets 32-bit lanes as bytes.
#[inline(always)]
fn bytes(a: int32x4_t) -> int8x16_t {
    // SAFETY: NEON is part of every aarch64 processor; registers only.
    unsafe { vreinterpretq_s8_s32(a) }
}

/// The low halves of both registers, and the high halves.
#[inline(always)]
fn halves(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: NEON is part of every aarch64 processor; registers only.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
    }
}

impl<const I8MM: bool> Int8Isa for NeonInt8<I8MM> {
    type F32 = Neon;
    type W = QuadI8;
    type Splitter = ByteLimbs;
    const SIGNED: bool = true;
    const ROW_PAIRS: bool = I8MM;

    #[inline(always)]
    fn f32(self) -> Neon {
        self.0
    }
    #[inline(always)]
    fn call<K: Int8Kernel>(self, kernel: K) {
        intrinsic!(if I8MM { with_i8mm(self, kernel) } else { with_dots(self, kernel) });
    }

    #[inline(always)]
    fn splat(self, x: i32) -> QuadI8 {
        intrinsic!([bytes(vdupq_n_s32(x)); 4])
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> QuadI8 {
        intrinsic!([vdupq_n_s8(x as i8); 4])
    }
    #[inline(always)]
    fn add(self, a: QuadI8, b: QuadI8) -> QuadI8 {
        four!(i => bytes(vaddq_s32(wide(a[i]), wide(b[i]))))
    }
    #[inline(always)]
    fn mul(self, a: QuadI8, b: QuadI8) -> QuadI8 {
        four!(i => bytes(vmulq_s32(wide(a[i]), wide(b[i]))))
    }
    #[inline(always)]
    fn and(self, a: QuadI8, b: QuadI8) -> QuadI8 {
        four!(i => vandq_s8(a[i], b[i]))
    }
    #[inline(always)]
    fn or(self, a: QuadI8, b: QuadI8) -> QuadI8 {
        four!(i => vorrq_s8(a[i], b[i]))
    }
    #[inline(always)]
    fn xor(self, a: QuadI8, b: QuadI8) -> QuadI8 {
        four!(i => veorq_s8(a[i], b[i]))
    }
    #[inline(always)]
    fn shl<const N: i32>(self, a: QuadI8) -> QuadI8 {
        four!(i => bytes(vshlq_n_s32::<N>(wide(a[i]))))
    }
    #[inline(always)]
    fn shr<const N: i32>(self, a: QuadI8) -> QuadI8 {
        four!(i => bytes(vshrq_n_s32::<N>(wide(a[i]))))
    }
    #[inline(always)]
    fn move_bits(self, a: QuadI8, from: usize, to: usize) -> QuadI8 {
        let count = intrinsic!(vdupq_n_s8(to as i8 - from as i8));
        four!(i => vreinterpretq_s8_u8(vshlq_u8(vreinterpretq_u8_s8(a[i]), count)))
    }
    #[inline(always)]
    fn lookup16(self, table: &[u8; 16], codes: QuadI8) -> QuadI8 {
        let table = intrinsic!(vld1q_s8(table.as_ptr().cast()));
        four!(i => vqtbl1q_s8(table, vreinterpretq_u8_s8(codes[i])))
    }
    #[inline(always)]
    fn to_f32(self, a: QuadI8) -> [float32x4_t; 4] {
        four!(i => vcvtq_f32_s32(wide(a[i])))
    }
    #[inline(always)]
    fn round_i32(self, a: [float32x4_t; 4]) -> QuadI8 {
        four!(i => bytes(vcvtnq_s32_f32(a[i])))
    }
    #[inline(always)]
    fn reduce_add(self, a: QuadI8) -> i32 {
        let [a, b, c, d] = [wide(a[0]), wide(a[1]), wide(a[2]), wide(a[3])];
        intrinsic!(vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d))))
    }
    #[inline(always)]
    fn splitter(self, layout: PackLayout, _paired: bool) -> ByteLimbs {
        ByteLimbs::new(layout)
    }
    #[inline(always)]
    fn limbs_of_raised(self, raised: QuadI8, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS] {
        let mut out = [[0; LANES]; LIMBS];
        intrinsic!({
            let all = uint8x16x4_t(
                vreinterpretq_u8_s8(raised[0]),
                vreinterpretq_u8_s8(raised[1]),
                vreinterpretq_u8_s8(raised[2]),
                vreinterpretq_u8_s8(raised[3]),
            );
            let first = vshlq_n_u8::<2>(vld1q_u8(order.as_ptr()));
            for p in 0..LIMBS {
                // Byte `2 − p` of every integer, in the order of `order`.
                let at = vaddq_u8(first, vdupq_n_u8((LIMBS - 1 - p) as u8));
                let plane = vqtbl4q_u8(all, at);
                // Subtracting 128 flips the highest bit.
                vst1q_u8(out[p].as_mut_ptr(), veorq_u8(plane, vdupq_n_u8(0x80)));
            }
        });
        out
    }

    #[inline(always)]
    unsafe fn load(self, at: *const u8) -> QuadI8 {
        four!(i => vld1q_s8(at.add(16 * i).cast()))
    }
    #[inline(always)]
    unsafe fn widen(self, at: *const u8) -> QuadI8 {
        intrinsic!({
            let all = vld1q_s8(at.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(all)), vmovl_high_s8(all));
            [
                bytes(vmovl_s16(vget_low_s16(low))),
                bytes(vmovl_high_s16(low)),
                bytes(vmovl_s16(vget_low_s16(high))),
                bytes(vmovl_high_s16(high)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[QuadI8; P]; R],
        codes: &[QuadI8; N],
        x: &[*const u8; P],
        slab: usize,
    ) {
        // SAFETY: the value proves the instructions; rows are readable for `4·N` bytes by the contract of `dots`.
        unsafe {
            if I8MM && R.is_multiple_of(2) {
                return matrices(sums, codes, x, slab);
            }
            for p in 0..P {
                let mut plane = plane_of(sums, p);
                for j in (0..N).step_by(4) {
                    let mut rows = [vdupq_n_s8(0); R];
                    for r in 0..R {
                        rows[r] = vld1q_s8(x[p].wrapping_add(r * slab + 4 * j).cast());
                    }
                    let some = [&codes[j], &codes[j + 1], &codes[j + 2], &codes[j + 3]];
                    sixteen_columns(&mut plane, some, &rows);
                }
                put_plane(sums, p, plane);
            }
        }
    }

    #[inline(always)]
    fn interleave<const R: usize, const P: usize>(self, sums: &mut [[QuadI8; P]; R]) {
        if !I8MM || !R.is_multiple_of(2) {
            return;
        }
        // `smmla` sums two channels of both rows in one register. Swapping halves between the rows' registers is its
        // own inverse.
        for r in (0..R).step_by(2) {
            for p in 0..P {
                for i in 0..4 {
                    let both = halves(sums[r][p][i], sums[r + 1][p][i]);
                    [sums[r][p][i], sums[r + 1][p][i]] = both;
                }
            }
        }
    }
}

/// The sums of one plane: there are registers for one plane at a time; codes come from the stack.
#[inline(always)]
fn plane_of<const R: usize, const P: usize>(sums: &[[QuadI8; P]; R], p: usize) -> [QuadI8; R] {
    let mut plane = [sums[0][p]; R];
    for r in 0..R {
        plane[r] = sums[r][p];
    }
    plane
}

/// Stores them back.
#[inline(always)]
fn put_plane<const R: usize, const P: usize>(
    sums: &mut [[QuadI8; P]; R],
    p: usize,
    plane: [QuadI8; R],
) {
    for r in 0..R {
        sums[r][p] = plane[r];
    }
}

/// As [`Int8Isa::dots`], for pairs of rows.
///
/// # Safety
/// As for [`Int8Isa::dots`] with an even `R`, and the CPU supports `i8mm`.
#[inline(always)]
unsafe fn matrices<const R: usize, const P: usize, const N: usize>(
    sums: &mut [[QuadI8; P]; R],
    codes: &[QuadI8; N],
    x: &[*const u8; P],
    slab: usize,
) {
    let mut channels = *codes;
    for j in (0..N).step_by(2) {
        for i in 0..4 {
            // Eight columns of two channels, and of the next two.
            let (a, b) = (wide(codes[j][i]), wide(codes[j + 1][i]));
            // SAFETY: NEON is part of every aarch64 processor; registers only.
            unsafe {
                channels[j][i] = bytes(vzip1q_s32(a, b));
                channels[j + 1][i] = bytes(vzip2q_s32(a, b));
            }
        }
    }
    for p in 0..P {
        let mut plane = plane_of(sums, p);
        for j in (0..N).step_by(2) {
            for r in (0..R).step_by(2) {
                let at = x[p].wrapping_add(r * slab + 4 * j);
                // SAFETY: rows `r` and `r + 1` are readable for `4·N` bytes by the contract of `dots`; `i8mm` is there.
                unsafe {
                    let rows = vcombine_s8(vld1_s8(at.cast()), vld1_s8(at.add(slab).cast()));
                    for i in 0..4 {
                        matrix(&mut plane[r][i], rows, channels[j][i]);
                        matrix(&mut plane[r + 1][i], rows, channels[j + 1][i]);
                    }
                }
            }
        }
        put_plane(sums, p, plane);
    }
}
