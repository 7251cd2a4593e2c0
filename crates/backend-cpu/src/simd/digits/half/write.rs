//! Rows of activations as digits: [`super::super::write`] by AVX2.

use super::super::super::batch::ROWS;
use super::super::super::isa::LANES;
use super::super::write::{Room, factor_and_worth, place};
use super::DIGITS;
use std::arch::x86_64::*;

/// Half of what each digit can hold, in the number's bits.
const RAISE: i32 = 0x80_8080;

/// As [`super::super::write::write`].
///
/// # Safety
/// AVX2; `room` is as it says, and has room for so many rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn write(room: &Room, rows: &[&[f32]]) {
    let recipe = room.recipe;
    let mut factors = [0.0; ROWS];
    for (row, (x, factor)) in rows.iter().zip(&mut factors).enumerate() {
        let bits = x.iter().map(|x| x.to_bits() & i32::MAX as u32).max().unwrap_or(0);
        // SAFETY: the caller's promise.
        unsafe { (*factor, *room.worth(row)) = factor_and_worth(f32::from_bits(bits)) };
    }
    let mut order = [0_u8; LANES];
    (0..LANES).for_each(|column| order[place(recipe.order, column)] = column as u8);
    for part in 0..recipe.parts() {
        for (row, (x, factor)) in rows.iter().zip(factors).enumerate() {
            let (mut sum, mut of_digits) = (0, [0; DIGITS]);
            for column in (part * recipe.part..(part + 1) * recipe.part).step_by(LANES) {
                let mut some = [0.0; LANES];
                let rest = x.get(column..).unwrap_or(&[]);
                let count = rest.len().min(LANES);
                some[..count].copy_from_slice(&rest[..count]);
                // SAFETY: every plane has a byte for each column; the rest is the caller's promise.
                unsafe {
                    let (planes, whole) = planes(&some, factor, &order);
                    sum += whole;
                    for (p, plane) in planes.into_iter().enumerate() {
                        _mm_storeu_si128(room.at(row, column, p), plane);
                        if recipe.sums[0] {
                            of_digits[p] += sum_of(plane);
                        }
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                if recipe.sums[1] {
                    *room.word(row, part, 0) = sum as f32;
                }
                if recipe.sums[0] {
                    for p in 0..DIGITS {
                        *room.word(row, part, 1 + p).cast::<i32>() =
                            -(of_digits[p] << recipe.excess);
                    }
                }
            }
        }
    }
}

/// The digits of sixteen columns, highest first, in the order of the codes; and the sum of the numbers.
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn planes(x: &[f32; LANES], factor: f32, order: &[u8; LANES]) -> ([__m128i; DIGITS], i32) {
    // The third, second and first bytes of four numbers.
    let by_byte = _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1);
    let mut fours = [_mm_setzero_si128(); 4];
    let mut sums = _mm_setzero_si128();
    // SAFETY: sixteen f32 and sixteen bytes.
    unsafe {
        for (i, four) in fours.iter_mut().enumerate() {
            let x = _mm_mul_ps(_mm_loadu_ps(x[4 * i..].as_ptr()), _mm_set1_ps(factor));
            let whole = _mm_cvtps_epi32(x);
            sums = _mm_add_epi32(sums, whole);
            let raised = _mm_add_epi32(whole, _mm_set1_epi32(RAISE));
            *four = _mm_shuffle_epi8(raised, by_byte);
        }
        let order = _mm_loadu_si128(order.as_ptr().cast());
        let [a, b, c, d] = fours;
        let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let last = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        let planes = [
            _mm_unpacklo_epi64(low, high),
            _mm_unpackhi_epi64(low, high),
            _mm_unpacklo_epi64(last.0, last.1),
        ];
        // A byte less 128 is the byte with its highest bit turned.
        let turn = _mm_set1_epi8(-128);
        let planes = planes.map(|plane| _mm_xor_si128(_mm_shuffle_epi8(plane, order), turn));
        let mut each = [0_i32; 4];
        _mm_storeu_si128(each.as_mut_ptr().cast(), sums);
        (planes, each.iter().sum())
    }
}

/// The sum of sixteen digits.
///
/// # Safety
/// AVX2.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sum_of(plane: __m128i) -> i32 {
    let raised = _mm_xor_si128(plane, _mm_set1_epi8(-128));
    let sums = _mm_sad_epu8(raised, _mm_setzero_si128());
    _mm_cvtsi128_si32(sums) + _mm_extract_epi16::<4>(sums) - 128 * LANES as i32
}
