//! Packs rows of activations as limbs, in the layout of [`layout`](super::layout).

use super::code::LIMBS;
use super::isa::{AnyInt8Isa, Int8Isa, Int8Kernel, LimbSplitter, WithInt8Isa};
use super::layout::{AUX_WORDS, PAIR_BYTES, PackLayout};
use crate::gemm::packed_rows::{RowBatch, TASK_ROWS};
use crate::gemm::product::GemmInput;
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::isa::{Isa, LANES, Task};
use crate::simd::portable::Portable;
use forerun_base::SUPERBLOCK;
use std::array::from_fn;
use std::ops::Range;

/// The largest integer for limbs as in [`weights`](super::code::weights). Two wide limbs hold 3 more, and three of a
/// byte more than two of twelve bits, so rounding never exceeds what limbs hold.
const fn limit(shift: u32) -> f32 {
    let shift = if shift == 0 { 4 } else { shift };
    let limb = (127 << shift) + (1 << (shift - 1)) - 1;
    (limb * (256 << shift) + limb - 3) as f32
}
/// The largest integer of activations rounded to int8.
const INT8_LIMIT: f32 = 127.0;
/// Rows whose largest value is below this count as zeros: their row scale would be subnormal.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Packs rows.
pub(crate) struct PackLimbsTask<'a> {
    isa: AnyInt8Isa,
    batch: RowBatch<'a>,
    layout: PackLayout,
    out: SharedSlice<'a, f32>,
}

impl<'a> PackLimbsTask<'a> {
    /// Packs the rows `rows` of `input` to the front of `out`.
    pub(crate) fn new(
        isa: AnyInt8Isa,
        input: GemmInput<'a>,
        rows: Range<usize>,
        layout: PackLayout,
        out: SharedSlice<'a, f32>,
    ) -> Self {
        let tile_rows = layout.tile_rows(rows.len());
        let batch = RowBatch::new(input, rows, layout.cols(), tile_rows);
        Self { isa, batch: batch.padded(layout.uses_amx(tile_rows)), layout, out }
    }

    /// As [`RowBatch::normed`].
    pub(crate) fn normed(self, norm: FusedNorm<'a>) -> Self {
        Self { batch: self.batch.normed(norm), ..self }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.batch.tasks()
    }

    /// All tasks, on this thread.
    pub(crate) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.pack(Portable, index));
    }

    fn pack<S: Isa>(&self, simd: S, index: usize) {
        let (part, tile_rows) = (self.batch.part(simd, index), self.batch.tile_rows());
        let len = self.layout.tile_len(tile_rows);
        // Rows of a tile are interleaved, so tasks share its address and no reference.
        let tile = self.out.address(part.tile * len, len);
        let dst = LimbTile::new(self.layout, tile_rows, part.first, tile);
        self.isa.with(PackRows { dst, rows: part.rows() });
    }
}

impl Task for PackLimbsTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        self.pack(simd, index);
    }
}

/// Rows waiting for the instruction set. Only [`PackLimbsTask`] makes one: `dst` is a whole tile inside its output, and
/// tasks have different rows of it.
struct PackRows<'a> {
    dst: LimbTile,
    rows: &'a [&'a [f32]],
}

impl WithInt8Isa for PackRows<'_> {
    type Out = ();
    fn run<S: Int8Isa>(self, simd: S) {
        let Self { dst, rows } = &self;
        if dst.layout.rounded {
            simd.call(WriteRounded { dst, rows });
        } else {
            simd.call(WriteLimbs { dst, rows });
        }
    }
}

/// The places of a task's rows in a tile: a whole tile of `layout` is writable at `out`, and this task's rows of it are
/// accessed by nobody else. [`PackLimbsTask`] keeps that promise.
pub(crate) struct LimbTile {
    pub(crate) layout: PackLayout,
    pub(crate) tile_rows: usize,
    out: *mut f32,
    /// First byte of the first row in each plane of a unit.
    planes: [usize; PAIR_BYTES],
    /// Bytes from one row to the next.
    slab: usize,
    /// Columns of a unit, as a power of two: a division for every store would cost more than the limbs.
    unit: u32,
    unit_bytes: usize,
    /// First f32 of the first row's aux words.
    aux: usize,
}

impl LimbTile {
    /// For the rows from place `row` on of a tile at `out`.
    fn new(layout: PackLayout, tile_rows: usize, row: usize, out: *mut f32) -> Self {
        let (slab, unit, unit_bytes) = (layout.slab(), layout.unit(), layout.unit_bytes(tile_rows));
        let planes = from_fn(|plane| {
            let at = plane * unit;
            (at / slab * tile_rows + row) * slab + at % slab
        });
        let aux = layout.units() * unit_bytes / 4 + row;
        Self { layout, tile_rows, out, planes, slab, unit: unit.ilog2(), unit_bytes, aux }
    }

