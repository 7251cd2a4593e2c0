//! The vector abstraction: sixteen f32 lanes, and decoding of sixteen stored numbers.
//!
//! # Numerics
//! Every operation is IEEE f32, rounded once, and [`Isa::sum`] adds in one fixed tree, so a kernel
//! written against this trait gives the same bits on every implementation of it.

use super::Scratch;

/// Lanes of a vector, whatever the registers of the machine.
pub(crate) const LANES: usize = 16;

/// The largest register block of any instruction set; channels of the others divide this one's.
pub(crate) const LARGEST_TILE: (usize, usize) = (6, 4);

/// A piece of code that is compiled once for each instruction set, as a function of its own: small
/// enough for the compiler, large enough for a call not to matter.
pub(crate) trait Kernel {
    /// Its result.
    type Out;
    /// Runs it. Must be `#[inline(always)]`, to end up inside the function that enables the instructions, and so must
    /// everything it calls with vectors. That rules out closures, which cannot be marked so: one that is not inlined is
    /// compiled without the instructions, and every operation in it becomes a call.
    fn run<S: Isa>(self, simd: S) -> Self::Out;
}

/// Work that is divided into numbered tasks. Plain code that calls kernels.
pub(crate) trait Task: Sync {
    /// Runs task `index`. `scratch` belongs to the thread.
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch);
}

