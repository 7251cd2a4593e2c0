//! Rows of activations as digits: the numbers behind the layout of [`super::pack`].

use super::super::batch::ROWS;
use super::super::isa::{Isa, LANES};
use super::code::DIGITS;
use super::pack::{PAIRED, Recipe, WORDS};
use super::whole::{Whole, WholeKernel};
use std::array::from_fn;

/// Half of what each digit of a byte can hold, in the number's bits.
const RAISE: i32 = 0x80_8080;
/// The largest whole number, of digits as in [`super::code::weights`]. Two long ones hold up to 3 more, three of a byte hold more than
/// two of twelve bits; so nothing that rounding adds goes past them.
const fn limit(shift: u32) -> f32 {
    let shift = if shift == 0 { 4 } else { shift };
    let digit = (127 << shift) + (1 << (shift - 1)) - 1;
    (digit * (256 << shift) + digit - 3) as f32
}
/// Rows whose largest number is below this count as zeros.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Where rows of a tile go.
pub(super) struct Room {
    pub(super) recipe: Recipe,
    pub(super) class: usize,
    out: *mut f32,
    /// First byte of the first row in each plane of a unit, and how far apart rows are.
    planes: [usize; PAIRED],
    slab: usize,
    /// Columns of a unit, as a power of two: a division for every store would cost more than the digits.
    unit: u32,
    unit_bytes: usize,
    /// First f32 of the first row's words.
    words: usize,
}

impl Room {
    /// For the rows from `row` on of a tile at `out`.
    pub(super) fn new(recipe: Recipe, [class, row]: [usize; 2], out: *mut f32) -> Self {
        let (slab, unit, unit_bytes) = (recipe.slab(), recipe.unit(), recipe.unit_bytes(class));
        let planes = from_fn(|plane| {
            let at = plane * unit;
            (at / slab * class + row) * slab + at % slab
        });
        let words = recipe.units() * unit_bytes / 4 + row;
        Self { recipe, class, out, planes, slab, unit: unit.ilog2(), unit_bytes, words }
    }

    /// Sixteen bytes of a row's plane from a column on.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, column: usize, plane: usize) -> *mut u8 {
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
    pub(super) fn word(&self, row: usize, part: usize, i: usize) -> *mut f32 {
        self.out.wrapping_add(self.words + row + (part * WORDS + i) * self.class)
    }

    /// What one is worth in a row.
    pub(super) fn worth(&self, row: usize) -> *mut f32 {
        self.word(row, self.recipe.parts(), 0)
    }
}

/// What numbers whose largest is `most` are multiplied by to reach `limit`, and what one is worth then.
fn factor_and_worth_of(most: f32, limit: f32) -> (f32, f32) {
    if !most.is_finite() {
        (0.0, f32::NAN)
    } else if most < SMALLEST {
        (0.0, 0.0)
    } else {
        (limit / most, most / limit)
    }
}

/// The same for a row of whole numbers, with digits as in [`super::code::weights`].
pub(super) fn factor_and_worth(most: f32, shift: u32) -> (f32, f32) {
    factor_and_worth_of(most, limit(shift))
}

/// The largest absolute value; infinities and what is not a number are larger than any.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & i32::MAX as u32).max().unwrap_or(0);
    f32::from_bits(bits)
}

/// The column of each place among sixteen.
fn order(recipe: Recipe) -> [u8; LANES] {
    let mut order = [0; LANES];
    (0..LANES).for_each(|column| order[place(recipe.order, column)] = column as u8);
    order
}

/// The digits of the first sixteen numbers of `x` times `factor`, those past its end being zeros; adds the whole numbers to `sum`.
#[inline(always)]
fn digits<S: Whole>(
    simd: S,
    x: &[f32],
    factor: <S::Floats as Isa>::F,
    order: &[u8; LANES],
    sum: &mut S::W,
) -> [[u8; LANES]; DIGITS] {
    let floats = simd.floats();
    // SAFETY: no more than is there.
    let x = unsafe { floats.load_part(x.as_ptr(), x.len().min(LANES)) };
    let whole = simd.round(floats.mul(x, factor));
    *sum = simd.add(*sum, whole);
    simd.digits(simd.add(whole, simd.splat(RAISE)), order)
}

