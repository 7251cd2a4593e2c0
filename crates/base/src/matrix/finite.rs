//! The search for numbers that are none.

use super::{Format, Matrix, PIECE, SUPERBLOCK, ScaleKind, ScaleType};
use crate::DType;
use crate::parallel::find_first;
use std::sync::atomic::{AtomicU64, Ordering};

/// Remembers the first number that is none, whichever thread finds it. See [`MatrixParts`](super::MatrixParts).
#[derive(Debug)]
pub struct FiniteWatch {
    /// The plane in the top bits, the row below; all ones when nothing was found.
    first: AtomicU64,
}

/// Where the plane begins in [`FiniteWatch::first`].
const PLANE_AT: u32 = 60;

impl Default for FiniteWatch {
    fn default() -> Self {
        Self { first: AtomicU64::new(u64::MAX) }
    }
}

impl FiniteWatch {
    /// The first plane with such a number, and the first row in it, as [`Matrix::first_not_finite`] gives them.
    pub fn found(&self) -> Option<(&'static str, usize)> {
        let first = self.first.load(Ordering::Relaxed);
        let plane = PLANES[(first >> PLANE_AT) as usize % PLANES.len()];
        (first != u64::MAX).then_some((plane, (first & ((1 << PLANE_AT) - 1)) as usize))
    }

    /// Searches rows that are `first` and those after it of the whole.
    pub(super) fn search(&self, rows: &Matrix, first: usize) {
        if let Some((plane, row)) = rows.first_not_finite() {
            let plane = PLANES.iter().position(|&name| name == plane).unwrap_or_default();
            let key = (plane as u64) << PLANE_AT | (first + row) as u64;
            self.first.fetch_min(key, Ordering::Relaxed);
        }
    }
}

/// The planes in the order in which they are searched.
const PLANES: [&str; 3] = ["values", "scales", "offsets"];

impl Matrix {
    /// The first plane that holds NaN or an infinite number, and the row it is in. Codes are small integers, so
    /// only dense numbers, scales and offsets are searched, at about the speed of memory.
    pub fn first_not_finite(&self) -> Option<(&'static str, usize)> {
        let row = |plane: &[u8], at: usize| at * self.rows / plane.len();
        match self.format {
            Format::Dense(dtype) => {
                let at = match dtype {
                    DType::F16 => sixteen_bit(&self.codes, 0x7c00),
                    DType::BF16 => sixteen_bit(&self.codes, 0x7f80),
                    _ => words(&self.codes),
                };
                at.map(|at| (PLANES[0], row(&self.codes, at)))
            }
            Format::Grouped { group, scale, .. } => {
                let planes = [(PLANES[1], &self.scales), (PLANES[2], &self.offsets)];
                planes.into_iter().find_map(|(name, plane)| {
                    let at = match scale {
                        ScaleKind::Float(ScaleType::F32) => words(plane),
                        ScaleKind::Float(ScaleType::F16) => sixteen_bit(plane, 0x7c00),
                        ScaleKind::Float(ScaleType::BF16) => sixteen_bit(plane, 0x7f80),
                        ScaleKind::Nested => nested(plane, 2 + SUPERBLOCK / group),
                    };
                    at.map(|at| (name, row(plane, at)))
                })
            }
        }
    }
}

/// Where the first FP8 e4m3 code lies that is not a number.
pub(super) fn first_e4m3_nan(bytes: &[u8]) -> Option<usize> {
    let bad = |code: &u8| code & 0x7f == 0x7f;
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().fold(0, |any, code| any | u8::from(bad(code))) != 0 {
            return piece.iter().position(bad).map(|at| i * PIECE + at);
        }
    }
    None
}

/// Where the first 16-bit float lies whose exponent, the bits of `mask`, is all ones.
fn sixteen_bit(bytes: &[u8], mask: u16) -> Option<usize> {
    find_first(bytes, PIECE, |share| sixteen_bit_in(share, mask))
}

fn sixteen_bit_in(bytes: &[u8], mask: u16) -> Option<usize> {
    let bad = |word: &[u8; 2]| u16::from_le_bytes(*word) & mask == mask;
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        let piece = piece.as_chunks::<2>().0;
        // Without an early exit the compiler makes vectors of it.
        if piece.iter().fold(0, |any, word| any | u16::from(bad(word))) != 0 {
            return piece.iter().position(bad).map(|at| i * PIECE + 2 * at);
        }
    }
    None
}

