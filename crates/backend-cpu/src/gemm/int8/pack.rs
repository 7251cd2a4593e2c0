//! Rows of activations as digits: the numbers behind the layout of [`crate::gemm::int8::layout`].

use super::code::LIMBS;
use super::isa::ops::{Int8Isa, Int8Kernel};
use super::layout::{AUX_WORDS, PAIR_BYTES, PackLayout};
use crate::gemm::row_batch::ROWS;
use crate::simd::isa::{Isa, LANES};
use std::array::from_fn;

/// Half of what each digit of a byte can hold, in the number's bits.
const RAISE: i32 = 0x80_8080;
/// The largest whole number, of digits as in [`crate::gemm::int8::code::weights`]. Two long ones hold up to 3 more,
/// three of a byte hold more than two of twelve bits; so nothing that rounding adds goes past them.
const fn limit(shift: u32) -> f32 {
    let shift = if shift == 0 { 4 } else { shift };
    let limb = (127 << shift) + (1 << (shift - 1)) - 1;
    (limb * (256 << shift) + limb - 3) as f32
}
/// Rows whose largest number is below this count as zeros.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Where rows of a tile go.
pub(crate) struct LimbTile {
    pub(crate) layout: PackLayout,
    pub(crate) tile_rows: usize,
    out: *mut f32,
    /// First byte of the first row in each plane of a unit, and how far apart rows are.
    planes: [usize; PAIR_BYTES],
    slab: usize,
    /// Columns of a unit, as a power of two: a division for every store would cost more than the digits.
    unit: u32,
    unit_bytes: usize,
    /// First f32 of the first row's words.
    aux: usize,
}

impl LimbTile {
    /// For the rows from `row` on of a tile at `out`.
    pub(crate) fn new(layout: PackLayout, tile_rows: usize, row: usize, out: *mut f32) -> Self {
        let (slab, unit, unit_bytes) = (layout.slab(), layout.unit(), layout.unit_bytes(tile_rows));
        let planes = from_fn(|plane| {
            let at = plane * unit;
            (at / slab * tile_rows + row) * slab + at % slab
        });
        let aux = layout.units() * unit_bytes / 4 + row;
        Self { layout, tile_rows, out, planes, slab, unit: unit.ilog2(), unit_bytes, aux }
    }

    /// Sixteen bytes of a row's plane from a column on.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize, plane: usize) -> *mut u8 {
        let unit = column >> self.unit;
        let first = self.planes[plane] + row * self.slab;
        let at = unit * self.unit_bytes + first + (column - (unit << self.unit));
        self.out.cast::<u8>().wrapping_add(at)
    }

    /// Stores them.
    ///
    /// # Safety
    /// The columns are the tile's, and nobody else has the row.
    #[inline(always)]
    unsafe fn put(&self, row: usize, column: usize, plane: usize, bytes: [u8; LANES]) {
        let at = self.at(row, column, plane).cast::<[u8; LANES]>();
        // SAFETY: the caller's promise.
        unsafe { at.write_unaligned(bytes) };
    }

    /// Word `i` of a row's part.
    #[inline(always)]
    pub(crate) fn aux(&self, row: usize, segment: usize, i: usize) -> *mut f32 {
        self.out.wrapping_add(self.aux + row + (segment * AUX_WORDS + i) * self.tile_rows)
    }

    /// What one is worth in a row.
    pub(crate) fn row_scale(&self, row: usize) -> *mut f32 {
        self.aux(row, self.layout.segments(), 0)
    }
}

/// What numbers whose largest is `most` are multiplied by to reach `limit`, and what one is worth then.
fn quantiser_for(most: f32, limit: f32) -> (f32, f32) {
    if !most.is_finite() {
        (0.0, f32::NAN)
    } else if most < SMALLEST {
        (0.0, 0.0)
    } else {
        (limit / most, most / limit)
    }
}

/// The same for a row of whole numbers, with digits as in [`crate::gemm::int8::code::weights`].
pub(crate) fn quantiser(most: f32, shift: u32) -> (f32, f32) {
    quantiser_for(most, limit(shift))
}

/// The largest absolute value; infinities and what is not a number are larger than any.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & i32::MAX as u32).max().unwrap_or(0);
    f32::from_bits(bits)
}

/// The column of each place among sixteen.
fn order(layout: PackLayout) -> [u8; LANES] {
    let mut order = [0; LANES];
    (0..LANES).for_each(|column| order[code_place(layout.order, column)] = column as u8);
    order
}

/// The digits of the first sixteen numbers of `x` times `factor`, those past its end being zeros; adds the whole
/// numbers to `sum`.
#[inline(always)]
fn limbs<S: Int8Isa>(
    simd: S,
    x: &[f32],
    factor: <S::F32 as Isa>::F,
    order: &[u8; LANES],
    sum: &mut S::W,
) -> [[u8; LANES]; LIMBS] {
    let floats = simd.f32();
    // SAFETY: no more than is there.
    let x = unsafe { floats.load_part(x.as_ptr(), x.len().min(LANES)) };
    let whole = simd.round_i32(floats.mul(x, factor));
    *sum = simd.add(*sum, whole);
    simd.limbs(simd.add(whole, simd.splat(RAISE)), order)
}