    /// Sixteen bytes of a row's plane, from column `column` on. Inside the tile if the plane is one of the layout's,
    /// the row is the task's, and the column is a multiple of sixteen below the end of the last unit.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, column: usize, plane: usize) -> *mut u8 {
        let unit = column >> self.unit;
        let first = self.planes[plane] + row * self.slab;
        let at = unit * self.unit_bytes + first + (column - (unit << self.unit));
        self.out.cast::<u8>().wrapping_add(at)
    }

    /// Aux word `i` of a row's segment.
    #[inline(always)]
    fn aux(&self, row: usize, segment: usize, i: usize) -> *mut f32 {
        self.out.wrapping_add(self.aux + row + (segment * AUX_WORDS + i) * self.tile_rows)
    }

    /// The scale of a row. Row scales follow the aux words of the last segment.
    fn row_scale(&self, row: usize) -> *mut f32 {
        self.aux(row, self.layout.segments(), 0)
    }
}

/// What values whose largest is `most` are multiplied by to reach `limit`, and the scale that undoes it.
fn quantiser(most: f32, limit: f32) -> (f32, f32) {
    if !most.is_finite() {
        (0.0, f32::NAN)
    } else if most < SMALLEST {
        (0.0, 0.0)
    } else {
        (limit / most, most / limit)
    }
}

/// The largest absolute value; infinities and NaNs are larger than any number.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & i32::MAX as u32).max().unwrap_or(0);
    f32::from_bits(bits)
}

/// The first sixteen values of `x` times `factor` as integers, zeros past its end.
#[inline(always)]
fn quantise<S: Int8Isa>(simd: S, x: &[f32], factor: <S::F32 as Isa>::F) -> S::W {
    let floats = simd.f32();
    // SAFETY: no more elements are read than the slice has.
    let x = unsafe { floats.load_part(x.as_ptr(), x.len().min(LANES)) };
    simd.round_i32(floats.mul(x, factor))
}

/// Packs up to [`TASK_ROWS`] rows, any of which may be shorter than the layout. Segment by segment for all rows: the
/// aux words of rows share cache lines, also with rows of another thread.
struct WriteLimbs<'a> {
    dst: &'a LimbTile,
    rows: &'a [&'a [f32]],
}