/// The same of f32.
fn words(bytes: &[u8]) -> Option<usize> {
    find_first(bytes, PIECE, words_in)
}

fn words_in(bytes: &[u8]) -> Option<usize> {
    let bad = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0x7f80_0000 == 0x7f80_0000;
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        let piece = piece.as_chunks::<4>().0;
        if piece.iter().fold(0, |any, word| any | u32::from(bad(word))) != 0 {
            return piece.iter().position(bad).map(|at| i * PIECE + 4 * at);
        }
    }
    None
}

/// The same of the f16 that blocks of so many bytes begin with.
fn nested(bytes: &[u8], block: usize) -> Option<usize> {
    let bad = |block: &[u8]| u16::from_le_bytes([block[0], block[1]]) & 0x7c00 == 0x7c00;
    find_first(bytes, block, |share| share.chunks_exact(block).position(bad).map(|at| at * block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Codes};

    fn empty() -> Bytes {
        Vec::new().into()
    }

    #[test]
    fn one_bad_number_is_found_in_its_row_wherever_it_lies() {
        let (rows, cols) = (7, 1500);
        for (dtype, bad) in [
            (DType::F32, f32::NAN.to_le_bytes().to_vec()),
            (DType::F32, f32::NEG_INFINITY.to_le_bytes().to_vec()),
            (DType::F16, 0x7c00_u16.to_le_bytes().to_vec()),
            (DType::F16, 0xfe01_u16.to_le_bytes().to_vec()),
            (DType::BF16, 0x7f80_u16.to_le_bytes().to_vec()),
            (DType::BF16, 0xffc0_u16.to_le_bytes().to_vec()),
        ] {
            let size = dtype.size();
            // The largest finite number, so that a near miss is no hit.
            let largest = match dtype {
                DType::F32 => f32::MAX.to_le_bytes().to_vec(),
                DType::F16 => 0x7bff_u16.to_le_bytes().to_vec(),
                _ => 0x7f7f_u16.to_le_bytes().to_vec(),
            };
            let fine = largest.repeat(rows * cols);
            let matrix = |bytes: Vec<u8>| Matrix::dense(rows, cols, dtype, bytes.into()).unwrap();
            assert_eq!(matrix(fine.clone()).first_not_finite(), None);
            for at in [0, 1, cols - 1, cols, 3 * cols + 700, rows * cols - 1] {
                let mut bytes = fine.clone();
                bytes[at * size..(at + 1) * size].copy_from_slice(&bad);
                let found = matrix(bytes).first_not_finite();
                assert_eq!(found, Some(("values", at / cols)), "{dtype} {at}");
            }
        }
    }

    #[test]
    fn scales_and_offsets_are_searched_and_codes_are_not() {
        let (rows, cols, codes) = (3, 256, Codes::Uint { bits: 4 });
        for (scale, bad) in [
            (ScaleKind::F32, f32::INFINITY.to_le_bytes().to_vec()),
            (ScaleKind::F16, 0x7e00_u16.to_le_bytes().to_vec()),
            (ScaleKind::BF16, 0x7fc0_u16.to_le_bytes().to_vec()),
            (ScaleKind::Nested, 0x7c00_u16.to_le_bytes().to_vec()),
        ] {
            let format = Format::Grouped { codes, group: 32, scale, offset: true };
            let all_ones = || Bytes::from(vec![0xff; rows * format.row_bytes(cols)]);
            let fine = vec![0; rows * format.row_scale_bytes(cols)];
            let mut spoiled = fine.clone();
            let at = 2 * format.row_scale_bytes(cols);
            spoiled[at..at + bad.len()].copy_from_slice(&bad);
            for (scales, offsets, expected) in [
                (&fine, &fine, None),
                (&spoiled, &fine, Some(("scales", 2))),
                (&fine, &spoiled, Some(("offsets", 2))),
            ] {
                let planes = [all_ones(), scales.clone().into(), offsets.clone().into()];
                let matrix = Matrix::new([rows, cols], format, planes).unwrap();
                assert_eq!(matrix.first_not_finite(), expected, "{scale:?}");
            }
        }
        let none = Matrix::dense(0, 4, DType::F32, empty()).unwrap();
        assert_eq!(none.first_not_finite(), None);
    }
}
