//! Activations as digits, in the order that the kernels read them.
//!
//! # Layout
//! Rows come in tiles of [`Packed::class`] rows: sixteen, or one tile of fewer. A tile is `[unit][slab][row]` bytes, then
//! `[part][4][row]` words (the sum of a part's numbers as f32, and of each digit), then `[row]` f32: what one is worth. A part is a
//! unit, or a group inside it where scales are nested. Narrow codes (up to four bits) have two digits of twelve bits, each two bytes `16·a + b`: slabs are `a b` and `c d` where both fit
//! a line of 64 bytes, else `a`, `b`, `c`, `d`. Other codes have three digits of a byte, highest first. Inside a
//! unit columns come in the order of the codes' bytes. Rows and columns past the end are zeros.

use super::super::Scratch;
use super::super::isa::{Isa, LANES, Task};
use super::super::product::Input;
use super::super::walk::class;
use super::Units;
use super::nested::STEP;
use crate::pool::Shared;
use forerun_base::{Codes, Format, SUPERBLOCK, ScaleKind};
use std::arch::x86_64::*;
use std::ops::Range;

/// The largest whole number: two digits of twelve bits hold it, and so do three of a byte.
const LIMIT: i32 = LARGEST * 4096 + LARGEST;
/// The largest number `16·a + b` with bytes `a` and −8 ≤ b < 8; the smallest is 4095 below it.
const LARGEST: i32 = 16 * 127 + 7;
/// Rows whose largest number is below this count as zeros.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
/// Columns that are packed at once.
pub(super) const CHUNK: usize = 32;
/// Words per row and unit beside the digits.
const WORDS: usize = 4;

/// How activations must look for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    cols: usize,
    unit: usize,
    /// Columns of a sum, which divide a unit.
    part: usize,
    nested: bool,
    narrow: bool,
    /// Bits of a code in its first plane, which decide the order of columns.
    order: usize,
    /// Whether sums of digits or of numbers are wanted.
    sums: [bool; 2],
}

impl Recipe {
    /// For a weight of `cols` columns.
    pub(crate) fn new(format: Format, cols: usize) -> Option<Self> {
        let Format::Grouped { codes, group, scale, offset } = format else { return None };
        let sums = [!matches!(codes, Codes::Uint { .. }), offset];
        let nested = scale == ScaleKind::Nested;
        let whole = [64, 32].into_iter().find(|unit| group % unit == 0).unwrap_or(16);
        let (unit, part) = if nested { (STEP, whole.min(CHUNK)) } else { (whole, whole) };
        let (narrow, order) = match codes {
            Codes::E4m3 => return None,
            Codes::Table { .. } => (false, 4),
            Codes::Uint { bits } | Codes::Int { bits } => match bits {
                2 | 3 => (true, 2),
                4 => (true, 4),
                5 | 6 => (false, 4),
                _ => (false, 8),
            },
        };
        let narrow = narrow && !nested;
        Some(Self { cols, unit, part, nested, narrow, order, sums })
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

    fn parts(&self) -> usize {
        self.units() * self.unit / self.part
    }

    /// Whether superblocks are summed exactly, by [`super::nested`].
    pub(super) fn nested(&self) -> bool {
        self.nested
    }

    /// Superblocks, where scales are nested.
    pub(super) fn blocks(&self) -> usize {
        self.cols / SUPERBLOCK
    }

    /// Words of a unit of a tile.
    fn unit_words(&self, class: usize) -> usize {
        self.unit / self.part * WORDS * class
    }

    /// Bytes of a number.
    fn planes(&self) -> usize {
        if self.narrow { 4 } else { 3 }
    }

    /// Bytes of a row in a slab.
    pub(super) fn slab(&self) -> usize {
        if self.narrow && self.unit <= CHUNK { 2 * self.unit } else { self.unit }
    }

    /// Bytes of a unit of a tile.
    pub(super) fn unit_bytes(&self, class: usize) -> usize {
        self.planes() * self.unit * class
    }

    fn tile_len(&self, class: usize) -> usize {
        let words = self.units() * (self.unit_bytes(class) / 4 + self.unit_words(class));
        (words + class).next_multiple_of(LANES)
    }

    /// f32 that `rows` rows take.
    pub(crate) fn packed_len(&self, rows: usize) -> usize {
        let class = class(rows);
        rows.div_ceil(class) * self.tile_len(class)
    }
}

/// See the module's text.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    data: &'a [f32],
    recipe: Recipe,
    class: usize,
}

