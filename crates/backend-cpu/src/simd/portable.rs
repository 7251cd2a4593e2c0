//! Plain arrays: for any processor, and the specification of the other implementations.
//!
//! `mul_add` is a library call where the target has no fused multiply-add, so this is for
//! correctness, not speed; nothing is inlined, which keeps the code small.

use super::isa::{Isa, Kernel, LANES};
use forerun_base::{bf16_to_f32, e4m3_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use std::array::from_fn;

/// Needs no instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

#[inline(never)]
fn plainly<K: Kernel>(simd: Portable, kernel: K) -> K::Out {
    kernel.run(simd)
}

type Lanes = [f32; LANES];

/// Sixteen little-endian f16.
///
/// # Safety
/// `at` is readable for 32 bytes.
#[inline(always)]
unsafe fn f16s(at: *const u8) -> [u16; LANES] {
    // SAFETY: 32 bytes are readable (contract above); every bit pattern is a `u16`.
    unsafe { at.cast::<[u16; LANES]>().read_unaligned() }.map(u16::from_le)
}

/// Code number `lane` of `bits` bits.
///
/// # Safety
/// `at` is readable for `2·bits` bytes, and `lane < 16`.
#[inline(always)]
unsafe fn code(at: *const u8, bits: usize, lane: usize) -> u32 {
    let (first, shift) = (lane * bits / 8, lane * bits % 8);
    // SAFETY: `first` is below `2·bits`, and the second byte is read only where the code reaches it.
    let pair = unsafe {
        let low = u32::from(at.add(first).read());
        if shift + bits > 8 { low | (u32::from(at.add(first + 1).read()) << 8) } else { low }
    };
    (pair >> shift) & ((1 << bits) - 1)
}

impl Isa for Portable {
    type F = Lanes;
    type I = [u32; LANES];
    const TILE: (usize, usize) = (3, 2);
    const FUSED: bool = false;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        plainly(self, kernel)
    }

    #[inline(never)]
    fn splat(self, x: f32) -> Lanes {
        [x; LANES]
    }
    #[inline(never)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(never)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(never)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(never)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(never)]
    fn fma(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(never)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(never)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(never)]
    fn if_less(self, [a, b]: [Lanes; 2], yes: Lanes, no: Lanes) -> Lanes {
        from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(never)]
    fn pow2(self, n: Lanes) -> Lanes {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(never)]
    fn sum(self, mut a: Lanes) -> f32 {
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }
    #[inline(never)]
    fn largest(self, a: Lanes) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(never)]
    fn lookup(self, table: Lanes, codes: [u32; LANES]) -> Lanes {
        codes.map(|c| table[c as usize & 15])
    }

    #[inline(always)]
    fn prefetch(self, _at: *const u8) {}
    fn prefetch_write(self, _at: *const f32) {}

    #[inline(never)]
    unsafe fn load(self, at: *const f32) -> Lanes {
        // SAFETY: 64 bytes are readable at `at` (contract of the trait).
        unsafe { at.cast::<Lanes>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn store(self, at: *mut f32, a: Lanes) {
        // SAFETY: 64 bytes are writable at `at` (contract of the trait).
        unsafe { at.cast::<Lanes>().write_unaligned(a) }
    }
    #[inline(never)]
    unsafe fn load_part(self, at: *const f32, count: usize) -> Lanes {
        // SAFETY: only the first `count` are read.
        from_fn(|i| if i < count { unsafe { at.add(i).read_unaligned() } } else { 0.0 })
    }
    #[inline(never)]
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Lanes) {
        for (i, &x) in a.iter().take(count).enumerate() {
            // SAFETY: only the first `count` are written.
            unsafe { at.add(i).write_unaligned(x) }
        }
    }
    #[inline(never)]
    unsafe fn load_f16(self, at: *const u8) -> Lanes {
        // SAFETY: 32 bytes are readable at `at` (contract of the trait).
        unsafe { f16s(at) }.map(f16_to_f32)
    }
    #[inline(never)]
    unsafe fn load_bf16(self, at: *const u8) -> Lanes {
        // SAFETY: 32 bytes are readable at `at` (contract of the trait).
        unsafe { f16s(at) }.map(bf16_to_f32)
    }
    #[inline(never)]
    unsafe fn load_i8(self, at: *const u8) -> Lanes {
        // SAFETY: 16 bytes are readable at `at` (contract of the trait).
        unsafe { at.cast::<[i8; LANES]>().read() }.map(f32::from)
    }
    #[inline(never)]
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> [u32; LANES] {
        // SAFETY: `2·BITS` bytes are readable at `at` (contract of the trait).
        from_fn(|lane| unsafe { code(at, BITS, lane) })
    }
    #[inline(never)]
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Lanes {
        // SAFETY: `2·BITS` bytes are readable at `at` (contract of the trait).
        from_fn(|lane| unsafe { code(at, BITS, lane) } as f32)
    }
    #[inline(never)]
    unsafe fn load_e4m3(self, at: *const u8) -> Lanes {
        // SAFETY: 16 bytes are readable at `at` (contract of the trait).
        unsafe { at.cast::<[u8; LANES]>().read() }.map(e4m3_to_f32)
    }
    #[inline(never)]
    unsafe fn store_f16(self, at: *mut u16, a: Lanes) {
        // SAFETY: 32 bytes are writable at `at` (contract of the trait).
        unsafe { at.cast::<[u16; LANES]>().write_unaligned(a.map(f32_to_f16)) }
    }
    #[inline(never)]
    unsafe fn store_bf16(self, at: *mut u16, a: Lanes) {
        // SAFETY: 32 bytes are writable at `at` (contract of the trait).
        unsafe { at.cast::<[u16; LANES]>().write_unaligned(a.map(f32_to_bf16)) }
    }
}
