//! One scheme applied to rows, on several threads.

use super::{affine, mxfp4, mxfp8, nvfp4};
use crate::config::{QuantMode, Scheme};
use forerun_base::{DType, Matrix, ScaleType};
use std::ops::Range;

/// A weight holds a number for which there is no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holds numbers that are not finite, or too large to quantise")]
pub struct EncodeError;

/// Encoded rows, ready to be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedPlanes {
    /// The bit stream; MLX calls it `weight`.
    pub codes: Vec<u8>,
    /// One per group.
    pub scales: Vec<u8>,
    /// One per group for affine, else empty.
    pub biases: Vec<u8>,
}

/// Rows and the places of their planes.
pub(super) struct Row<'a> {
    pub(super) values: &'a [f32],
    pub(super) codes: &'a mut [u8],
    pub(super) scales: &'a mut [u8],
    pub(super) biases: &'a mut [u8],
    pub(super) float: ScaleType,
}

/// Turns rows of numbers into codes of one scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    scheme: Scheme,
    /// The type of affine scales and biases.
    float: ScaleType,
}

impl Encoder {
    /// An encoder; `None` when MLX has no such scheme. `float` is the model's float type.
    pub fn new(scheme: Scheme, float: ScaleType) -> Option<Self> {
        scheme.is_known().then_some(Self { scheme, float })
    }

    /// The element type of the scales, and of the biases where there are any.
    pub fn scale_dtype(&self) -> DType {
        match (self.scheme.mode, self.float) {
            (QuantMode::Affine, ScaleType::F32) => DType::F32,
            (QuantMode::Affine, ScaleType::F16) => DType::F16,
            (QuantMode::Affine, ScaleType::BF16) => DType::BF16,
            _ => DType::U8,
        }
    }

    /// Whether there are biases.
    pub fn has_biases(&self) -> bool {
        self.scheme.mode == QuantMode::Affine
    }

    /// Bytes of codes, scales and biases in a row of `cols` numbers; `None` when groups do not
    /// divide it.
    pub fn row_bytes(&self, cols: usize) -> Option<[usize; 3]> {
        if !cols.is_multiple_of(self.scheme.group) {
            return None;
        }
        let scales = cols / self.scheme.group * self.scale_dtype().size();
        let biases = if self.has_biases() { scales } else { 0 };
        Some([cols / 8 * self.scheme.bits, scales, biases])
    }

    /// Encodes rows of a matrix on at most `threads` threads. How many does not change a bit.
    ///
    /// # Panics
    /// When groups do not divide the columns, or `rows` reaches outside the matrix.
    pub fn encode(
        &self,
        matrix: &Matrix,
        rows: Range<usize>,
        threads: usize,
    ) -> Result<EncodedPlanes, EncodeError> {
        let widths = self.row_bytes(matrix.cols()).expect("groups divide the columns");
        let [codes, scales, biases] = widths.map(|width| vec![0; width * rows.len()]);
        let mut planes = EncodedPlanes { codes, scales, biases };
        let each = rows.len().div_ceil(threads.max(1)).max(1);
        let mut parts = planes.split(widths, each);
        let last = parts.pop();
        std::thread::scope(|scope| {
            let mut first = rows.start;
            let mut running = Vec::new();
            for part in parts {
                let from = first;
                first += each;
                running.push(scope.spawn(move || self.part(matrix, from, widths, part)));
            }
            // The last part is this thread's own; with one thread nothing is spawned.
            let own = last.map_or(Ok(()), |part| self.part(matrix, first, widths, part));
            let join = |handle: std::thread::ScopedJoinHandle<'_, Result<(), EncodeError>>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).chain([own]).collect::<Result<Vec<()>, _>>()
        })?;
        Ok(planes)
    }

    /// Encodes the rows from `first` that fill a part.
    fn part(
        &self,
        matrix: &Matrix,
        first: usize,
        widths: [usize; 3],
        [codes, scales, biases]: [&mut [u8]; 3],
    ) -> Result<(), EncodeError> {
        let mut values = vec![0.0; matrix.cols()];
        let rows = codes.len().checked_div(widths[0]).unwrap_or(0);
        for i in 0..rows {
            matrix.decode_row(first + i, &mut values);
            self.row(Row {
                values: &values,
                codes: &mut codes[i * widths[0]..(i + 1) * widths[0]],
                scales: &mut scales[i * widths[1]..(i + 1) * widths[1]],
                biases: &mut biases[i * widths[2]..(i + 1) * widths[2]],
                float: self.float,
            })?;
        }
        Ok(())
    }

    fn row(&self, row: Row<'_>) -> Result<(), EncodeError> {
        let Scheme { mode, bits, group } = self.scheme;
        match (mode, bits) {
            (QuantMode::Affine, 2) => affine::encode::<2>(group, row),
            (QuantMode::Affine, 3) => affine::encode::<3>(group, row),
            (QuantMode::Affine, 4) => affine::encode::<4>(group, row),
            (QuantMode::Affine, 5) => affine::encode::<5>(group, row),
            (QuantMode::Affine, 6) => affine::encode::<6>(group, row),
            (QuantMode::Affine, _) => affine::encode::<8>(group, row),
            (QuantMode::Mxfp4, _) => mxfp4::encode(row),
            (QuantMode::Mxfp8, _) => mxfp8::encode(row),
            (QuantMode::Nvfp4, _) => nvfp4::encode(row),
        }
    }
}

impl EncodedPlanes {
    /// Windows of `rows` rows each into all three planes.
    fn split(&mut self, widths: [usize; 3], rows: usize) -> Vec<[&mut [u8]; 3]> {
        // A plane without bytes still needs a window per part.
        let mut biases = self.biases.chunks_mut((widths[2] * rows).max(1));
        let codes = self.codes.chunks_mut((widths[0] * rows).max(1));
        let scales = self.scales.chunks_mut((widths[1] * rows).max(1));
        codes
            .zip(scales)
            .map(|(codes, scales)| [codes, scales, biases.next().unwrap_or_default()])
            .collect()
    }
}