impl<'a> Packed<'a> {
    /// What a [`PackTask`] left for `rows` rows.
    pub(crate) fn new(data: &'a [f32], rows: usize, recipe: Recipe) -> Self {
        Self { data: &data[..recipe.packed_len(rows)], recipe, class: class(rows) }
    }

    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe
    }

    /// Rows of a tile.
    pub(super) fn class(&self) -> usize {
        self.class
    }

    fn tile(&self, tile: usize) -> &'a [f32] {
        let len = self.recipe.tile_len(self.class);
        &self.data[tile * len..(tile + 1) * len]
    }

    /// First byte of `unit` of a tile, and its words.
    pub(super) fn unit(&self, tile: usize, unit: usize) -> (*const u8, *const f32) {
        let (each, units) = (self.recipe.unit_bytes(self.class), self.recipe.units());
        let (digits, words) = self.tile(tile).split_at(units * each / 4);
        (
            digits[unit * each / 4..].as_ptr().cast(),
            words[unit * self.recipe.unit_words(self.class)..].as_ptr(),
        )
    }

    /// What one is worth in each row of a tile.
    pub(super) fn worth(&self, tile: usize) -> &'a [f32] {
        let words = self.recipe.unit_bytes(self.class) / 4 + self.recipe.unit_words(self.class);
        &self.tile(tile)[self.recipe.units() * words..][..self.class]
    }
}

/// Packs the rows `rows` of `input`.
pub(crate) struct PackTask<'a> {
    input: Input<'a>,
    rows: Range<usize>,
    recipe: Recipe,
    out: Shared<'a, f32>,
    units: Units,
}

impl<'a> PackTask<'a> {
    /// To the front of `out`.
    pub(crate) fn new(
        units: Units,
        input: Input<'a>,
        rows: Range<usize>,
        recipe: Recipe,
        out: &'a mut [f32],
    ) -> Self {
        let out = Shared::new(&mut out[..recipe.packed_len(rows.len())]);
        Self { input, rows, recipe, out, units }
    }

    /// Tasks to cut it into: a row each, with those past the end.
    pub(crate) fn tasks(&self) -> usize {
        self.rows.len().next_multiple_of(class(self.rows.len()))
    }

    /// Everything, on this thread.
    pub(super) fn run_all(&self) {
        (0..self.tasks()).for_each(|index| self.row(index));
    }

    fn row(&self, index: usize) {
        let (class, cols) = (class(self.rows.len()), self.recipe.cols);
        let (tile, row) = (index / class, index % class);
        let place = self.rows.start + index;
        let x = if place < self.rows.end {
            let at = self.input.places.at(place) * cols;
            &self.input.data[at..at + cols]
        } else {
            &[]
        };
        let first = tile * self.recipe.tile_len(class);
        // Rows of a tile lie between each other, so tasks share its first address and no reference.
        let out = self.out.address(first, self.recipe.tile_len(class));
        let room = Room { recipe: self.recipe, class, row, out };
        // SAFETY: the proof is there; the tile has room for every row of its class, and each row has one task.
        unsafe { write(self.units, &room, x) };
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        self.row(index);
    }
}

/// Where a row of a tile goes.
struct Room {
    recipe: Recipe,
    class: usize,
    row: usize,
    out: *mut f32,
}

impl Room {
    /// Byte of a plane of a unit's first column.
    #[inline(always)]
    fn byte(&self, unit: usize, plane: usize) -> *mut u8 {
        let (slab, each) = (self.recipe.slab(), self.recipe.unit);
        let at = plane * each;
        let place = (at / slab * self.class + self.row) * slab + at % slab;
        self.out.cast::<u8>().wrapping_add(unit * self.recipe.unit_bytes(self.class) + place)
    }

    /// Word `i` of a part.
    #[inline(always)]
    fn word(&self, part: usize, i: usize) -> *mut f32 {
        let digits = self.recipe.units() * self.recipe.unit_bytes(self.class) / 4;
        self.out.wrapping_add(digits + (part * WORDS + i) * self.class + self.row)
    }

    fn worth(&self) -> *mut f32 {
        self.word(self.recipe.parts(), 0)
    }
}

/// The largest absolute value's bits; those of infinities and of what is not a number are larger than any.
///
/// # Safety
/// The instructions of [`Units`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn largest(x: &[f32]) -> f32 {
    let mut most = _mm512_setzero_si512();
    let strip = _mm512_set1_epi32(i32::MAX);
    for part in x.chunks(LANES) {
        let mask = ((1_u32 << part.len()) - 1) as u16;
        // SAFETY: the mask ends with the slice.
        let bits = unsafe { _mm512_maskz_loadu_epi32(mask, part.as_ptr().cast()) };
        most = _mm512_max_epi32(most, _mm512_and_si512(bits, strip));
    }
    f32::from_bits(_mm512_reduce_max_epi32(most) as u32)
}