/// Digits of a byte of up to [`ROWS`] rows, any of which may end early. A part of all rows before the next: the words of rows share lines,
/// which may be those of another thread's rows too.
pub(super) struct Write<'a> {
    pub(super) room: &'a Room,
    pub(super) rows: &'a [&'a [f32]],
}

impl WholeKernel for Write<'_> {
    #[inline(always)]
    fn run<S: Whole>(self, simd: S) {
        let Self { room, rows } = self;
        let (recipe, floats) = (room.recipe, simd.floats());
        let mut factors = [0.0; ROWS];
        for (row, (x, factor)) in rows.iter().zip(&mut factors).enumerate() {
            // SAFETY: the room is the caller's promise.
            unsafe { (*factor, *room.worth(row)) = factor_and_worth(largest(x), 0) };
        }
        let order = order(recipe);
        for part in 0..recipe.parts() {
            for (row, (x, factor)) in rows.iter().zip(factors).enumerate() {
                let (mut sum, mut of_digits) = (simd.splat(0), [0; DIGITS]);
                for column in (part * recipe.part..(part + 1) * recipe.part).step_by(LANES) {
                    let rest = x.get(column..).unwrap_or(&[]);
                    let digits = digits(simd, rest, floats.splat(factor), &order, &mut sum);
                    for p in 0..DIGITS {
                        // SAFETY: every plane has a byte for each column.
                        unsafe { room.put(row, column, p, digits[p]) };
                        if recipe.lift != 0 {
                            let bytes = digits[p].iter().map(|&byte| i32::from(byte as i8));
                            of_digits[p] += bytes.sum::<i32>();
                        }
                    }
                }
                // SAFETY: the room is the caller's promise.
                unsafe {
                    if recipe.sums {
                        *room.word(row, part, 0) = simd.total(sum) as f32;
                    }
                    if recipe.lift != 0 {
                        for p in 0..DIGITS {
                            *room.word(row, part, 1 + p).cast::<i32>() = recipe.lift * of_digits[p];
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
pub(super) struct WriteRounded<'a> {
    pub(super) room: &'a Room,
    pub(super) rows: &'a [&'a [f32]],
}

impl WholeKernel for WriteRounded<'_> {
    #[inline(always)]
    fn run<S: Whole>(self, simd: S) {
        let (recipe, floats) = (self.room.recipe, simd.floats());
        let order = order(recipe);
        for (row, x) in self.rows.iter().enumerate() {
            // SAFETY: the room is the caller's promise.
            unsafe { *self.room.worth(row) = 1.0 };
            let (mut factor, mut worth) = (floats.splat(0.0), 0.0);
            for part in 0..recipe.parts() {
                let start = part * recipe.part;
                if start % recipe.block() == 0 {
                    let block = x.get(start..).unwrap_or(&[]);
                    let most = largest(&block[..block.len().min(recipe.block())]);
                    let found = factor_and_worth_of(most, BYTE);
                    (factor, worth) = (floats.splat(found.0), found.1);
                }
                let mut sum = simd.splat(0);
                for column in (start..start + recipe.part).step_by(LANES) {
                    let rest = x.get(column..).unwrap_or(&[]);
                    let [_, _, byte] = digits(simd, rest, factor, &order, &mut sum);
                    // SAFETY: the plane has a byte for each column.
                    unsafe { self.room.put(row, column, 0, byte) };
                }
                let sum = simd.total(sum);
                // SAFETY: the room is the caller's promise.
                unsafe {
                    *self.room.word(row, part, 0) = worth * sum as f32;
                    *self.room.word(row, part, 1).cast::<i32>() = recipe.lift * sum;
                    *self.room.word(row, part, WORDS - 1) = worth;
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
