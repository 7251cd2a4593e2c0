//! Rows of activations as digits, by AVX-512: any of the forms that [`crate::gemm::int8::layout`] knows.

use super::layout::{PAIR_BYTES, PackLayout};
use super::pack::{LimbTile, code_place, quantiser};
use crate::gemm::row_batch::ROWS;
use crate::simd::isa::LANES;
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Stores the digits of sixteen columns, highest first, as pairs.
///
/// # Safety
/// The instructions of [`crate::gemm::int8::Int8Gemm`]; the columns are the tile's, which has pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn put_pairs(dst: &LimbTile, row: usize, column: usize, [high, middle, low]: [__m128i; 3]) {
    let none = _mm_setzero_si128();
    let byte = _mm_set1_epi16(0xff);
    let powers = [(none, high), (high, middle), (middle, low), (low, none)];
    for (i, (with_low, with_high)) in powers.into_iter().enumerate() {
        // Bits of the first where `byte` has them, else of the second.
        let even = _mm_ternarylogic_epi32::<0xca>(byte, with_low, _mm_slli_epi16::<8>(with_high));
        let odd = _mm_ternarylogic_epi32::<0xca>(byte, _mm_srli_epi16::<8>(with_low), with_high);
        // SAFETY: the caller's promise.
        unsafe {
            _mm_storeu_si128(dst.at(row, column, i).cast(), even);
            _mm_storeu_si128(dst.at(row, column, PAIR_BYTES / 2 + i).cast(), odd);
        }
    }
}

/// The largest absolute value's bits; those of infinities and of what is not a number are larger than any.
///
/// # Safety
/// The instructions of [`crate::gemm::int8::Int8Gemm`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn largest(x: &[f32]) -> f32 {
    let mut most = _mm512_setzero_si512();
    let strip = _mm512_set1_epi32(i32::MAX);
    for segment in x.chunks(LANES) {
        let mask = ((1_u32 << segment.len()) - 1) as u16;
        // SAFETY: the mask ends with the slice.
        let bits = unsafe { _mm512_maskz_loadu_epi32(mask, segment.as_ptr().cast()) };
        most = _mm512_max_epi32(most, _mm512_and_si512(bits, strip));
    }
    f32::from_bits(_mm512_reduce_max_epi32(most) as u32)
}

/// LimbSplitter of up to [`ROWS`] rows, any of which may end early. A part of all rows before the next: the words of
/// rows share lines, which may be those of another thread's rows too.
///
/// # Safety
/// The instructions of [`crate::gemm::int8::Int8Gemm`]; `dst` is as it says, and has room for so many rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn write_limbs(dst: &LimbTile, rows: &[&[f32]]) {
    let layout = dst.layout;
    let mut factors = [0.0; ROWS];
    for (row, (x, factor)) in rows.iter().zip(&mut factors).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { (*factor, *dst.row_scale(row)) = quantiser(largest(x), layout.shift) };
    }
    let (paired, shift) = (layout.paired(dst.tile_rows), layout.shift);
    let limbs = LimbSplitter::new(layout);
    let needs_limb_sums = layout.compensation != 0 && !layout.uses_amx(dst.tile_rows);
    let mut blocks = [0; ROWS];
    for segment in 0..layout.segments() {
        let columns = segment * layout.segment..(segment + 1) * layout.segment;
        for (row, (x, factor)) in rows.iter().zip(factors).enumerate() {
            let factor = _mm512_set1_ps(factor);
            let (mut sum, mut limb_sums) = (_mm512_setzero_si512(), _mm512_setzero_si512());
            for column in columns.clone().step_by(LANES) {
                let rest = x.get(column..).unwrap_or(&[]);
                let mask = ((1_u32 << rest.len().min(LANES)) - 1) as u16;
                // SAFETY: the mask ends with the slice; every plane has a byte for each column.
                unsafe {
                    let x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, rest.as_ptr()), factor);
                    let whole = _mm512_cvtps_epi32(x);
                    let bytes = limbs.of(whole);
                    sum = _mm512_add_epi32(sum, whole);
                    limb_sums = _mm512_dpbusd_epi32(limb_sums, _mm512_set1_epi8(1), bytes);
                    let [first, second, third, fourth] = quarters(bytes);
                    if paired {
                        put_pairs(dst, row, column, [first, second, third]);
                        continue;
                    }
                    _mm_storeu_si128(dst.at(row, column, 0).cast(), first);
                    _mm_storeu_si128(dst.at(row, column, 1).cast(), second);
                    _mm_storeu_si128(dst.at(row, column, 2).cast(), third);
                    if shift > 0 {
                        _mm_storeu_si128(dst.at(row, column, 3).cast(), fourth);
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                if layout.sums {
                    *dst.aux(row, segment, 0) = _mm512_reduce_add_epi32(sum) as f32;
                }
                if needs_limb_sums {
                    let [a, b, c, d] = sum_quarters(limb_sums);
                    let wide_limbs = [(a << shift) + b, (c << shift) + d, 0];
                    let found = if shift > 0 { wide_limbs } else { [a, b, c] };
                    for i in 0..3 {
                        *dst.aux(row, segment, 1 + i).cast::<i32>() =
                            layout.compensation * found[i];
                    }
                }
                if paired && layout.compensation != 0 {
                    blocks[row] += _mm512_reduce_add_epi32(sum);
                    if let Some(first) = block_ending_with(layout, segment) {
                        let block = std::mem::take(&mut blocks[row]);
                        *dst.aux(row, first, 1).cast::<i32>() = block >> 1;
                        *dst.aux(row, first, 2).cast::<i32>() = (block & 1) << 15;
                    }
                }
            }
        }
    }
}