/// An instruction set. A value of the type exists only where the processor has it, which is what makes its methods
/// sound; only methods that take pointers are unsafe.
pub(crate) trait Isa: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen codes, in whatever form.
    type I: Copy;
    /// The register block of a product: rows and channels.
    const TILE: (usize, usize);
    /// Whether GEMV kernels decode in registers; the same bits either way.
    const FUSED: bool;

    /// Runs a kernel with the instructions enabled. Not inlined.
    fn call<K: Kernel>(self, kernel: K) -> K::Out;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a − b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; `b` where either is not a number.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is not a number.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` where `a_b[0] < a_b[1]`, else `no`.
    fn if_less(self, a_b: [Self::F; 2], yes: Self::F, no: Self::F) -> Self::F;
    /// `2ⁿ` for integral `n` in −126..=127, 0 for −127.
    fn pow2(self, n: Self::F) -> Self::F;
    /// Lanes folded by halves: `l + (l+8)`, then 4, 2, 1.
    fn sum(self, a: Self::F) -> f32;
    /// Four sums at once.
    #[inline(always)]
    fn sum4(self, a: [Self::F; 4]) -> [f32; 4] {
        let [a, b, c, d] = a;
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }
    /// The largest lane.
    fn largest(self, a: Self::F) -> f32;
    /// Entry `code & 15` of a table of sixteen; higher bits of a code are ignored.
    fn lookup(self, table: Self::F, codes: Self::I) -> Self::F;

    /// Prefetches the line at `at`, which need not be readable, into L2. Not into L1: rows a page apart compete for its
    /// few ways, and it has few requests in flight.
    fn prefetch(self, at: *const u8);
    /// Prefetches the line at `at`, which need not be writable, for a store.
    fn prefetch_write(self, at: *const f32);

    /// Sixteen f32. Needs no alignment, like all loads here.
    ///
    /// # Safety
    /// `at` is readable for 64 bytes.
    unsafe fn load(self, at: *const f32) -> Self::F;
    /// # Safety
    /// `at` is writable for 64 bytes.
    unsafe fn store(self, at: *mut f32, a: Self::F);
    /// The first `count` lanes from memory, zeros in the others.
    ///
    /// # Safety
    /// `count ≤ 16`, and `at` is readable for `count` f32.
    unsafe fn load_part(self, at: *const f32, count: usize) -> Self::F;
    /// The first `count` lanes to memory.
    ///
    /// # Safety
    /// `count ≤ 16`, and `at` is writable for `count` f32.
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Self::F);
    /// Sixteen f16, widened.
    ///
    /// # Safety
    /// `at` is readable for 32 bytes.
    unsafe fn load_f16(self, at: *const u8) -> Self::F;
    /// Sixteen bfloat16, widened.
    ///
    /// # Safety
    /// `at` is readable for 32 bytes.
    unsafe fn load_bf16(self, at: *const u8) -> Self::F;
    /// Sixteen signed bytes as f32.
    ///
    /// # Safety
    /// `at` is readable for 16 bytes.
    unsafe fn load_i8(self, at: *const u8) -> Self::F;
    /// Sixteen codes of `BITS` (2, 3 or 4) bits for [`Isa::lookup`]; higher bits are unspecified.
    ///
    /// # Safety
    /// `at` is readable for `2·BITS` bytes; no more are read.
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> Self::I;
    /// Sixteen codes of `BITS` (5, 6 or 8) bits as numbers.
    ///
    /// # Safety
    /// `at` is readable for `2·BITS` bytes; no more are read.
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Self::F;
    /// Sixteen FP8 e4m3 numbers, none of them a NaN.
    ///
    /// # Safety
    /// `at` is readable for 16 bytes.
    unsafe fn load_e4m3(self, at: *const u8) -> Self::F;
    /// Narrows to sixteen f16, ties to even.
    ///
    /// # Safety
    /// `at` is writable for 32 bytes.
    unsafe fn store_f16(self, at: *mut u16, a: Self::F);
    /// Narrows to sixteen bfloat16, ties to even.
    ///
    /// # Safety
    /// `at` is writable for 32 bytes.
    unsafe fn store_bf16(self, at: *mut u16, a: Self::F);
}

/// For codes of `BITS` bits: the bytes that a shuffle must bring to each 32-bit lane (0x80 brings
/// zero), and how far the lane is then shifted down.
pub(crate) struct CodeSpread<const BITS: usize>;

impl<const BITS: usize> CodeSpread<BITS> {
    /// Four byte numbers per lane.
    pub(crate) const BYTES: [u8; 64] = {
        let mut bytes = [0x80; 64];
        let mut lane = 0;
        while lane < LANES {
            let first = lane * BITS / 8;
            bytes[4 * lane] = first as u8;
            if first + 1 < 2 * BITS {
                bytes[4 * lane + 1] = first as u8 + 1;
            }
            lane += 1;
        }
        bytes
    };

    /// Bits below the code in its lane.
    pub(crate) const SHIFTS: [u32; LANES] = {
        let mut shifts = [0; LANES];
        let mut lane = 0;
        while lane < LANES {
            shifts[lane] = (lane * BITS % 8) as u32;
            lane += 1;
        }
        shifts
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::exec_ctx::{ExecCtx, Level};
    use std::array::from_fn;
    use std::sync::Mutex;

    /// Zeros, the smallest and largest of f32 and of f16, ties of both narrow types, infinity and NaN.
    const AWKWARD: [u32; LANES] = [
        0x0000_0000,
        0x8000_0000,
        0x0000_0001,
        0x807f_ffff,
        0x3300_0000,
        0x3300_0001,
        0xb8ff_f000,
        0x3f80_1000,
        0x3f80_3000,
        0x3f80_8000,
        0xbf81_8000,
        0x477f_efff,
        0x477f_f000,
        0xff7f_ffff,
        0x7f80_0000,
        0x7fc0_0000,
    ];

    /// Bits of everything that came out, in order.
    struct FoundBits<'a>(&'a mut Vec<u32>);

    impl FoundBits<'_> {
        /// The bits of a NaN are not specified.
        fn float(&mut self, x: f32) {
            self.0.push(if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() });
        }

        #[inline(always)]
        fn vector<S: Isa>(&mut self, simd: S, a: S::F) {
            let mut lanes = [0.0; LANES];
            // SAFETY: sixteen f32.
            unsafe { simd.store(lanes.as_mut_ptr(), a) };
            lanes.into_iter().for_each(|x| self.float(x));
        }

        #[inline(always)]
        fn arithmetic<S: Isa>(&mut self, simd: S, [a, b, c]: [S::F; 3]) {
            self.vector(simd, simd.add(a, b));
            self.vector(simd, simd.sub(a, b));
            self.vector(simd, simd.mul(a, b));
            self.vector(simd, simd.div(a, b));
            self.vector(simd, simd.fma(a, b, c));
            self.vector(simd, simd.max(a, b));
            self.vector(simd, simd.min(a, b));
            self.vector(simd, simd.if_less([a, b], c, simd.splat(0.5)));
        }

        #[inline(always)]
        fn folds<S: Isa>(&mut self, simd: S, [a, b, c]: [S::F; 3]) {
            self.float(simd.sum(a));
            simd.sum4([a, b, c, simd.splat(0.1)]).into_iter().for_each(|x| self.float(x));
            self.float(simd.largest(a));
        }

        #[inline(always)]
        fn parts<S: Isa>(&mut self, simd: S, numbers: &[f32; LANES]) {
            for count in 0..=LANES {
                // Nothing readable follows the part.
                let part = numbers[LANES - count..].to_vec();
                let mut out = [7.0; LANES];
                // SAFETY: `count` f32 each.
                unsafe {
                    let a = simd.load_part(part.as_ptr(), count);
                    self.vector(simd, a);
                    simd.store_part(out.as_mut_ptr(), count, simd.add(a, simd.splat(1.0)));
                }
                out.into_iter().for_each(|x| self.float(x));
            }
        }

        #[inline(always)]
        fn narrowed<S: Isa>(&mut self, simd: S, a: S::F) {
            let (mut f16, mut bf16) = ([0; LANES], [0; LANES]);
            // SAFETY: 32 bytes each.
            unsafe {
                simd.store_f16(f16.as_mut_ptr(), a);
                simd.store_bf16(bf16.as_mut_ptr(), a);
            }
            f16.into_iter().for_each(|x| self.float(forerun_base::f16_to_f32(x)));
            bf16.into_iter().for_each(|x| self.float(forerun_base::bf16_to_f32(x)));
        }

        #[inline(always)]
        fn widened<S: Isa>(&mut self, simd: S, f16s: [u16; LANES], bytes: [u8; LANES]) {
            // SAFETY: 32 bytes of f16, 16 of codes.
            unsafe {
                self.vector(simd, simd.load_f16(f16s.as_ptr().cast()));
                self.vector(simd, simd.load_bf16(f16s.as_ptr().cast()));
                self.vector(simd, simd.numbers::<8>(bytes.as_ptr()));
                self.vector(simd, simd.load_i8(bytes.as_ptr()));
                // `load_e4m3` must not get a NaN.
                let numbers = bytes.map(|code| if code & 0x7f == 0x7f { 0 } else { code });
                self.vector(simd, simd.load_e4m3(numbers.as_ptr()));
            }
        }

        #[inline(always)]
        fn unpacked<S: Isa, const BITS: usize>(&mut self, simd: S, bytes: &[u8; LANES]) {
            // Nothing readable follows the codes.
            let packed = bytes[..2 * BITS].to_vec();
            // The bits above a code are unspecified, so the table repeats.
            let table: [f32; LANES] = from_fn(|i| (i % (1 << BITS.min(4))) as f32 / 3.0);
            // SAFETY: `2·BITS` bytes of codes, sixteen entries.
            unsafe {
                self.vector(
                    simd,
                    if BITS <= 4 {
                        simd.lookup(simd.load(table.as_ptr()), simd.codes::<BITS>(packed.as_ptr()))
                    } else {
                        simd.numbers::<BITS>(packed.as_ptr())
                    },
                );
            }
        }
    }

    impl Kernel for FoundBits<'_> {
        type Out = ();
        #[inline(always)]
        fn run<S: Isa>(mut self, simd: S) {
            let awkward = AWKWARD.map(f32::from_bits);
            let plain: [f32; LANES] = from_fn(|i| (i as f32 - 7.3).powi(3) / 7.0);
            for turn in 0..LANES {
                for (numbers, awkward) in [(awkward, true), (plain, false)] {
                    let rotated = |by: usize| from_fn(|i| numbers[(i + by) % LANES]);
                    let [a, b, c]: [[f32; LANES]; 3] =
                        [rotated(0), rotated(turn), rotated(3 * turn + 1)];
                    // SAFETY: sixteen f32 each.
                    let abc = unsafe {
                        [simd.load(a.as_ptr()), simd.load(b.as_ptr()), simd.load(c.as_ptr())]
                    };
                    self.arithmetic(simd, abc);
                    if !awkward {
                        self.folds(simd, [abc[1], abc[2], abc[0]]);
                    }
                }
            }
            self.parts(simd, &plain);
            (-126..=127).for_each(|n| self.vector(simd, simd.pow2(simd.splat(n as f32))));
            for i in 0..1 << 12 {
                let bits: [u32; LANES] = from_fn(|lane| (16 * i + lane as u32) * 0x1_0001);
                let numbers = bits.map(f32::from_bits);
                // SAFETY: sixteen f32.
                self.narrowed(simd, unsafe { simd.load(numbers.as_ptr()) });
                let bytes = bits.map(|bits| (bits ^ (bits >> 7)) as u8);
                self.widened(simd, bits.map(|bits| bits as u16), bytes);
                self.unpacked::<S, 2>(simd, &bytes);
                self.unpacked::<S, 3>(simd, &bytes);
                self.unpacked::<S, 4>(simd, &bytes);
                self.unpacked::<S, 5>(simd, &bytes);
                self.unpacked::<S, 6>(simd, &bytes);
            }
            // SAFETY: sixteen f32.
            self.narrowed(simd, unsafe { simd.load(awkward.as_ptr()) });
        }
    }

    struct Probe(Mutex<Vec<u32>>);

    impl Task for Probe {
        fn run<S: Isa>(&self, simd: S, _index: usize, _scratch: &mut Scratch) {
            simd.call(FoundBits(&mut self.0.lock().expect("one task")));
        }
    }

    fn found(level: Level) -> Vec<u32> {
        let probe = Probe(Mutex::default());
        ExecCtx::new(level, Some(1)).expect("the level is available").run_inline(1, &probe);
        probe.0.into_inner().expect("one task")
    }

    #[test]
    fn every_operation_of_vectors_has_the_same_bits_on_every_level() {
        let expected = found(Level::Portable);
        for level in Level::ALL.into_iter().filter(|level| level.available()) {
            let found = found(level);
            let at = found.iter().zip(&expected).position(|(a, b)| a != b);
            let pair = at.map(|i| (i, found[i], expected[i]));
            assert_eq!((found.len(), pair), (expected.len(), None), "{level:?}");
        }
    }
}