impl Int8Kernel for WriteLimbs<'_> {
    #[inline(always)]
    fn run<S: Int8Isa>(self, simd: S) {
        let Self { dst, rows } = self;
        let (layout, floats) = (dst.layout, simd.f32());
        let mut factors = [0.0; TASK_ROWS];
        for (row, (x, factor)) in rows.iter().zip(&mut factors).enumerate() {
            let found = quantiser(simd.largest(x), limit(layout.shift));
            // SAFETY: the tile has a scale for each of the task's rows (see `LimbTile`).
            unsafe { (*factor, *dst.row_scale(row)) = found };
        }
        let paired = layout.paired(dst.tile_rows);
        let splitter = simd.splitter(layout, paired);
        let needs_limb_sums = layout.compensation != 0 && !layout.uses_amx(dst.tile_rows);
        let mut blocks = [0; TASK_ROWS];
        for segment in 0..layout.segments() {
            let columns = segment * layout.segment..(segment + 1) * layout.segment;
            for (row, (x, factor)) in rows.iter().zip(factors).enumerate() {
                let (mut sum, mut limb_sums) = (simd.splat(0), splitter.no_sums(simd));
                for column in columns.clone().step_by(LANES) {
                    let rest = x.get(column..).unwrap_or(&[]);
                    let n = quantise(simd, rest, floats.splat(factor));
                    sum = simd.add(sum, n);
                    let limbs = splitter.split(simd, n);
                    splitter.add(simd, &mut limb_sums, limbs);
                    // SAFETY: the column is below the end of the last unit and the row is the task's (see `LimbTile`).
                    unsafe { splitter.store(simd, limbs, dst, row, column) };
                }
                // SAFETY: the tile has aux words for each segment of the task's rows (see `LimbTile`).
                unsafe {
                    if layout.sums {
                        *dst.aux(row, segment, 0) = simd.reduce_add(sum) as f32;
                    }
                    if needs_limb_sums {
                        let found = splitter.totals(simd, limb_sums);
                        for i in 0..LIMBS {
                            *dst.aux(row, segment, 1 + i).cast::<i32>() =
                                layout.compensation * found[i];
                        }
                    }
                    if paired && layout.compensation != 0 {
                        blocks[row] += simd.reduce_add(sum);
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
}

/// The first segment of the superblock that ends with a segment.
fn block_ending_with(layout: PackLayout, segment: usize) -> Option<usize> {
    let each = SUPERBLOCK / layout.segment;
    (segment % each == each - 1).then(|| segment + 1 - each)
}

/// Packs rows rounded to int8, each unit or superblock with a scale of its own.
struct WriteRounded<'a> {
    dst: &'a LimbTile,
    rows: &'a [&'a [f32]],
}

impl Int8Kernel for WriteRounded<'_> {
    #[inline(always)]
    fn run<S: Int8Isa>(self, simd: S) {
        let Self { dst, rows } = self;
        let (layout, floats) = (dst.layout, simd.f32());
        let order = byte_order(layout);
        for (row, x) in rows.iter().enumerate() {
            // SAFETY: the tile has a scale for each of the task's rows (see `LimbTile`).
            unsafe { *dst.row_scale(row) = 1.0 };
            let (mut factor, mut scale) = (floats.splat(0.0), 0.0);
            for segment in 0..layout.segments() {
                let start = segment * layout.segment;
                if start % layout.block() == 0 {
                    let block = x.get(start..).unwrap_or(&[]);
                    let most = largest(&block[..block.len().min(layout.block())]);
                    let found = quantiser(most, INT8_LIMIT);
                    (factor, scale) = (floats.splat(found.0), found.1);
                }
                let mut sum = simd.splat(0);
                for column in (start..start + layout.segment).step_by(LANES) {
                    let n = quantise(simd, x.get(column..).unwrap_or(&[]), factor);
                    sum = simd.add(sum, n);
                    let [_, _, byte] = simd.limbs(n, &order);
                    let at = dst.at(row, column, 0).cast::<[u8; LANES]>();
                    // SAFETY: the column is below the end of the last unit and the row is the task's (see `LimbTile`).
                    unsafe { at.write_unaligned(byte) };
                }
                let sum = simd.reduce_add(sum);
                // SAFETY: the tile has aux words for each segment of the task's rows (see `LimbTile`).
                unsafe {
                    *dst.aux(row, segment, 0) = scale * sum as f32;
                    *dst.aux(row, segment, 1).cast::<i32>() = layout.compensation * sum;
                    *dst.aux(row, segment, AUX_WORDS - 1) = scale;
                }
            }
        }
    }
}

/// The splitter for limbs of a byte, without instructions of its own.
#[derive(Clone, Copy)]
pub(crate) struct ByteLimbs {
    order: [u8; LANES],
    sums: bool,
}

impl ByteLimbs {
    /// For a layout without wide limbs and pairs.
    pub(crate) fn new(layout: PackLayout) -> Self {
        Self { order: byte_order(layout), sums: layout.compensation != 0 }
    }
}

impl<S: Int8Isa> LimbSplitter<S> for ByteLimbs {
    type Planes = [[u8; LANES]; LIMBS];
    type Sums = [i32; LIMBS];

    #[inline(always)]
    fn no_sums(self, _simd: S) -> [i32; LIMBS] {
        [0; LIMBS]
    }
    #[inline(always)]
    fn split(self, simd: S, n: S::W) -> [[u8; LANES]; LIMBS] {
        simd.limbs(n, &self.order)
    }
    #[inline(always)]
    fn add(self, _simd: S, sums: &mut [i32; LIMBS], planes: [[u8; LANES]; LIMBS]) {
        if self.sums {
            for p in 0..LIMBS {
                sums[p] += planes[p].iter().map(|&byte| i32::from(byte as i8)).sum::<i32>();
            }
        }
    }
    #[inline(always)]
    fn totals(self, _simd: S, sums: [i32; LIMBS]) -> [i32; LIMBS] {
        sums
    }
    #[inline(always)]
    unsafe fn store(
        self,
        _simd: S,
        planes: [[u8; LANES]; LIMBS],
        dst: &LimbTile,
        row: usize,
        column: usize,
    ) {
        for (p, bytes) in planes.into_iter().enumerate() {
            // SAFETY: sixteen bytes of each plane from the column on are this task's (contract of `store`).
            unsafe { dst.at(row, column, p).cast::<[u8; LANES]>().write_unaligned(bytes) };
        }
    }
}

/// The column of each byte among sixteen.
fn byte_order(layout: PackLayout) -> [u8; LANES] {
    let mut order = [0; LANES];
    (0..LANES).for_each(|column| order[code_place(layout.order, column)] = column as u8);
    order
}

/// Where a column stands among the bytes of its sixteen or 32, for codes whose first plane has `bits` bits.
pub(crate) const fn code_place(bits: usize, column: usize) -> usize {
    // A byte of codes holds `each` consecutive columns, one in each of as many vectors of four bytes.
    let each = 8 / bits;
    let (block, within) = (column / (4 * each), column % (4 * each));
    (block * each + within % each) * 4 + within / each
}
