//! Activations as digits, in the order that the kernels read them.
//!
//! # Layout
//! Rows come in tiles of [`Packed::class`] rows: [`Recipe::tile_rows`], or one tile of fewer. A tile is `[unit][slab][row]` bytes, then
//! `[part][4][row]` words (the sum of a part's numbers as f32, and, where vectors multiply codes that are stored too large or are read as
//! too small, what sets each digit's products right), then `[row]` f32: what one is worth. A part is a
//! unit, or a group inside it where scales are nested. Where there are tiles, numbers for narrow codes have two long digits of two bytes
//! each: of twelve bits `16·a + b` for codes of up to four bits, of eleven `8·a + b` for those of five. Slabs are `a b` and `c d` where both fit
//! a line of 64 bytes, else `a`, `b`, `c`, `d`. Other codes have three digits of a byte, highest first. Inside a
//! unit columns come in the order of the codes' bytes. Columns past the end are zeros, and so are
//! rows past it where tiles multiply them.
//!
//! Numbers that are rounded to one byte ([`Recipe::rounded`]) are relative to the largest of their unit or superblock, not of their row. They have one digit; the first
//! word of a part is the sum of what its numbers stand for, and the last one what one is worth there.
//!
//! Where weights are words of two bytes ([`Recipe::pairs`]), a column is a pair of digits for each power of 256: the digit that
//! meets the low byte and the one that meets the high byte. Slabs are those of the even columns, highest power first, then of the odd ones.
//! The words of a superblock's first part then have, where codes have a sign, what raised words are too much: `Σn / 2` rounded down and
//! `32768 · (Σn mod 2)`.

use super::super::Scratch;
use super::super::batch::Batch;
use super::super::elementwise::Normed;
use super::super::isa::{Isa, LANES, Task};
use super::super::portable::Portable;
use super::super::product::Input;
use super::super::walk::class;
use super::Units;
use super::code::{DIGITS, excess, shift};
use super::nested::STEP;
use super::sets::WithSet;
use super::whole::Whole;
use super::write::{Room, WriteRounded};
use crate::pool::Shared;
use forerun_base::{Codes, Format, SUPERBLOCK, ScaleKind};
use std::ops::Range;

/// Columns that are packed at once.
pub(super) const CHUNK: usize = 32;
/// Words per row and unit beside the digits.
pub(super) const WORDS: usize = 4;
/// Bytes of a number in pairs: four powers.
pub(super) const PAIRED: usize = 8;

/// How activations must look for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    cols: usize,
    unit: usize,
    /// Columns of a sum, which divide a unit.
    pub(super) part: usize,
    nested: bool,
    /// Whether there are tiles.
    tiles: bool,
    /// Whether numbers are rounded to one byte.
    pub(super) rounded: bool,
    /// How many bits the two bytes of a long digit are apart, where numbers have such ([`shift`]), else 0. Tiles gain by that; vectors take
    /// four products instead of three.
    pub(super) shift: u32,
    /// What is added to a unit's products with a digit for every one of the digit: less than nothing where stored codes are too large.
    pub(super) lift: i32,
    /// Bits of a code in its first plane, which decide the order of columns.
    pub(super) order: usize,
    /// Whether sums of numbers are wanted.
    pub(super) sums: bool,
}

impl Recipe {
    /// For a weight of `cols` columns, by a set of instructions, with or without tiles, of numbers that are rounded or not.
    pub(super) fn new<S: Whole>(
        [tiles, rounded]: [bool; 2],
        format: Format,
        cols: usize,
    ) -> Option<Self> {
        let Format::Grouped { codes, group, scale, offset: sums } = format else { return None };
        let nested = scale == ScaleKind::Nested;
        let whole = [64, 32].into_iter().find(|unit| group % unit == 0).unwrap_or(16);
        let (unit, part) = if nested { (STEP, whole.min(CHUNK)) } else { (whole, whole) };
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
        let shift = if tiles && !nested && !rounded { shift } else { 0 };
        let stored = excess(format).map_or(0, |bits| 1 << bits);
        let lift = if bytes && S::SIGNED { 128 - stored } else { -stored };
        Some(Self { cols, unit, part, nested, tiles, rounded, shift, lift, order, sums })
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that are summed exactly.
    pub(in super::super) fn unit(&self) -> usize {
        self.unit
    }

    pub(super) fn units(&self) -> usize {
        self.cols.div_ceil(self.unit)
    }

    /// Columns of a sum.
    pub(super) fn part(&self) -> usize {
        self.part
    }

    pub(super) fn parts(&self) -> usize {
        self.units() * self.unit / self.part
    }

    /// Whether superblocks are summed exactly, by [`super::nested`].
    pub(super) fn nested(&self) -> bool {
        self.nested
    }

    /// Columns whose numbers are relative to the same largest where they are rounded.
    pub(super) fn block(&self) -> usize {
        if self.nested { SUPERBLOCK } else { self.unit }
    }

    /// Superblocks, where scales are nested.
    pub(super) fn blocks(&self) -> usize {
        self.cols / SUPERBLOCK
    }

    /// Words of a unit of a tile.
    fn unit_words(&self, class: usize) -> usize {
        self.unit / self.part * WORDS * class
    }

    /// Whether `class` rows are multiplied by tiles; otherwise by vectors.
    pub(super) fn by_tiles(&self, class: usize) -> bool {
        // Measured: what must be unpacked pays from eight rows on, unless superblocks share that. Alone a row is bound by how fast
        // codes come, and vectors wait for fewer of them at a time.
        let least = if self.nested || self.as_tiles() { 2 } else { 8 };
        self.tiles && class >= least
    }

    /// Whether there are tiles.
    pub(in super::super) fn has_tiles(&self) -> bool {
        self.tiles
    }

    /// Whether codes lie as tiles do: whole bytes without a sign.
    pub(in super::super) fn as_tiles(&self) -> bool {
        self.order == 8 && self.lift == 0
    }

    /// Whether `class` rows meet weights as words of two bytes.
    pub(super) fn pairs(&self, class: usize) -> bool {
        self.nested && self.by_tiles(class) && class < LANES
    }

    /// Whether numbers have long digits.
    pub(super) fn long(&self) -> bool {
        self.shift > 0
    }

    /// Bytes of a number.
    pub(super) fn planes(&self, class: usize) -> usize {
        match (self.rounded, self.long()) {
            _ if self.pairs(class) => PAIRED,
            (true, _) => 1,
            (_, true) => 4,
            _ => DIGITS,
        }
    }

    /// Bytes of a row in a slab.
    pub(super) fn slab(&self) -> usize {
        if self.long() && self.unit <= CHUNK { 2 * self.unit } else { self.unit }
    }

    /// Bytes of a unit of a tile.
    pub(super) fn unit_bytes(&self, class: usize) -> usize {
        self.planes(class) * self.unit * class
    }

    fn tile_len(&self, class: usize) -> usize {
        let words = self.units() * (self.unit_bytes(class) / 4 + self.unit_words(class));
        (words + class).next_multiple_of(LANES)
    }

    /// Most rows of a tile: vectors take fewer at a time, and threads that share rows then have smaller shares.
    pub(in super::super) fn tile_rows(&self) -> usize {
        if self.tiles { LANES } else { LANES / 2 }
    }

    /// Rows of a tile when there are `rows` in all.
    fn class(&self, rows: usize) -> usize {
        class(rows).min(self.tile_rows())
    }

    /// f32 that `rows` rows take.
    pub(crate) fn packed_len(&self, rows: usize) -> usize {
        let class = self.class(rows);
        rows.div_ceil(class) * self.tile_len(class)
    }
}

/// See the module's text.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    data: Shared<'a, f32>,
    recipe: Recipe,
    class: usize,
    /// f32 of a tile, before its words, before its worths, of the digits and of the words of a unit: found once, since that takes
    /// divisions and they are asked for at every block.
    tile: usize,
    words: usize,
    worths: usize,
    unit_digits: usize,
    unit_words: usize,
}