/// The first part of the superblock that ends with a part.
fn block_ending_with(layout: PackLayout, segment: usize) -> Option<usize> {
    let each = SUPERBLOCK / layout.segment;
    (segment % each == each - 1).then(|| segment + 1 - each)
}

/// Each sixteen bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn quarters(bytes: __m512i) -> [__m128i; 4] {
    [
        _mm512_castsi512_si128(bytes),
        _mm512_extracti32x4_epi32::<1>(bytes),
        _mm512_extracti32x4_epi32::<2>(bytes),
        _mm512_extracti32x4_epi32::<3>(bytes),
    ]
}

/// Sums of each four numbers that follow each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn sum_quarters(sums: __m512i) -> [i32; 4] {
    let mut all = [0; LANES];
    // SAFETY: room for sixteen numbers.
    unsafe { _mm512_storeu_si512(all.as_mut_ptr().cast(), sums) };
    from_fn(|lane| all[4 * lane..4 * lane + 4].iter().sum())
}

/// How whole numbers become bytes.
///
/// A number with half of each digit's range added has the digits, raised by as much, in its bits; so all are cut out at
/// once.
#[repr(align(64))]
struct SplitTables {
    /// What is taken from each byte in the end.
    lower: [u8; 64],
    /// Where each byte begins in two numbers, and which of its bits count.
    shifts: [u8; 64],
    mask: [u8; 64],
    /// The byte that goes to each place: sixteen columns of the highest plane first.
    order: [u8; 64],
    /// What is added to a number in the beginning.
    raise: i32,
}

/// For digits of a byte, of eleven or of twelve bits, and codes whose first plane has 2, 4 or 8 bits. Made once: they
/// take longer than a row.
static TABLES: [[SplitTables; 3]; 3] = [
    [SplitTables::new(0, 2), SplitTables::new(0, 4), SplitTables::new(0, 8)],
    [SplitTables::new(3, 2), SplitTables::new(3, 4), SplitTables::new(3, 8)],
    [SplitTables::new(4, 2), SplitTables::new(4, 4), SplitTables::new(4, 8)],
];

impl SplitTables {
    const fn new(shift: u32, bits: usize) -> Self {
        // From the lowest bits of a number on: the first bit of each field, and half of what it can hold.
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

/// The tables of a recipe, in registers.
struct LimbSplitter {
    raise: __m512i,
    lower: __m512i,
    shifts: __m512i,
    mask: __m512i,
    order: __m512i,
}

impl LimbSplitter {
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn new(layout: PackLayout) -> Self {
        let tables =
            &TABLES[layout.shift.saturating_sub(2) as usize][layout.order.ilog2() as usize - 1];
        // SAFETY: 64 bytes each.
        let load = |bytes: &[u8; 64]| unsafe { _mm512_load_si512(bytes.as_ptr().cast()) };
        Self {
            raise: _mm512_set1_epi32(tables.raise),
            lower: load(&tables.lower),
            shifts: load(&tables.shifts),
            mask: load(&tables.mask),
            order: load(&tables.order),
        }
    }

    /// The planes of sixteen numbers, each sixteen bytes; of three planes, zeros behind them.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn of(&self, whole: __m512i) -> __m512i {
        let raised = _mm512_add_epi32(whole, self.raise);
        let fields = _mm512_and_si512(_mm512_multishift_epi64_epi8(self.shifts, raised), self.mask);
        _mm512_permutexvar_epi8(self.order, _mm512_sub_epi8(fields, self.lower))
    }
}
