//! A row of activations as digits: the numbers behind the layout of [`super::pack`].

use super::super::isa::LANES;
use super::pack::{PAIRED, Recipe, WORDS};
use std::arch::x86_64::*;
use std::array::from_fn;

/// The largest whole number: two digits of twelve bits hold it, and so do three of a byte.
const LIMIT: i32 = LARGEST * 4096 + LARGEST;
/// The largest number `16·a + b` with bytes `a` and −8 ≤ b < 8; the smallest is 4095 below it.
const LARGEST: i32 = 16 * 127 + 7;
/// Rows whose largest number is below this count as zeros.
const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Where a row of a tile goes.
pub(super) struct Room {
    recipe: Recipe,
    class: usize,
    out: *mut f32,
    /// First byte of the row in each plane of a unit.
    planes: [usize; PAIRED],
    /// Columns of a unit, as a power of two: a division for every store would cost more than the digits.
    unit: u32,
    unit_bytes: usize,
    /// First f32 of the row's words.
    words: usize,
}

impl Room {
    /// For row `row` of a tile at `out`.
    pub(super) fn new(recipe: Recipe, [class, row]: [usize; 2], out: *mut f32) -> Self {
        let (slab, unit, unit_bytes) = (recipe.slab(), recipe.unit(), recipe.unit_bytes(class));
        let planes = from_fn(|plane| {
            let at = plane * unit;
            (at / slab * class + row) * slab + at % slab
        });
        let words = recipe.units() * unit_bytes / 4 + row;
        Self { recipe, class, out, planes, unit: unit.ilog2(), unit_bytes, words }
    }

    /// Sixteen bytes of a plane from a column on.
    #[inline(always)]
    fn at(&self, column: usize, plane: usize) -> *mut __m128i {
        let unit = column >> self.unit;
        let at = unit * self.unit_bytes + self.planes[plane] + (column - (unit << self.unit));
        self.out.cast::<u8>().wrapping_add(at).cast()
    }

    /// Stores the digits of sixteen columns, highest first, as pairs.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the columns are the tile's, which has pairs.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn put_pairs(&self, column: usize, [high, middle, low, _]: [__m128i; 4]) {
        let none = _mm_setzero_si128();
        let byte = _mm_set1_epi16(0xff);
        let powers = [(none, high), (high, middle), (middle, low), (low, none)];
        for (i, (with_low, with_high)) in powers.into_iter().enumerate() {
            // Bits of the first where `byte` has them, else of the second.
            let even =
                _mm_ternarylogic_epi32::<0xca>(byte, with_low, _mm_slli_epi16::<8>(with_high));
            let odd =
                _mm_ternarylogic_epi32::<0xca>(byte, _mm_srli_epi16::<8>(with_low), with_high);
            // SAFETY: the caller's promise.
            unsafe {
                _mm_storeu_si128(self.at(column, i), even);
                _mm_storeu_si128(self.at(column, PAIRED / 2 + i), odd);
            }
        }
    }

    /// Word `i` of a part.
    #[inline(always)]
    fn word(&self, part: usize, i: usize) -> *mut f32 {
        self.out.wrapping_add(self.words + (part * WORDS + i) * self.class)
    }

    fn worth(&self) -> *mut f32 {
        self.word(self.recipe.parts(), 0)
    }
}

/// The largest absolute value's bits; those of infinities and of what is not a number are larger than any.
///
/// # Safety
/// The instructions of [`super::Units`].
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
/// The instructions of [`super::Units`]; `room` is as it says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn write(room: &Room, x: &[f32]) {
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
    let pairs = recipe.pairs(room.class);
    let digit_sums = recipe.sums[0] && !recipe.by_tiles(room.class);
    let mut block = _mm512_setzero_si512();
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
                if digit_sums {
                    for i in 0..3 {
                        sums[1 + i] = _mm512_add_epi32(sums[1 + i], digits[i]);
                    }
                }
                let bytes = bytes.map(|b| _mm_shuffle_epi8(_mm512_cvtepi32_epi8(b), order));
                if pairs {
                    room.put_pairs(column, bytes);
                } else {
                    for plane in 0..recipe.planes(room.class) {
                        _mm_storeu_si128(room.at(column, plane), bytes[plane]);
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            if recipe.sums[1] {
                *room.word(part, 0) = _mm512_reduce_add_epi32(sums[0]) as f32;
            }
            if digit_sums {
                for i in 1..WORDS {
                    *room.word(part, i).cast::<i32>() = _mm512_reduce_add_epi32(sums[i]);
                }
            }
            if pairs && recipe.sums[0] {
                block = _mm512_add_epi32(block, sums[0]);
                if let Some(first) = recipe.block_ending_with(part) {
                    let sum = _mm512_reduce_add_epi32(block);
                    *room.word(first, 1).cast::<i32>() = sum >> 1;
                    *room.word(first, 2).cast::<i32>() = (sum & 1) << 15;
                    block = _mm512_setzero_si512();
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
/// The instructions of [`super::Units`].
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
/// The instructions of [`super::Units`].
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
/// The instructions of [`super::Units`].
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
