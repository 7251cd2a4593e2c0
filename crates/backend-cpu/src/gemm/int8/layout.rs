//! Activations as limbs, in the order in which kernels read them.
//!
//! # Layout
//! Rows come in tiles of [`PackedLimbs::tile_rows`] rows: [`PackLayout::max_tile_rows`], or one smaller tile. A tile is
//! three areas:
//!
//! ```text
//! limbs        [unit][slab][row] bytes     a slab holds one limb plane of a unit (or two where limbs are wide)
//! aux          [segment][4][row] words     Σ n as f32, then the compensation of each limb, i32
//! row scales   [row] f32                   what the integer 1 stands for in each row
//!
//! three limbs of a byte, unit of 32 columns, tile of 4 rows:
//!
//! slab 0 (limb a)    row 0: 32 bytes | row 1 | row 2 | row 3
//! slab 1 (limb b)    row 0           | ...
//! slab 2 (limb c)    row 0           | ...
//! ```
//!
//! A segment is a unit, or the columns of one sub-scale where scales are nested. Inside a unit columns come in the
//! order of the codes' bytes ([`code_place`](super::code_place)). Columns past the end are zeros, and so are rows past
//! it where AMX multiplies them.
//!
//! Where there is AMX, narrow codes meet two wide limbs of two bytes each: of twelve bits, `16·a + b`, for codes of up
//! to four bits; of eleven, `8·a + b`, for those of five. Slabs are `a b` and `c d` where both fit a line of 64 bytes,
//! else `a`, `b`, `c`, `d`.
//!
//! Activations rounded to int8 ([`PackLayout::rounded`]) are relative to the largest of their unit or superblock, not
//! of their row. They have one limb; the first aux word of a segment is the sum of the values, the last one the scale
//! of the unit.
//!
//! Where weights are 16-bit products of code and sub-scale ([`PackLayout::paired`]), a column is a pair of limbs for
//! each power of 256: the limb that meets the low byte and the one that meets the high byte. Slabs are those of the
//! even columns, highest power first, then of the odd ones. If codes have a zero point, aux words 1 and 2 of a
//! superblock's first segment compensate for raising the 16-bit words by 2¹⁵: `Σn / 2` rounded down and `32768 · (Σn
//! mod 2)`.

use super::code::{LIMBS, wide_limb_shift, zero_point_log2};
use super::isa::Int8Isa;
use super::k_quant::STEP;
use crate::gemm::panels::tile_rows;
use crate::pool::SharedSlice;
use crate::simd::isa::LANES;
use forerun_base::{Codes, Format, SUPERBLOCK, ScaleKind};

/// Columns of a chunk: what codes are unpacked in.
pub(crate) const CHUNK: usize = 32;
/// Aux words per row and segment.
pub(crate) const AUX_WORDS: usize = 4;
/// Bytes of an integer in pairs: two for each of four powers of 256.
pub(crate) const PAIR_BYTES: usize = 8;

/// What decides a layout besides the weight.
#[derive(Clone, Copy)]
pub(crate) struct Modes {
    /// Whether there is AMX.
    pub(crate) amx: bool,
    /// Whether activations are rounded to int8.
    pub(crate) rounded: bool,
}

/// The layout of activations for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackLayout {
    cols: usize,
    unit: usize,
    /// Columns of an exact sum, which divide a unit.
    pub(crate) segment: usize,
    nested: bool,
    /// Whether there is AMX.
    amx: bool,
    /// Whether activations are rounded to int8.
    pub(crate) rounded: bool,
    /// How many bits the two bytes of a wide limb are apart ([`wide_limb_shift`]), or 0 for limbs of a byte. AMX gains
    /// by wide limbs; vectors would take four products instead of three.
    pub(crate) shift: u32,
    /// Zero-point compensation: an exact sum starts at `compensation · Σ limb`. That is `−z` for stored codes `value +
    /// z`; where codes are read as signed bytes, 128 less than stored, it is `128 − z`.
    pub(crate) compensation: i32,
    /// Bits of a code in its first plane, which decide the order of columns.
    pub(crate) order: usize,
    /// Whether the format has offsets, for which kernels need `Σ n`.
    pub(crate) sums: bool,
}

impl PackLayout {
    /// For a weight of `cols` columns. `None` where the instruction set cannot multiply such codes.
    pub(crate) fn new<S: Int8Isa>(
        Modes { amx, rounded }: Modes,
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
                (wide_limb_shift(usize::from(bits)), order)
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

    /// Columns of a unit: what is summed exactly.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    pub(crate) fn units(&self) -> usize {
        self.cols.div_ceil(self.unit)
    }