impl<'a> Packed<'a> {
    /// What a [`PackTask`] leaves for `rows` rows.
    pub(crate) fn new(data: Shared<'a, f32>, rows: usize, recipe: Recipe) -> Self {
        let class = recipe.class(rows);
        let (units, unit_words) = (recipe.units(), recipe.unit_words(class));
        let unit_digits = recipe.unit_bytes(class) / 4;
        Self {
            data,
            recipe,
            class,
            tile: recipe.tile_len(class),
            words: units * unit_digits,
            worths: units * (unit_digits + unit_words),
            unit_digits,
            unit_words,
        }
    }

    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// Rows of a tile.
    pub(super) fn class(&self) -> usize {
        self.class
    }

    /// First byte of `unit` of a tile, and its words.
    #[inline]
    pub(super) fn unit(&self, tile: usize, unit: usize) -> (*const u8, *const f32) {
        let (digits, words) = (unit * self.unit_digits, self.words + unit * self.unit_words);
        let tile = tile * self.tile;
        (
            self.data.address(tile + digits, self.unit_digits).cast_const().cast(),
            self.data.address(tile + words, self.unit_words),
        )
    }

    /// What one is worth in each row of a tile.
    ///
    /// # Safety
    /// The tile was packed.
    #[inline]
    pub(super) unsafe fn worth(&self, tile: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.data.done(tile * self.tile + self.worths, self.class) }
    }
}

/// Packs rows.
pub(crate) struct PackTask<'a> {
    units: Units,
    batch: Batch<'a>,
    recipe: Recipe,
    out: Shared<'a, f32>,
}

impl<'a> PackTask<'a> {
    /// The rows `rows` of `input`, to the front of `out`.
    pub(crate) fn new(
        units: Units,
        input: Input<'a>,
        rows: Range<usize>,
        recipe: Recipe,
        out: Shared<'a, f32>,
    ) -> Self {
        let class = recipe.class(rows.len());
        let batch = Batch::new(input, rows, [recipe.cols, class]).filled(recipe.by_tiles(class));
        Self { units, batch, recipe, out }
    }

    /// As [`Batch::normed`].
    pub(crate) fn normed(self, norm: Normed<'a>) -> Self {
        Self { batch: self.batch.normed(norm), ..self }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.batch.tasks()
    }

    /// Everything, on this thread.
    pub(super) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.pack(Portable, index));
    }

    fn pack<S: Isa>(&self, simd: S, index: usize) {
        let (share, class) = (self.batch.share(simd, index), self.batch.class());
        let len = self.recipe.tile_len(class);
        // Rows of a tile lie between each other, so tasks share its first address and no reference.
        let tile = self.out.address(share.tile * len, len);
        let room = Room::new(self.recipe, [class, share.first], tile);
        self.units.set.with(Written { room, rows: share.rows() });
    }
}

/// Rows that are stored as digits.
struct Written<'a> {
    room: Room,
    rows: &'a [&'a [f32]],
}

impl WithSet for Written<'_> {
    type Out = ();
    fn run<S: Whole>(self, simd: S) {
        let Self { room, rows } = &self;
        if room.recipe.rounded {
            return simd.call(WriteRounded { room, rows });
        }
        // SAFETY: the tile has room for every row of its class, and each row has one task.
        unsafe { simd.write(room, rows) };
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        self.pack(simd, index);
    }
}
