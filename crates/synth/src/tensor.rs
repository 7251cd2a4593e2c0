//! One tensor of random numbers, any rows of which can be drawn alone.

use crate::draw::{bf16, e4m3, normal, unit, word};
use forerun_base::{DType, bf16_to_f32};
use std::ops::Range;
use std::sync::LazyLock;

/// Normal numbers that the elements of dense matrices are chosen from.
static NORMAL: LazyLock<Box<[f32; 4096]>> = LazyLock::new(|| Box::new(normal()));

/// What FP8 codes are drawn around: the deviation in units of a code's value.
pub(crate) const E4M3_DEVIATION: f32 = 64.0;
/// Mean of four-bit codes.
const MIDDLE: f32 = 7.5;

/// How elements are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fill {
    /// All the same.
    Constant(f32),
    /// Even between two bounds, then mapped.
    Uniform([f32; 2], fn(f32) -> f32),
    /// Normal with this deviation.
    Normal(f32),
    /// Random bits.
    Bits,
    /// Group scales around a number.
    Scales(f32),
    /// What brings codes with such scales to a mean of zero.
    Offsets(f32),
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct SynthTensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) key: u64,
    pub(crate) fill: Fill,
}

impl SynthTensor {
    /// Elements of a row: the last axis.
    fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// All leading axes run together.
    pub(crate) fn rows(&self) -> usize {
        self.shape[..self.shape.len().saturating_sub(1)].iter().product()
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.cols() * self.dtype.size()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rows() as u64 * self.row_bytes() as u64
    }

    /// The bytes of some rows.
    pub(crate) fn draw(&self, rows: Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() * self.row_bytes());
        rows.for_each(|row| self.draw_row(row, &mut out));
        out
    }

    fn draw_row(&self, row: usize, out: &mut Vec<u8>) {
        let cols = self.cols();
        // Every element has a counter of its own, whatever part of a word it takes.
        let first = row as u64 * cols as u64;
        let words = |each: usize| {
            let start = row as u64 * cols.div_ceil(each) as u64;
            (0..cols.div_ceil(each) as u64).map(move |i| word(self.key, start + i))
        };
        match (self.fill, self.dtype) {
            (Fill::Constant(value), _) => (0..cols).for_each(|_| self.put(value, out)),
            (Fill::Uniform([low, high], map), _) => {
                for i in 0..cols as u64 {
                    let at = unit(word(self.key, first + i));
                    self.put(map(low + (high - low) * at), out);
                }
            }
            (Fill::Normal(_), DType::F8E4M3) => {
                let codes = &**CODES;
                let bytes = words(8).flat_map(u64::to_le_bytes).take(cols);
                out.extend(bytes.map(|byte| codes[usize::from(byte)]));
            }
            (Fill::Normal(deviation), _) => {
                let table = &**NORMAL;
                let halves = words(4).flat_map(|w| [0, 16, 32, 48].map(|at| (w >> at) as usize));
                for half in halves.take(cols) {
                    self.put(deviation * table[half & 0xfff], out);
                }
            }
            (Fill::Bits, _) => {
                out.extend(
                    words(8 / self.dtype.size()).flat_map(u64::to_le_bytes).take(self.row_bytes()),
                );
            }
            (Fill::Scales(value), _) => {
                (0..cols as u64).for_each(|i| out.extend(bf16(self.scale(value, first + i))));
            }
            (Fill::Offsets(value), _) => {
                for i in 0..cols as u64 {
                    let scale = bf16_to_f32(u16::from_le_bytes(bf16(self.scale(value, first + i))));
                    out.extend(bf16(-MIDDLE * scale));
                }
            }
        }
    }

    /// A scale within an eighth of `value`.
    fn scale(&self, value: f32, counter: u64) -> f32 {
        value * (0.875 + 0.25 * unit(word(self.key, counter)))
    }

    fn put(&self, value: f32, out: &mut Vec<u8>) {
        match self.dtype {
            DType::F32 => out.extend(value.to_le_bytes()),
            _ => out.extend(bf16(value)),
        }
    }
}

/// FP8 codes of normal numbers.
static CODES: LazyLock<Box<[u8; 256]>> =
    LazyLock::new(|| Box::new(normal::<256>().map(|value| e4m3(E4M3_DEVIATION * value))));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_rows_are_those_of_the_whole() {
        let fills = [
            (Fill::Constant(1.0), DType::BF16),
            (Fill::Uniform([0.0, 2.0], |x| x + 1.0), DType::F32),
            (Fill::Normal(0.1), DType::BF16),
            (Fill::Normal(0.1), DType::F32),
            (Fill::Normal(1.0), DType::F8E4M3),
            (Fill::Bits, DType::U32),
            (Fill::Scales(0.3), DType::BF16),
            (Fill::Offsets(0.3), DType::BF16),
        ];
        for (fill, dtype) in fills {
            for cols in [1, 7, 64] {
                let tensor = SynthTensor { dtype, shape: vec![3, 5, cols], key: 9, fill };
                let whole = tensor.draw(0..15);
                assert_eq!(whole.len() as u64, tensor.bytes());
                let each = tensor.row_bytes();
                for (from, to) in [(0, 1), (4, 9), (14, 15), (7, 7)] {
                    let rows = &whole[from * each..to * each];
                    assert_eq!(tensor.draw(from..to), rows, "{fill:?} {dtype} {cols}");
                }
                let constant = matches!(fill, Fill::Constant(_));
                assert_eq!(whole[..each] == whole[each..2 * each], constant, "{fill:?} {dtype}");
            }
        }
    }

    #[test]
    fn four_bit_numbers_have_the_deviation_that_their_scale_was_made_for() {
        let value = 0.05;
        let part = |fill, dtype, cols| SynthTensor { dtype, shape: vec![64, cols], key: 4, fill };
        let codes = part(Fill::Bits, DType::U32, 32).draw(0..64);
        let numbers: Vec<f32> = codes
            .iter()
            .flat_map(|byte| [byte & 15, byte >> 4])
            .map(|code| value * (f32::from(code) - MIDDLE))
            .collect();
        let square = numbers.iter().map(|x| x * x).sum::<f32>() / numbers.len() as f32;
        let expected = value * value * 255.0 / 12.0;
        assert!((square / expected - 1.0).abs() < 0.05, "{square} for {expected}");
    }
}
