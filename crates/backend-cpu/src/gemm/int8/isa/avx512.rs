//! AVX-512 VNNI: one register holds sixteen channels.

use super::LimbSplitter;
use super::{Int8Isa, Int8Kernel};
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::layout::{PAIR_BYTES, PackLayout};
use crate::gemm::int8::pack::{LimbTile, code_place};
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, DQ, VL, VNNI and VBMI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    /// The proof, if the processor has the instructions.
    pub(crate) fn detect() -> Option<Self> {
        let avx512 = Avx512::detect()?;
        (has!("avx512vnni") && has!("avx512vbmi")).then_some(Self(avx512))
    }

    /// The proof without detection.
    ///
    /// # Safety
    /// The CPU supports AVX-512 F, BW, DQ, VL, VNNI and VBMI, AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn new_unchecked() -> Self {
        // SAFETY: the CPU has AVX-512 F, BW, DQ and VL (contract above).
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
        // SAFETY: an `Avx512Vnni` exists only where the processor has these instructions; where an intrinsic takes a
        // pointer, the range it touches is what the `# Safety` section of the enclosing method demands.
        unsafe { $intrinsic }
    };
}

impl Int8Isa for Avx512Vnni {
    type F32 = Avx512;
    type W = __m512i;
    type Splitter = Avx512Limbs;
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
        // Counts are constants after inlining.
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
    fn largest(self, x: &[f32]) -> f32 {
        intrinsic!({
            let mut most = _mm512_setzero_si512();
            let magnitude = _mm512_set1_epi32(i32::MAX);
            for part in x.chunks(LANES) {
                // The mask ends with the slice, so nothing behind it is read.
                let mask = ((1_u32 << part.len()) - 1) as u16;
                let bits = _mm512_maskz_loadu_epi32(mask, part.as_ptr().cast());
                most = _mm512_max_epi32(most, _mm512_and_si512(bits, magnitude));
            }
            f32::from_bits(_mm512_reduce_max_epi32(most) as u32)
        })
    }
    #[inline(always)]
    fn splitter(self, layout: PackLayout, paired: bool) -> Avx512Limbs {
        Avx512Limbs::new(layout, paired)
    }
    #[inline(always)]
    fn limbs_of_raised(self, raised: __m512i, order: &[u8; LANES]) -> [[u8; LANES]; LIMBS] {
        let mut out = [[0; LANES]; LIMBS];
        intrinsic!({
            let order = _mm_loadu_si128(order.as_ptr().cast());
            for p in 0..LIMBS {
                let down = _mm_cvtsi32_si128(8 * (LIMBS - 1 - p) as i32);
                let plane = _mm512_cvtepi32_epi8(_mm512_srl_epi32(raised, down));
                // Subtracting 128 flips the highest bit.
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
        // `vpdpbusd` has a latency of several cycles, and a single row has too few independent accumulators to hide it:
        // the second half of its columns has accumulators of its own.
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
}

/// Shuffle tables that cut integers into limbs.
///
/// An integer plus half of the range of each of its limbs has the limbs in its bits, each raised by as much; so all are
/// cut out at once (`vpmultishiftqb`), and lowered again.
#[repr(align(64))]
struct SplitTables {
    /// What is subtracted from each byte in the end.
    lower: [u8; 64],
    /// First bit of each byte in two integers, and which of its bits count.
    shifts: [u8; 64],
    mask: [u8; 64],
    /// The byte that goes to each place: sixteen columns of the highest plane first.
    order: [u8; 64],
    /// What is added to an integer in the beginning.
    raise: i32,
}

/// For limbs of a byte, of eleven and of twelve bits, and codes whose first plane has 2, 4 or 8 bits. Made at compile
/// time, since making them takes longer than packing a row.
static TABLES: [[SplitTables; 3]; 3] = [
    [SplitTables::new(0, 2), SplitTables::new(0, 4), SplitTables::new(0, 8)],
    [SplitTables::new(3, 2), SplitTables::new(3, 4), SplitTables::new(3, 8)],
    [SplitTables::new(4, 2), SplitTables::new(4, 4), SplitTables::new(4, 8)],
];

impl SplitTables {
    const fn new(shift: u32, bits: usize) -> Self {
        // From the lowest bits of an integer on: the first bit of each field, and half of its range.
        let wide_limbs = shift > 0;
        let fields: [(u32, u32); 4] = if wide_limbs {
            let half = 1 << (shift - 1);
            [(0, half), (shift, 128), (8 + shift, half), (8 + 2 * shift, 128)]
        } else {
            [(0, 128), (8, 128), (16, 128), (24, 0)]
        };
        let highest = if wide_limbs { 3 } else { 2 };
        let [mut lower, mut shifts, mut mask, mut order] = [[0; 64]; 4];
        let (mut raise, mut byte) = (0, 0);
        while byte < 64 {
            let (first, half) = fields[byte % 4];
            if byte < 4 {
                raise += half << first;
            }
            lower[byte] = half as u8;
            mask[byte] = (2 * half).saturating_sub(1) as u8;
            shifts[byte] = (first + (byte as u32 % 8) / 4 * 32) as u8;
            let (plane, column) = (byte / LANES, byte % LANES);
            let field = (highest + 4 - plane) % 4;
            order[plane * LANES + code_place(bits, column)] = (4 * column + field) as u8;
            byte += 1;
        }
        Self { lower, shifts, mask, order, raise: raise as i32 }
    }
}

/// The tables of a layout, in registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Limbs {
    raise: __m512i,
    lower: __m512i,
    shifts: __m512i,
    mask: __m512i,
    order: __m512i,
    shift: u32,
    paired: bool,
}

impl Avx512Limbs {
    #[inline(always)]
    fn new(layout: PackLayout, paired: bool) -> Self {
        let (shift, order) = (layout.shift, layout.order);
        let tables = &TABLES[shift.saturating_sub(2) as usize][order.ilog2() as usize - 1];
        intrinsic!(Self {
            raise: _mm512_set1_epi32(tables.raise),
            lower: _mm512_load_si512(tables.lower.as_ptr().cast()),
            shifts: _mm512_load_si512(tables.shifts.as_ptr().cast()),
            mask: _mm512_load_si512(tables.mask.as_ptr().cast()),
            order: _mm512_load_si512(tables.order.as_ptr().cast()),
            shift,
            paired,
        })
    }
}

impl LimbSplitter<Avx512Vnni> for Avx512Limbs {
    /// Four planes of sixteen bytes, highest first; the last is zero where limbs have a byte.
    type Planes = __m512i;
    /// Four lanes for each plane.
    type Sums = __m512i;

    #[inline(always)]
    fn no_sums(self, simd: Avx512Vnni) -> __m512i {
        simd.splat(0)
    }
    #[inline(always)]
    fn split(self, simd: Avx512Vnni, n: __m512i) -> __m512i {
        let raised = simd.add(n, self.raise);
        intrinsic!({
            let fields = _mm512_multishift_epi64_epi8(self.shifts, raised);
            let bytes = _mm512_sub_epi8(_mm512_and_si512(fields, self.mask), self.lower);
            _mm512_permutexvar_epi8(self.order, bytes)
        })
    }
    #[inline(always)]
    fn add(self, simd: Avx512Vnni, sums: &mut __m512i, planes: __m512i) {
        *sums = intrinsic!(_mm512_dpbusd_epi32(*sums, simd.splat_byte(1), planes));
    }
    #[inline(always)]
    fn totals(self, _simd: Avx512Vnni, sums: __m512i) -> [i32; LIMBS] {
        let mut all = [0; LANES];
        intrinsic!(_mm512_storeu_si512(all.as_mut_ptr().cast(), sums));
        let mut planes = [0; 4];
        for (i, sum) in all.into_iter().enumerate() {
            planes[i / 4] += sum;
        }
        let [a, b, c, d] = planes;
        match self.shift {
            0 => [a, b, c],
            shift => [(a << shift) + b, (c << shift) + d, 0],
        }
    }
    #[inline(always)]
    unsafe fn store(
        self,
        _simd: Avx512Vnni,
        planes: __m512i,
        dst: &LimbTile,
        row: usize,
        column: usize,
    ) {
        intrinsic!({
            let high = _mm512_castsi512_si128(planes);
            let middle = _mm512_extracti32x4_epi32::<1>(planes);
            let low = _mm512_extracti32x4_epi32::<2>(planes);
            if self.paired {
                return store_pairs(dst, row, column, [high, middle, low]);
            }
            _mm_storeu_si128(dst.at(row, column, 0).cast(), high);
            _mm_storeu_si128(dst.at(row, column, 1).cast(), middle);
            _mm_storeu_si128(dst.at(row, column, 2).cast(), low);
            if self.shift > 0 {
                let last = _mm512_extracti32x4_epi32::<3>(planes);
                _mm_storeu_si128(dst.at(row, column, 3).cast(), last);
            }
        });
    }
}

/// Stores the limbs of sixteen columns as pairs, see [`PackLayout::paired`].
///
/// # Safety
/// The CPU supports the instructions of [`Avx512Vnni`]. [`LimbTile::at`] of the row and the column is writable for
/// sixteen bytes in all eight planes, and no other thread accesses them.
#[inline(always)]
unsafe fn store_pairs(
    dst: &LimbTile,
    row: usize,
    column: usize,
    [high, middle, low]: [__m128i; LIMBS],
) {
    // SAFETY: the instructions are there, and each store is sixteen bytes of a plane (contract above).
    unsafe {
        let none = _mm_setzero_si128();
        let byte = _mm_set1_epi16(0xff);
        let powers = [(none, high), (high, middle), (middle, low), (low, none)];
        for (i, (with_low, with_high)) in powers.into_iter().enumerate() {
            // 0xca selects bits: of the first operand where `byte` is set, else of the second.
            let above = _mm_slli_epi16::<8>(with_high);
            let even = _mm_ternarylogic_epi32::<0xca>(byte, with_low, above);
            let below = _mm_srli_epi16::<8>(with_low);
            let odd = _mm_ternarylogic_epi32::<0xca>(byte, below, with_high);
            _mm_storeu_si128(dst.at(row, column, i).cast(), even);
            _mm_storeu_si128(dst.at(row, column, PAIR_BYTES / 2 + i).cast(), odd);
        }
    }
}
