//! Activations as digits, in the order that the kernels read them.
//!
//! # Layout
//! Rows come in tiles of [`PackedLimbs::tile_rows`] rows: [`PackLayout::max_tile_rows`], or one tile of fewer. A tile
//! is `[unit][slab][row]` bytes, then `[segment][4][row]` words (the sum of a part's numbers as f32, and, where vectors
//! multiply codes that are stored too large or are read as too small, what sets each digit's products right), then
//! `[row]` f32: what one is worth. A part is a unit, or a group inside it where scales are nested. Where there are
//! tiles, numbers for narrow codes have two long digits of two bytes each: of twelve bits `16·a + b` for codes of up to
//! four bits, of eleven `8·a + b` for those of five. Slabs are `a b` and `c d` where both fit a line of 64 bytes, else
//! `a`, `b`, `c`, `d`. Other codes have three digits of a byte, highest first. Inside a unit columns come in the order
//! of the codes' bytes. Columns past the end are zeros, and so are rows past it where tiles multiply them.
//!
//! Numbers that are rounded to one byte ([`PackLayout::rounded`]) are relative to the largest of their unit or
//! superblock, not of their row. They have one digit; the first word of a part is the sum of what its numbers stand
//! for, and the last one what one is worth there.
//!
//! Where weights are words of two bytes ([`PackLayout::paired`]), a column is a pair of digits for each power of 256:
//! the digit that meets the low byte and the one that meets the high byte. Slabs are those of the even columns, highest
//! power first, then of the odd ones. The words of a superblock's first part then have, where codes have a sign, what
//! raised words are too much: `Σn / 2` rounded down and `32768 · (Σn mod 2)`.

use super::Int8Gemm;
use super::code::{LIMBS, shift, zero_point_log2};
use super::isa::WithInt8Isa;
use super::isa::ops::Int8Isa;
use super::k_quant::STEP;
use super::pack::{LimbTile, WriteRounded};
use crate::gemm::panels::tile_rows;
use crate::gemm::product::Input;
use crate::gemm::row_batch::Batch;
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::isa::{Isa, LANES, Task};
use crate::simd::portable::Portable;
use forerun_base::{Codes, Format, SUPERBLOCK, ScaleKind};
use std::ops::Range;

/// Columns that are packed at once.
pub(crate) const CHUNK: usize = 32;
/// Words per row and unit beside the digits.
pub(crate) const AUX_WORDS: usize = 4;
/// Bytes of a number in pairs: four powers.
pub(crate) const PAIR_BYTES: usize = 8;

/// How activations must look for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackLayout {
    cols: usize,
    unit: usize,
    /// Columns of a sum, which divide a unit.
    pub(crate) segment: usize,
    nested: bool,
    /// Whether there are tiles.
    amx: bool,
    /// Whether numbers are rounded to one byte.
    pub(crate) rounded: bool,
    /// How many bits the two bytes of a long digit are apart, where numbers have such ([`shift`]), else 0. Tiles gain
    /// by that; vectors take four products instead of three.
    pub(crate) shift: u32,
    /// What is added to a unit's products with a digit for every one of the digit: less than nothing where stored codes
    /// are too large.
    pub(crate) compensation: i32,
    /// Bits of a code in its first plane, which decide the order of columns.
    pub(crate) order: usize,
    /// Whether sums of numbers are wanted.
    pub(crate) sums: bool,
}