/// Digits of a byte of up to [`ROWS`] rows, any of which may end early. A part of all rows before the next: the words
/// of rows share lines, which may be those of another thread's rows too.
pub(crate) struct WriteLimbs<'a> {
    pub(crate) dst: &'a LimbTile,
    pub(crate) rows: &'a [&'a [f32]],
}

impl Int8Kernel for WriteLimbs<'_> {
    #[inline(always)]
    fn run<S: Int8Isa>(self, simd: S) {
        let Self { dst, rows } = self;
        let (layout, floats) = (dst.layout, simd.f32());
        let mut factors = [0.0; ROWS];
        for (row, (x, factor)) in rows.iter().zip(&mut factors).enumerate() {
            // SAFETY: the room is the caller's promise.
            unsafe { (*factor, *dst.row_scale(row)) = quantiser(largest(x), 0) };
        }
        let order = order(layout);
        for segment in 0..layout.segments() {
            for (row, (x, factor)) in rows.iter().zip(factors).enumerate() {
                let (mut sum, mut limb_sums) = (simd.splat(0), [0; LIMBS]);
                for column in
                    (segment * layout.segment..(segment + 1) * layout.segment).step_by(LANES)
                {
                    let rest = x.get(column..).unwrap_or(&[]);
                    let limbs = limbs(simd, rest, floats.splat(factor), &order, &mut sum);
                    for p in 0..LIMBS {
                        // SAFETY: every plane has a byte for each column.
                        unsafe { dst.put(row, column, p, limbs[p]) };
                        if layout.compensation != 0 {
                            let bytes = limbs[p].iter().map(|&byte| i32::from(byte as i8));
                            limb_sums[p] += bytes.sum::<i32>();
                        }
                    }
                }
                // SAFETY: the room is the caller's promise.
                unsafe {
                    if layout.sums {
                        *dst.aux(row, segment, 0) = simd.reduce_add(sum) as f32;
                    }
                    if layout.compensation != 0 {
                        for p in 0..LIMBS {
                            *dst.aux(row, segment, 1 + p).cast::<i32>() =
                                layout.compensation * limb_sums[p];
                        }
                    }
                }
            }
        }
    }
}

/// The largest of rounded numbers.
const BYTE: f32 = 127.0;

/// The same of numbers that are rounded to one byte.
pub(crate) struct WriteRounded<'a> {
    pub(crate) dst: &'a LimbTile,
    pub(crate) rows: &'a [&'a [f32]],
}

impl Int8Kernel for WriteRounded<'_> {
    #[inline(always)]
    fn run<S: Int8Isa>(self, simd: S) {
        let (layout, floats) = (self.dst.layout, simd.f32());
        let order = order(layout);
        for (row, x) in self.rows.iter().enumerate() {
            // SAFETY: the room is the caller's promise.
            unsafe { *self.dst.row_scale(row) = 1.0 };
            let (mut factor, mut row_scale) = (floats.splat(0.0), 0.0);
            for segment in 0..layout.segments() {
                let start = segment * layout.segment;
                if start % layout.block() == 0 {
                    let block = x.get(start..).unwrap_or(&[]);
                    let most = largest(&block[..block.len().min(layout.block())]);
                    let found = quantiser_for(most, BYTE);
                    (factor, row_scale) = (floats.splat(found.0), found.1);
                }
                let mut sum = simd.splat(0);
                for column in (start..start + layout.segment).step_by(LANES) {
                    let rest = x.get(column..).unwrap_or(&[]);
                    let [_, _, byte] = limbs(simd, rest, factor, &order, &mut sum);
                    // SAFETY: the plane has a byte for each column.
                    unsafe { self.dst.put(row, column, 0, byte) };
                }
                let sum = simd.reduce_add(sum);
                // SAFETY: the room is the caller's promise.
                unsafe {
                    *self.dst.aux(row, segment, 0) = row_scale * sum as f32;
                    *self.dst.aux(row, segment, 1).cast::<i32>() = layout.compensation * sum;
                    *self.dst.aux(row, segment, AUX_WORDS - 1) = row_scale;
                }
            }
        }
    }
}

/// Where a column stands among the bytes of its sixteen or 32, for codes whose first plane has `bits` bits.
pub(crate) const fn code_place(bits: usize, column: usize) -> usize {
    // A byte of codes holds `each` columns in a row, one in each of as many vectors of four bytes.
    let each = 8 / bits;
    let (block, within) = (column / (4 * each), column % (4 * each));
    (block * each + within % each) * 4 + within / each
}