/// Digits of a row that may end early.
///
/// # Safety
/// The instructions of [`Units`]; `room` is as it says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn write(units: Units, room: &Room, x: &[f32]) {
    let recipe = room.recipe;
    // SAFETY: the caller's promise.
    let most = unsafe { largest(x) };
    let (factor, worth) = if !most.is_finite() {
        (0.0, f32::NAN)
    } else if most < SMALLEST {
        (0.0, 0.0)
    } else {
        (LIMIT as f32 / most, most / LIMIT as f32)
    };
    // SAFETY: the caller's promise.
    unsafe { *room.worth() = worth };
    let factor = _mm512_set1_ps(factor);
    let mut order = [0_u8; LANES];
    for column in 0..LANES {
        order[place(recipe.order, column)] = column as u8;
    }
    // SAFETY: sixteen bytes.
    let order = unsafe { _mm_loadu_si128(order.as_ptr().cast()) };
    for part in 0..recipe.parts() {
        let mut sums = [_mm512_setzero_si512(); WORDS];
        for column in (part * recipe.part..(part + 1) * recipe.part).step_by(LANES) {
            let rest = x.get(column..).unwrap_or(&[]);
            let mask = ((1_u32 << rest.len().min(LANES)) - 1) as u16;
            // SAFETY: the mask ends with the slice; every plane has a byte for each column.
            unsafe {
                let x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, rest.as_ptr()), factor);
                let limit = _mm512_set1_epi32(LIMIT);
                let whole = _mm512_min_epi32(_mm512_cvtps_epi32(x), limit);
                let whole =
                    _mm512_max_epi32(whole, _mm512_sub_epi32(_mm512_setzero_si512(), limit));
                sums[0] = _mm512_add_epi32(sums[0], whole);
                let (digits, bytes) = if recipe.narrow { narrow(whole) } else { wide(whole) };
                for i in 0..3 {
                    sums[1 + i] = _mm512_add_epi32(sums[1 + i], digits[i]);
                }
                for plane in 0..recipe.planes() {
                    let to = room.byte(column / recipe.unit, plane).add(column % recipe.unit);
                    let bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(bytes[plane]), order);
                    _mm_storeu_si128(to.cast(), bytes);
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if recipe.sums[1] {
                *room.word(part, 0) = _mm512_reduce_add_epi32(sums[0]) as f32;
            }
            if recipe.sums[0] && !units.by_tiles(recipe, room.class) {
                for i in 1..WORDS {
                    *room.word(part, i).cast::<i32>() = _mm512_reduce_add_epi32(sums[i]);
                }
            }
        }
    }
}

/// Where a column stands among the bytes of its sixteen or 32, for codes whose first plane has `bits` bits.
pub(in super::super) const fn place(bits: usize, column: usize) -> usize {
    // A byte of codes holds `each` columns in a row, one in each of as many vectors of four bytes.
    let each = 8 / bits;
    let (block, within) = (column / (4 * each), column % (4 * each));
    (block * each + within % each) * 4 + within / each
}

/// Splits whole numbers at bit `BITS`: what is above, and the rest, which is at most `MOST` and at least 2^BITS − 1 below that.
///
/// # Safety
/// The instructions of [`Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn split<const BITS: u32, const MOST: i32>(n: __m512i) -> [__m512i; 2] {
    let half = _mm512_set1_epi32((1 << BITS) - 1 - MOST);
    let above = _mm512_srav_epi32(_mm512_add_epi32(n, half), _mm512_set1_epi32(BITS as i32));
    [above, _mm512_sub_epi32(n, _mm512_sllv_epi32(above, _mm512_set1_epi32(BITS as i32)))]
}

/// Two digits of twelve bits and their four bytes.
///
/// # Safety
/// The instructions of [`Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn narrow(n: __m512i) -> ([__m512i; 3], [__m512i; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [high, low] = split::<12, LARGEST>(n);
        let ([a, b], [c, d]) = (split::<4, 7>(high), split::<4, 7>(low));
        ([high, low, _mm512_setzero_si512()], [a, b, c, d])
    }
}

/// Three digits, each a byte.
///
/// # Safety
/// The instructions of [`Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn wide(n: __m512i) -> ([__m512i; 3], [__m512i; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [above, low] = split::<8, 127>(n);
        let [high, middle] = split::<8, 127>(above);
        ([high, middle, low], [high, middle, low, low])
    }
}