impl PackLayout {
    /// For a weight of `cols` columns, by a set of instructions, with or without tiles, of numbers that are rounded or
    /// not.
    pub(crate) fn new<S: Int8Isa>(
        [amx, rounded]: [bool; 2],
        format: Format,
        cols: usize,
    ) -> Option<Self> {
        let Format::Grouped { codes, group, scale, offset: sums } = format else { return None };
        let nested = scale == ScaleKind::Nested;
        let whole = [64, 32].into_iter().find(|unit| group % unit == 0).unwrap_or(16);
        let (unit, segment) = if nested { (STEP, whole.min(CHUNK)) } else { (whole, whole) };
        let (shift, order) = match codes {
            Codes::E4m3 => return None,
            Codes::Table { .. } => (0, 4),
            Codes::Uint { bits } | Codes::Int { bits } => {
                let order = if bits > 6 { 8 } else { 1 << bits.min(4).ilog2() };
                (shift(usize::from(bits)), order)
            }
        };
        let bytes = order == 8 || matches!(codes, Codes::Table { .. });
        if bytes && !S::BYTES {
            return None;
        }
        let shift = if amx && !nested && !rounded { shift } else { 0 };
        let stored = zero_point_log2(format).map_or(0, |bits| 1 << bits);
        let compensation = if bytes && S::SIGNED { 128 - stored } else { -stored };
        Some(Self { cols, unit, segment, nested, amx, rounded, shift, compensation, order, sums })
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that are summed exactly.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    pub(crate) fn units(&self) -> usize {
        self.cols.div_ceil(self.unit)
    }

    /// Columns of a sum.
    pub(crate) fn segment(&self) -> usize {
        self.segment
    }

    pub(crate) fn segments(&self) -> usize {
        self.units() * self.unit / self.segment
    }

    /// Whether superblocks are summed exactly, by [`crate::gemm::int8::k_quant`].
    pub(crate) fn nested(&self) -> bool {
        self.nested
    }

    /// Columns whose numbers are relative to the same largest where they are rounded.
    pub(crate) fn block(&self) -> usize {
        if self.nested { SUPERBLOCK } else { self.unit }
    }

    /// Superblocks, where scales are nested.
    pub(crate) fn blocks(&self) -> usize {
        self.cols / SUPERBLOCK
    }

    /// Words of a unit of a tile.
    fn unit_aux(&self, tile_rows: usize) -> usize {
        self.unit / self.segment * AUX_WORDS * tile_rows
    }

    /// Whether `tile_rows` rows are multiplied by tiles; otherwise by vectors.
    pub(crate) fn uses_amx(&self, tile_rows: usize) -> bool {
        // Measured: what must be unpacked pays from eight rows on, unless superblocks share that. Alone a row is bound
        // by how fast codes come, and vectors wait for fewer of them at a time.
        let least = if self.nested || self.amx_native() { 2 } else { 8 };
        self.amx && tile_rows >= least
    }

    /// Whether there are tiles.
    pub(crate) fn has_amx(&self) -> bool {
        self.amx
    }

    /// Whether codes lie as tiles do: whole bytes without a sign.
    pub(crate) fn amx_native(&self) -> bool {
        self.order == 8 && self.compensation == 0
    }

    /// Whether `tile_rows` rows meet weights as words of two bytes.
    pub(crate) fn paired(&self, tile_rows: usize) -> bool {
        self.nested && self.uses_amx(tile_rows) && tile_rows < LANES
    }

    /// Whether numbers have long digits.
    pub(crate) fn wide_limbs(&self) -> bool {
        self.shift > 0
    }

    /// Bytes of a number.
    pub(crate) fn planes(&self, tile_rows: usize) -> usize {
        match (self.rounded, self.wide_limbs()) {
            _ if self.paired(tile_rows) => PAIR_BYTES,
            (true, _) => 1,
            (_, true) => 4,
            _ => LIMBS,
        }
    }

    /// Bytes of a row in a slab.
    pub(crate) fn slab(&self) -> usize {
        if self.wide_limbs() && self.unit <= CHUNK { 2 * self.unit } else { self.unit }
    }

    /// Bytes of a unit of a tile.
    pub(crate) fn unit_bytes(&self, tile_rows: usize) -> usize {
        self.planes(tile_rows) * self.unit * tile_rows
    }

    fn tile_len(&self, tile_rows: usize) -> usize {
        let aux = self.units() * (self.unit_bytes(tile_rows) / 4 + self.unit_aux(tile_rows));
        (aux + tile_rows).next_multiple_of(LANES)
    }

    /// Most rows of a tile: vectors take fewer at a time, and threads that share rows then have smaller shares.
    pub(crate) fn max_tile_rows(&self) -> usize {
        if self.amx { LANES } else { LANES / 2 }
    }

    /// Rows of a tile when there are `rows` in all.
    fn tile_rows(&self, rows: usize) -> usize {
        tile_rows(rows).min(self.max_tile_rows())
    }

    /// f32 that `rows` rows take.
    pub(crate) fn packed_len(&self, rows: usize) -> usize {
        let tile_rows = self.tile_rows(rows);
        rows.div_ceil(tile_rows) * self.tile_len(tile_rows)
    }
}

/// See the module's text.
#[derive(Clone, Copy)]
pub(crate) struct PackedLimbs<'a> {
    data: SharedSlice<'a, f32>,
    layout: PackLayout,
    tile_rows: usize,
    /// f32 of a tile, before its words, before its worths, of the digits and of the words of a unit: found once, since
    /// that takes divisions and they are asked for at every block.
    tile: usize,
    aux: usize,
    row_scales: usize,
    unit_limbs: usize,
    unit_aux: usize,
}

