//! What products of whole numbers ask of a processor: 64 bytes are sixteen channels of four bytes each, or of one
//! number of 32 bits.

use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::pack::{LimbTile, WriteLimbs};
use crate::simd::isa::{Isa, LANES};

/// Vectors of bytes in 32 columns.
pub(crate) const VECTORS: usize = 8;

/// How far ahead of its use a code is asked for. The second-level cache is asked, which can have more requests under
/// way than the first-level one (measured where there are no tiles: four rows 1.45 times as fast).
const PREFETCH_BYTES: usize = 8192;

/// A piece of code that is compiled once for each set of instructions, as a function of its own. As for
/// [`crate::simd::isa::Kernel`], all of it must be `#[inline(always)]`, without closures over vectors.
pub(crate) trait Int8Kernel {
    /// Runs it.
    fn run<S: Int8Isa>(self, simd: S);
}

/// A set of instructions that multiplies bytes. A value of the type exists only where the processor has them, which is
/// what makes its methods sound; only methods that take pointers are unsafe.
pub(crate) trait Int8Isa: Copy + Send + Sync {
    /// The instructions for numbers of f32.
    type F32: Isa;
    /// 64 bytes.
    type W: Copy;
    /// Whether codes of eight bits are multiplied as numbers with a sign; others are below 128 and have none.
    const SIGNED: bool = false;
    /// Whether codes may have more than six bits, or be entries of a table.
    const BYTES: bool = true;
    /// Whether numbers may have long digits, see [`crate::gemm::int8::layout`].
    const WIDE_LIMBS: bool = false;
    /// Whether rows are best multiplied in pairs.
    const ROW_PAIRS: bool = false;
    /// Planes whose sums have room in registers where superblocks are summed: one or three.
    const SUM_PLANES: usize = 1;

    /// The instructions for numbers of f32.
    fn f32(self) -> Self::F32;
    /// Runs a kernel with the instructions enabled. Not inlined.
    fn call<K: Int8Kernel>(self, kernel: K);

    /// The same number in all channels.
    fn splat(self, x: i32) -> Self::W;
    /// The same byte everywhere.
    fn splat_byte(self, x: u8) -> Self::W;
    /// `a + b`, of 32 bits.
    fn add(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a · b`, of 32 bits.
    fn mul(self, a: Self::W, b: Self::W) -> Self::W;
    /// The bits of both.
    fn and(self, a: Self::W, b: Self::W) -> Self::W;
    /// The bits of either.
    fn or(self, a: Self::W, b: Self::W) -> Self::W;
    /// The bits of one of them.
    fn xor(self, a: Self::W, b: Self::W) -> Self::W;
    /// Whole numbers moved up by `N` bits.
    fn shl<const N: i32>(self, a: Self::W) -> Self::W;
    /// Whole numbers moved down by `N` bits, rounded down.
    fn shr<const N: i32>(self, a: Self::W) -> Self::W;
    /// Moves bit `from` of every byte to bit `to`; what else moves may cross bytes. Both are constants wherever this is
    /// used.
    fn move_bits(self, a: Self::W, from: usize, to: usize) -> Self::W;
    /// The entry of a table for each byte, all of which are below sixteen.
    fn lookup16(self, table: &[u8; 16], bytes: Self::W) -> Self::W;
    /// Whole numbers as f32.
    fn to_f32(self, a: Self::W) -> <Self::F32 as Isa>::F;
    /// The nearest whole numbers, ties to even.
    fn round_i32(self, a: <Self::F32 as Isa>::F) -> Self::W;
    /// The sum of all channels.
    fn reduce_add(self, a: Self::W) -> i32;
    /// The digits of whole numbers raised by half of each digit's range, highest first: `order` says which channel goes
    /// to each place.
    fn limbs(self, raised: Self::W, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS];

    /// 64 bytes. Needs no alignment, like all loads here.
    ///
    /// # Safety
    /// So many readable bytes.
    unsafe fn load(self, at: *const u8) -> Self::W;
    /// Sixteen bytes with a sign as whole numbers.
    ///
    /// # Safety
    /// So many readable bytes.
    unsafe fn widen(self, at: *const u8) -> Self::W;

    /// Adds the products of `4·N` columns. Row `r` has the digits of plane `p` from `x[p] + r·slab` on; `codes` are
    /// below `2^BITS` of `C`.
    ///
    /// # Safety
    /// Every row has the columns.
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[Self::W; P]; R],
        codes: &[Self::W; N],
        x: &[*const u8; P],
        slab: usize,
    );
    /// Brings sums into the order in which [`Int8Isa::dots`] adds to them, or back.
    #[inline(always)]
    fn interleave<const R: usize, const P: usize>(self, _sums: &mut [[Self::W; P]; R]) {}

    /// Stores rows as digits.
    ///
    /// # Safety
    /// `dst` is as it says, and has room for so many rows.
    unsafe fn write(self, dst: &LimbTile, rows: &[&[f32]]) {
        self.call(WriteLimbs { dst, rows });
    }
}

/// The codes of 32 columns; those far behind them are asked for.
///
/// # Safety
/// `BITS` vectors of 64 bytes at `from`.
#[inline(always)]
pub(crate) unsafe fn unpack<S: Int8Isa, C: Code>(
    simd: S,
    code: C,
    from: *const u8,
) -> [S::W; VECTORS] {
    for i in 0..C::BITS {
        simd.f32().prefetch(from.wrapping_add(PREFETCH_BYTES + i * 64));
    }
    // SAFETY: the caller's promise.
    unsafe { codes(simd, code, from) }
}

/// The codes of 32 columns.
///
/// # Safety
/// `BITS` vectors of 64 bytes at `from`.
#[inline(always)]
pub(crate) unsafe fn codes<S: Int8Isa, C: Code>(
    simd: S,
    code: C,
    from: *const u8,
) -> [S::W; VECTORS] {
    let [low, high] = const { C::PLANES };
    let mut out = [simd.splat(0); VECTORS];
    // SAFETY: the caller's promise: the first plane, then the second.
    unsafe {
        for i in 0..low {
            fields(simd, from.wrapping_add(i * 64), low, 0, &mut out, i * (8 / low));
        }
        for i in 0..high {
            let first = i * (8 / high.max(1));
            fields(simd, from.wrapping_add((low + i) * 64), high, low, &mut out, first);
        }
    }
    if let Some(table) = code.table(S::SIGNED) {
        for codes in &mut out {
            *codes = simd.lookup16(&table, *codes);
        }
    } else if S::SIGNED && C::BITS == 8 {
        // 128 less is the other highest bit.
        let highest = simd.splat_byte(0x80);
        for codes in &mut out {
            *codes = simd.xor(*codes, highest);
        }
    }
    out
}

/// Adds the fields of a vector, of `bits` bits each, to codes from bit `to` on, from vector `first` on.
///
/// # Safety
/// 64 readable bytes.
#[inline(always)]
unsafe fn fields<S: Int8Isa>(
    simd: S,
    from: *const u8,
    bits: usize,
    to: usize,
    out: &mut [S::W; VECTORS],
    first: usize,
) {
    // SAFETY: the caller's promise.
    let all = unsafe { simd.load(from) };
    let mask = simd.splat_byte((((1_u32 << bits) - 1) << to) as u8);
    for field in 0..8 / bits {
        let out = &mut out[first + field];
        if bits == 8 {
            *out = all;
            continue;
        }
        let moved = simd.and(simd.move_bits(all, field * bits, to), mask);
        *out = if to == 0 { moved } else { simd.or(*out, moved) };
    }
}
