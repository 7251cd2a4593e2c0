//! Instruction sets with int8 products. Kernels are written once against [`Int8Isa`]: a vector is 64 bytes, sixteen
//! channels of four bytes or of one 32-bit integer, whatever the registers of the machine.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use avx2::Avx512VnniYmm;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2Int8, AvxVnni, MaddubsPairs};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512Vnni;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{NeonDotprod, NeonI8mm};

use super::code::{Code, LIMBS};
use super::layout::PackLayout;
use super::pack::{LimbTile, largest};
use crate::simd::Level;
use crate::simd::isa::{Isa, LANES};

/// An int8 instruction set of this processor; other architectures have none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyInt8Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(Avx2Int8<AvxVnni>),
    #[cfg(all(test, target_arch = "x86_64"))]
    Avx512VnniYmm(Avx2Int8<Avx512VnniYmm>),
    #[cfg(target_arch = "x86_64")]
    MaddubsPairs(Avx2Int8<MaddubsPairs>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(NeonI8mm),
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(NeonDotprod),
}

/// Work that is generic over the instruction set.
pub(crate) trait WithInt8Isa {
    /// Its result.
    type Out;
    /// Runs it.
    fn run<S: Int8Isa>(self, simd: S) -> Self::Out;
}

impl AnyInt8Isa {
    /// The instruction set of a level, if the processor has it.
    pub(crate) fn detect(level: Level) -> Option<Self> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Amx | Level::Vnni => Avx512Vnni::detect().map(Self::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Avx2Int8::detect().map(Self::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Avx2Int8::detect().map(Self::MaddubsPairs),
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => NeonI8mm::detect().map(Self::NeonI8mm),
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => NeonDotprod::detect().map(Self::NeonDotprod),
            // Another architecture, or a level that keeps the f32 lanes: those of AVX-512 are faster for many rows than
            // `vpmaddubsw`.
            _ => None,
        }
    }

    /// Calls `work` with the instruction set.
    pub(crate) fn with<W: WithInt8Isa>(self, work: W) -> W::Out {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(simd) => work.run(simd),
            #[cfg(all(test, target_arch = "x86_64"))]
            Self::Avx512VnniYmm(simd) => work.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::MaddubsPairs(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(simd) => work.run(simd),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod(simd) => work.run(simd),
        }
    }
}

/// Vectors of codes in 32 columns.
pub(crate) const VECTORS: usize = 8;

/// How far ahead codes are prefetched. Into L2, which can have more requests in flight than L1 (measured without AMX:
/// four rows 1.45 times as fast).
const PREFETCH_BYTES: usize = 8192;

/// Half of the range of each limb of a byte, in the bits of an integer.
const RAISE: i32 = 0x80_8080;

/// A piece of code that is compiled once for each instruction set, as a function of its own. As for
/// [`Kernel`](crate::simd::isa::Kernel), all of it must be `#[inline(always)]`, without closures over vectors.
pub(crate) trait Int8Kernel {
    /// Runs it.
    fn run<S: Int8Isa>(self, simd: S);
}

/// An instruction set that multiplies bytes. A value of the type exists only where the processor has it, which is what
/// makes its methods sound; only methods that take pointers are unsafe.
pub(crate) trait Int8Isa: Copy + Send + Sync {
    /// Its f32 lanes.
    type F32: Isa;
    /// 64 bytes.
    type W: Copy;
    /// What cuts integers into limbs.
    type Splitter: LimbSplitter<Self>;
    /// Whether products take signed codes: then codes of eight bits are read 128 less than stored.
    const SIGNED: bool = false;
    /// Whether codes may have more than six bits, or index a table.
    const BYTES: bool = true;
    /// Whether kernels for wide limbs exist, see [`layout`](crate::gemm::int8::layout).
    const WIDE_LIMBS: bool = false;
    /// Whether products take rows in pairs.
    const ROW_PAIRS: bool = false;
    /// Limb planes whose accumulators fit the registers where superblocks are summed: one or three.
    const SUM_PLANES: usize = 1;

    /// Its f32 lanes.
    fn f32(self) -> Self::F32;
    /// Runs a kernel with the instructions enabled. Not inlined.
    fn call<K: Int8Kernel>(self, kernel: K);