impl<'a> PackedLimbs<'a> {
    /// What a [`PackLimbsTask`] leaves for `rows` rows.
    pub(crate) fn new(data: SharedSlice<'a, f32>, rows: usize, layout: PackLayout) -> Self {
        let tile_rows = layout.tile_rows(rows);
        let (units, unit_aux) = (layout.units(), layout.unit_aux(tile_rows));
        let unit_limbs = layout.unit_bytes(tile_rows) / 4;
        Self {
            data,
            layout,
            tile_rows,
            tile: layout.tile_len(tile_rows),
            aux: units * unit_limbs,
            row_scales: units * (unit_limbs + unit_aux),
            unit_limbs,
            unit_aux,
        }
    }

    pub(crate) fn layout(&self) -> PackLayout {
        self.layout
    }

    /// Rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// First byte of `unit` of a tile, and its words.
    #[inline]
    pub(crate) fn unit(&self, tile: usize, unit: usize) -> (*const u8, *const f32) {
        let (limbs, aux) = (unit * self.unit_limbs, self.aux + unit * self.unit_aux);
        let tile = tile * self.tile;
        (
            self.data.address(tile + limbs, self.unit_limbs).cast_const().cast(),
            self.data.address(tile + aux, self.unit_aux),
        )
    }

    /// What one is worth in each row of a tile.
    ///
    /// # Safety
    /// The tile was packed.
    #[inline]
    pub(crate) unsafe fn row_scales(&self, tile: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.done(tile * self.tile + self.row_scales, self.tile_rows) }
    }
}

/// Packs rows.
pub(crate) struct PackLimbsTask<'a> {
    gemm: Int8Gemm,
    batch: Batch<'a>,
    layout: PackLayout,
    out: SharedSlice<'a, f32>,
}

impl<'a> PackLimbsTask<'a> {
    /// The rows `rows` of `input`, to the front of `out`.
    pub(crate) fn new(
        gemm: Int8Gemm,
        input: Input<'a>,
        rows: Range<usize>,
        layout: PackLayout,
        out: SharedSlice<'a, f32>,
    ) -> Self {
        let tile_rows = layout.tile_rows(rows.len());
        let batch =
            Batch::new(input, rows, layout.cols, tile_rows).filled(layout.uses_amx(tile_rows));
        Self { gemm, batch, layout, out }
    }

    /// As [`Batch::normed`].
    pub(crate) fn normed(self, norm: FusedNorm<'a>) -> Self {
        Self { batch: self.batch.normed(norm), ..self }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.batch.tasks()
    }

    /// Everything, on this thread.
    pub(crate) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.pack(Portable, index));
    }

    fn pack<S: Isa>(&self, simd: S, index: usize) {
        let (share, tile_rows) = (self.batch.share(simd, index), self.batch.tile_rows());
        let len = self.layout.tile_len(tile_rows);
        // Rows of a tile lie between each other, so tasks share its first address and no reference.
        let tile = self.out.address(share.tile * len, len);
        let dst = LimbTile::new(self.layout, tile_rows, share.first, tile);
        self.gemm.isa.with(Written { dst, rows: share.rows() });
    }
}

/// Rows that are stored as digits.
struct Written<'a> {
    dst: LimbTile,
    rows: &'a [&'a [f32]],
}

impl WithInt8Isa for Written<'_> {
    type Out = ();
    fn run<S: Int8Isa>(self, simd: S) {
        let Self { dst, rows } = &self;
        if dst.layout.rounded {
            return simd.call(WriteRounded { dst, rows });
        }
        // SAFETY: the tile has dst for every row of its class, and each row has one task.
        unsafe { simd.write(dst, rows) };
    }
}

impl Task for PackLimbsTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        self.pack(simd, index);
    }
}
