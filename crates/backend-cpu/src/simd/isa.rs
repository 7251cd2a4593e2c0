//! What a kernel may ask of a processor: sixteen f32 lanes and the decoding of sixteen stored numbers.
//!
//! # Numerics
//! Every operation is IEEE f32, rounded once, and [`Isa::sum`] adds in one fixed tree, so a kernel
//! written against this trait gives the same bits on every implementation of it.

use super::Scratch;

/// Lanes of a vector, whatever the registers of the machine.
pub(crate) const LANES: usize = 16;

/// No instruction set has a larger tile; channels of a tile divide this one's.
pub(crate) const LARGEST_TILE: (usize, usize) = (6, 4);

/// A piece of code that is compiled once for each instruction set, as a function of its own: small
/// enough for the compiler, large enough for a call not to matter.
pub(crate) trait Kernel {
    /// What it gives back.
    type Out;
    /// Runs it. Must be `#[inline(always)]`, to end up inside the function that enables the instructions, and so
    /// must everything it calls with vectors. That rules out closures, which cannot be marked so: one that is
    /// not inlined is compiled without the instructions, and every operation in it becomes a call.
    fn run<S: Isa>(self, simd: S) -> Self::Out;
}

/// Work that is cut into numbered tasks. Plain code that calls kernels.
pub(crate) trait Task: Sync {
    /// Does task `index`. `scratch` belongs to the thread.
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch);
}

/// A set of instructions. A value of the type exists only where the processor has them, which is
/// what makes its methods sound; only methods that take pointers are unsafe.
pub(crate) trait Isa: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen codes, one per 32-bit lane.
    type I: Copy;
    /// Rows and channels that a product keeps in registers.
    const TILE: (usize, usize);
    /// Whether products of few rows decode in registers; the same bits either way.
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
    /// Lanes folded in halves: `l + (l+8)`, then 4, 2, 1.
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

    /// Asks for the cache line at `at`, which need not be readable.
    fn prefetch(self, at: *const u8);

    /// Sixteen f32. Needs no alignment, like all loads here.
    ///
    /// # Safety
    /// 64 readable bytes.
    unsafe fn load(self, at: *const f32) -> Self::F;
    /// # Safety
    /// 64 writable bytes.
    unsafe fn store(self, at: *mut f32, a: Self::F);
    /// The first `count` lanes from memory, zeros in the others.
    ///
    /// # Safety
    /// `count <= 16` readable f32.
    unsafe fn load_part(self, at: *const f32, count: usize) -> Self::F;
    /// The first `count` lanes to memory.
    ///
    /// # Safety
    /// `count <= 16` writable f32.
    unsafe fn store_part(self, at: *mut f32, count: usize, a: Self::F);
    /// Sixteen IEEE halves, widened.
    ///
    /// # Safety
    /// 32 readable bytes.
    unsafe fn load_f16(self, at: *const u8) -> Self::F;
    /// Sixteen bfloat16, widened.
    ///
    /// # Safety
    /// 32 readable bytes.
    unsafe fn load_bf16(self, at: *const u8) -> Self::F;
    /// Sixteen codes of `BITS` (2, 3 or 4) bits for [`Isa::lookup`]; higher bits are unspecified.
    ///
    /// # Safety
    /// `2·BITS` readable bytes; no more are read.
    unsafe fn codes<const BITS: usize>(self, at: *const u8) -> Self::I;
    /// Sixteen codes of `BITS` (5, 6 or 8) bits as numbers.
    ///
    /// # Safety
    /// `2·BITS` readable bytes; no more are read.
    unsafe fn numbers<const BITS: usize>(self, at: *const u8) -> Self::F;
    /// Sixteen FP8 e4m3 numbers, none of them a NaN.
    ///
    /// # Safety
    /// 16 readable bytes.
    unsafe fn load_e4m3(self, at: *const u8) -> Self::F;
    /// Narrows to sixteen IEEE halves, ties to even.
    ///
    /// # Safety
    /// 32 writable bytes.
    unsafe fn store_f16(self, at: *mut u16, a: Self::F);
    /// Narrows to sixteen bfloat16, ties to even.
    ///
    /// # Safety
    /// 32 writable bytes.
    unsafe fn store_bf16(self, at: *mut u16, a: Self::F);
}

/// For codes of `BITS` bits: the bytes that a shuffle must bring to each 32-bit lane (0x80 brings
/// zero), and how far the lane is then shifted down.
pub(crate) struct Spread<const BITS: usize>;

impl<const BITS: usize> Spread<BITS> {
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