    /// The same integer in all lanes.
    fn splat(self, x: i32) -> Self::W;
    /// The same byte everywhere.
    fn splat_byte(self, x: u8) -> Self::W;
    /// `a + b`, of 32 bits.
    fn add(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a · b`, of 32 bits.
    fn mul(self, a: Self::W, b: Self::W) -> Self::W;
    /// Bitwise and.
    fn and(self, a: Self::W, b: Self::W) -> Self::W;
    /// Bitwise or.
    fn or(self, a: Self::W, b: Self::W) -> Self::W;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::W, b: Self::W) -> Self::W;
    /// 32-bit shift left.
    fn shl<const N: i32>(self, a: Self::W) -> Self::W;
    /// Arithmetic 32-bit shift right.
    fn shr<const N: i32>(self, a: Self::W) -> Self::W;
    /// Moves bit `from` of every byte to bit `to`; other bits may cross bytes. Both are constants after inlining.
    fn move_bits(self, a: Self::W, from: usize, to: usize) -> Self::W;
    /// The entry of a table for each byte, all of which must be below sixteen.
    fn lookup16(self, table: &[u8; 16], bytes: Self::W) -> Self::W;
    /// 32-bit integers to f32, rounded to nearest even.
    fn to_f32(self, a: Self::W) -> <Self::F32 as Isa>::F;
    /// f32 to the nearest 32-bit integers, ties to even.
    fn round_i32(self, a: <Self::F32 as Isa>::F) -> Self::W;
    /// The sum of all lanes.
    fn reduce_add(self, a: Self::W) -> i32;
    /// The limbs of sixteen integers, highest first. Each integer is raised by half of every limb's range, so that
    /// limbs are its plain bytes minus 128; `order` says which lane goes to each place.
    fn limbs_of_raised(self, raised: Self::W, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS];
    /// The limbs of sixteen integers, highest first.
    #[inline(always)]
    fn limbs(self, n: Self::W, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS] {
        self.limbs_of_raised(self.add(n, self.splat(RAISE)), order)
    }
    /// The largest absolute value; infinities and NaNs are larger than any number.
    #[inline(always)]
    fn largest(self, x: &[f32]) -> f32 {
        largest(x)
    }
    /// What cuts integers into the limbs of a layout, `paired` or not.
    fn splitter(self, layout: PackLayout, paired: bool) -> Self::Splitter;

    /// Loads 64 bytes. Needs no alignment, like all loads here.
    ///
    /// # Safety
    /// `at` is readable for 64 bytes.
    unsafe fn load(self, at: *const u8) -> Self::W;
    /// Loads sixteen signed bytes as 32-bit integers.
    ///
    /// # Safety
    /// `at` is readable for 16 bytes.
    unsafe fn widen(self, at: *const u8) -> Self::W;

    /// Adds the products of `4·N` columns. Row `r` has limb plane `p` from `x[p] + r·slab` on; `codes` are below
    /// `2^BITS` of `C`.
    ///
    /// # Safety
    /// `x[p] + r·slab` is readable for `4·N` bytes for every row `r < R` and plane `p < P`.
    unsafe fn dots<C: Code, const R: usize, const P: usize, const N: usize>(
        self,
        sums: &mut [[Self::W; P]; R],
        codes: &[Self::W; N],
        x: &[*const u8; P],
        slab: usize,
    );
    /// Brings sums from one integer per channel into the register order in which [`Int8Isa::dots`] accumulates, or
    /// back.
    #[inline(always)]
    fn interleave<const R: usize, const P: usize>(self, _sums: &mut [[Self::W; P]; R]) {}
}

/// Cuts integers into the limb planes of a layout, sixteen columns at a time. What it needs for that stays in registers
/// while rows are packed. As everything in a kernel, methods must be `#[inline(always)]`.
pub(crate) trait LimbSplitter<S: Int8Isa>: Copy {
    /// The limbs of sixteen columns.
    type Planes: Copy;
    /// Sums of limbs so far.
    type Sums: Copy;

    /// No sums yet.
    fn no_sums(self, simd: S) -> Self::Sums;
    /// The limbs of sixteen integers.
    fn split(self, simd: S, n: S::W) -> Self::Planes;
    /// Adds limbs to the sums, where the layout is compensated.
    fn add(self, simd: S, sums: &mut Self::Sums, planes: Self::Planes);
    /// The sum of each limb.
    fn totals(self, simd: S, sums: Self::Sums) -> [i32; LIMBS];
    /// Stores limbs as the planes of sixteen columns.
    ///
    /// # Safety
    /// [`LimbTile::at`] of the row and the column is writable for sixteen bytes in every plane of the layout, and no
    /// other thread accesses them.
    unsafe fn store(self, simd: S, planes: Self::Planes, dst: &LimbTile, row: usize, column: usize);
}

/// Unpacks the codes of 32 columns, and prefetches those far behind them.
///
/// # Safety
/// `from` is readable for `BITS` vectors of 64 bytes.
#[inline(always)]
pub(crate) unsafe fn unpack<S: Int8Isa, C: Code>(
    simd: S,
    code: C,
    from: *const u8,
) -> [S::W; VECTORS] {
    for i in 0..C::BITS {
        simd.f32().prefetch(from.wrapping_add(PREFETCH_BYTES + i * 64));
    }
    // SAFETY: `BITS` vectors are readable at `from` (contract above).
    unsafe { codes(simd, code, from) }
}

/// Unpacks the codes of 32 columns.
///
/// # Safety
/// `from` is readable for `BITS` vectors of 64 bytes.
#[inline(always)]
pub(crate) unsafe fn codes<S: Int8Isa, C: Code>(
    simd: S,
    code: C,
    from: *const u8,
) -> [S::W; VECTORS] {
    let [low, high] = const { C::PLANES };
    let mut out = [simd.splat(0); VECTORS];
    // SAFETY: the first plane has `low` vectors and the second `high`, `BITS` in all, which are readable (contract
    // above).
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
        // Subtracting 128 flips the highest bit.
        let highest = simd.splat_byte(0x80);
        for codes in &mut out {
            *codes = simd.xor(*codes, highest);
        }
    }
    out
}

/// Adds the fields of a packed vector, of `bits` bits each, to codes from bit `to` on, starting with vector `first`.
///
/// # Safety
/// `from` is readable for 64 bytes.
#[inline(always)]
unsafe fn fields<S: Int8Isa>(
    simd: S,
    from: *const u8,
    bits: usize,
    to: usize,
    out: &mut [S::W; VECTORS],
    first: usize,
) {
    // SAFETY: 64 bytes are readable at `from` (contract above).
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