    /// Columns of a segment.
    pub(crate) fn segment(&self) -> usize {
        self.segment
    }

    pub(crate) fn segments(&self) -> usize {
        self.units() * self.unit / self.segment
    }

    /// Whether scales are nested, so that superblocks are summed exactly by [`k_quant`](super::k_quant).
    pub(crate) fn nested(&self) -> bool {
        self.nested
    }

    /// Columns that share a scale where activations are rounded.
    pub(crate) fn block(&self) -> usize {
        if self.nested { SUPERBLOCK } else { self.unit }
    }

    /// Superblocks of a row, where scales are nested.
    pub(crate) fn blocks(&self) -> usize {
        self.cols / SUPERBLOCK
    }

    /// Aux words of a unit of a tile.
    fn unit_aux(&self, tile_rows: usize) -> usize {
        self.unit / self.segment * AUX_WORDS * tile_rows
    }

    /// Whether tiles of `tile_rows` rows are multiplied by AMX; otherwise by vectors.
    pub(crate) fn uses_amx(&self, tile_rows: usize) -> bool {
        // Measured: unpacking for AMX pays from eight rows on, and from two where codes need none or superblocks share
        // it. A single row is bound by memory, and vectors wait for fewer bytes at a time.
        let least = if self.nested || self.amx_native() { 2 } else { 8 };
        self.amx && tile_rows >= least
    }

    /// Whether there is AMX.
    pub(crate) fn has_amx(&self) -> bool {
        self.amx
    }

    /// Whether AMX can load codes as they are stored: whole bytes without a zero point.
    pub(crate) fn amx_native(&self) -> bool {
        self.order == 8 && self.compensation == 0
    }

    /// Whether tiles of `tile_rows` rows are packed in pairs, for weights of 16-bit words.
    pub(crate) fn paired(&self, tile_rows: usize) -> bool {
        self.nested && self.uses_amx(tile_rows) && tile_rows < LANES
    }

    /// Whether limbs are wide.
    pub(crate) fn wide_limbs(&self) -> bool {
        self.shift > 0
    }

    /// Bytes of an integer.
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

    /// f32 of a tile.
    pub(crate) fn tile_len(&self, tile_rows: usize) -> usize {
        let aux = self.units() * (self.unit_bytes(tile_rows) / 4 + self.unit_aux(tile_rows));
        (aux + tile_rows).next_multiple_of(LANES)
    }

    /// Most rows of a tile. Vectors take few rows at a time, and smaller tiles let threads split rows more finely.
    pub(crate) fn max_tile_rows(&self) -> usize {
        if self.amx { LANES } else { LANES / 2 }
    }

    /// Rows of a tile when there are `rows` in all.
    pub(crate) fn tile_rows(&self, rows: usize) -> usize {
        tile_rows(rows).min(self.max_tile_rows())
    }

    /// f32 that `rows` packed rows take.
    pub(crate) fn packed_len(&self, rows: usize) -> usize {
        let tile_rows = self.tile_rows(rows);
        rows.div_ceil(tile_rows) * self.tile_len(tile_rows)
    }
}

/// Packed rows, see the module's text.
#[derive(Clone, Copy)]
pub(crate) struct PackedLimbs<'a> {
    data: SharedSlice<'a, f32>,
    layout: PackLayout,
    tile_rows: usize,
    /// f32 of a tile; before its aux words; before its row scales; of the limbs and of the aux words of a unit. Kept,
    /// since they take divisions and are needed for every block.
    tile: usize,
    aux: usize,
    row_scales: usize,
    unit_limbs: usize,
    unit_aux: usize,
}

impl<'a> PackedLimbs<'a> {
    /// What [`PackLimbsTask`](super::PackLimbsTask) writes for `rows` rows.
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

    /// First byte of a unit of a tile, and its aux words.
    #[inline]
    pub(crate) fn unit(&self, tile: usize, unit: usize) -> (*const u8, *const f32) {
        let (limbs, aux) = (unit * self.unit_limbs, self.aux + unit * self.unit_aux);
        let tile = tile * self.tile;
        (
            self.data.address(tile + limbs, self.unit_limbs).cast_const().cast(),
            self.data.address(tile + aux, self.unit_aux),
        )
    }

    /// The row scales of a tile.
    ///
    /// # Safety
    /// The tasks that pack the tile have ended, so nothing writes it any more.
    #[inline]
    pub(crate) unsafe fn row_scales(&self, tile: usize) -> &'a [f32] {
        // SAFETY: the tile is completely written (contract above); the range is checked.
        unsafe { self.data.done(tile * self.tile + self.row_scales, self.tile_rows) }
    }
}
