//! Some columns of a matrix, in any order.

use super::{Format, Matrix, SUPERBLOCK, ScaleKind};
use crate::Bytes;
use std::ops::Range;

impl Matrix {
    /// A matrix of the columns in `ranges`, in that order; `None` when one lies outside.
    ///
    /// The format stays when every range starts and ends between groups. When they do so only
    /// between smaller groups of a multiple of 16, scales are repeated for those; otherwise the
    /// numbers are decoded. Nested scales stay when every range starts and ends between
    /// superblocks, otherwise they become f32. No value changes.
    pub fn select_columns(&self, ranges: &[Range<usize>]) -> Option<Self> {
        if ranges.iter().any(|r| r.start > r.end || r.end > self.cols) {
            return None;
        }
        let cols = ranges.iter().try_fold(0usize, |all, r| all.checked_add(r.len()))?;
        match self.format {
            Format::Dense(dtype) => {
                let codes = gather(&self.codes, self.rows, ranges, |column| column * dtype.size());
                Self::dense(self.rows, cols, dtype, codes).ok()
            }
            Format::Grouped { codes, group, scale, offset } => {
                let unit = self.common_group(group, ranges);
                if !unit.is_multiple_of(16) {
                    return self.decoded_columns(ranges, cols);
                }
                let nested = scale == ScaleKind::Nested;
                if nested && self.common_group(SUPERBLOCK, ranges) != SUPERBLOCK {
                    return self.with_f32_scales().select_columns(ranges);
                }
                let select = |plane: &Bytes| match scale {
                    ScaleKind::Float(float) => {
                        repeat_groups(plane, self.rows, ranges, group, unit, float.size())
                    }
                    ScaleKind::Nested => {
                        gather(plane, self.rows, ranges, |c| self.format.row_scale_bytes(c))
                    }
                };
                let format = Format::Grouped { codes, group: unit, scale, offset };
                let bytes = |column: usize| (column * codes.bits()).div_ceil(8);
                Some(Self {
                    rows: self.rows,
                    cols,
                    format,
                    codes: gather(&self.codes, self.rows, ranges, bytes),
                    scales: select(&self.scales),
                    offsets: if offset { select(&self.offsets) } else { self.offsets.clone() },
                })
            }
        }
    }

    /// The same numbers with a scale, and an offset where there are some, in f32 for each group.
    fn with_f32_scales(&self) -> Self {
        let Format::Grouped { codes, group, scale, offset } = self.format else {
            return self.clone();
        };
        let (bytes, groups) =
            (self.format.row_scale_bytes(self.cols), self.format.row_groups(self.cols));
        let widen = |plane: &Bytes| -> Bytes {
            let rows = plane.chunks_exact(bytes.max(1));
            let numbers = rows.flat_map(|row| (0..groups).map(|i| scale.get(row, group, i)));
            numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into()
        };
        Self {
            format: Format::Grouped { codes, group, scale: ScaleKind::F32, offset },
            scales: widen(&self.scales),
            offsets: widen(&self.offsets),
            ..self.clone()
        }
    }

    /// The largest part of a group that every range starts and ends at a multiple of. The end
    /// of the last range may be that of the row, where a short group is allowed.
    fn common_group(&self, group: usize, ranges: &[Range<usize>]) -> usize {
        let starts = ranges.iter().map(|r| r.start);
        let ends = ranges.iter().map(|r| r.end);
        let last = ranges.len().saturating_sub(1);
        let inner = ends.enumerate().filter(|&(i, end)| i != last || end != self.cols);
        starts.chain(inner.map(|(_, end)| end)).fold(group, greatest_common_divisor)
    }

    fn decoded_columns(&self, ranges: &[Range<usize>], cols: usize) -> Option<Self> {
        let mut values = Vec::with_capacity(self.rows.checked_mul(cols)?);
        let mut line = vec![0.0; self.cols];
        for row in 0..self.rows {
            self.decode_row(row, &mut line);
            ranges.iter().for_each(|r| values.extend_from_slice(&line[r.clone()]));
        }
        Self::from_f32(self.rows, cols, &values).ok()
    }
}

/// The bytes of the columns in `ranges` of every row; `at` gives where a column begins.
fn gather(
    plane: &Bytes,
    rows: usize,
    ranges: &[Range<usize>],
    at: impl Fn(usize) -> usize,
) -> Bytes {
    let stride = plane.len().checked_div(rows).unwrap_or(0);
    let mut out = Vec::new();
    for row in plane.chunks_exact(stride.max(1)) {
        ranges.iter().for_each(|r| out.extend_from_slice(&row[at(r.start)..at(r.end)]));
    }
    out.into()
}

/// Scales of `size` bytes for groups of `unit` columns out of those for groups of `group`.
fn repeat_groups(
    plane: &Bytes,
    rows: usize,
    ranges: &[Range<usize>],
    group: usize,
    unit: usize,
    size: usize,
) -> Bytes {
    let stride = plane.len().checked_div(rows).unwrap_or(0);
    let mut out = Vec::new();
    for row in plane.chunks_exact(stride.max(1)) {
        for column in ranges.iter().flat_map(|r| r.clone().step_by(unit)) {
            let at = column / group * size;
            out.extend_from_slice(&row[at..at + size]);
        }
    }
    out.into()
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codes, DType};

    const ROWS: usize = 3;

    /// A matrix whose codes, scales and offsets are all different from their neighbours.
    fn matrix(format: Format, cols: usize) -> Matrix {
        let plane = |bytes: usize, step: u8| -> Bytes {
            let bytes = (0..bytes).map(|i| (i as u8).wrapping_mul(step) & 0x3f);
            bytes.collect::<Vec<u8>>().into()
        };
        let scales = ROWS * format.row_scale_bytes(cols);
        let offset = matches!(format, Format::Grouped { offset: true, .. });
        let offsets = if offset { scales } else { 0 };
        let planes =
            [plane(ROWS * format.row_bytes(cols), 91), plane(scales, 37), plane(offsets, 53)];
        Matrix::new([ROWS, cols], format, planes).unwrap()
    }

    fn decode(matrix: &Matrix) -> Vec<f32> {
        let mut out = vec![0.0; matrix.rows() * matrix.cols()];
        for (row, line) in out.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
            matrix.decode_row(row, line);
        }
        out
    }

    fn grouped(codes: Codes, group: usize, scale: ScaleKind, offset: bool) -> Format {
        Format::Grouped { codes, group, scale, offset }
    }

    /// Every kind of code, with rows of 96 columns that end inside a group of 64.
    fn formats() -> Vec<Format> {
        let uint = |bits| grouped(Codes::Uint { bits }, 32, ScaleKind::F16, true);
        let int = |bits| grouped(Codes::Int { bits }, 16, ScaleKind::F32, false);
        let table =
            Codes::Table { values: [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7] };
        let mut all: Vec<Format> =
            [2, 3, 4, 5, 6, 8].into_iter().flat_map(|b| [uint(b), int(b)]).collect();
        all.push(grouped(table, 64, ScaleKind::BF16, false));
        all.push(grouped(Codes::E4m3, 48, ScaleKind::F32, true));
        all.extend([DType::F32, DType::F16, DType::BF16].map(Format::Dense));
        all
    }

    fn selections() -> Vec<Vec<Range<usize>>> {
        vec![
            vec![64..96, 0..64],
            vec![32..64, 64..96],
            vec![16..32, 80..96, 0..16],
            vec![48..96],
            vec![0..96, 0..96],
            vec![7..9, 90..96, 1..2],
            vec![95..96],
            vec![16..16, 32..48],
            vec![5..5],
            vec![],
        ]
    }

    /// Checks that columns keep their values and make a matrix.
    fn check_selections(format: Format, cols: usize, selections: &[Vec<Range<usize>>]) {
        let matrix = matrix(format, cols);
        let all = decode(&matrix);
        for ranges in selections {
            let found = matrix.select_columns(ranges).unwrap();
            let expected: Vec<u32> = all
                .chunks_exact(cols)
                .flat_map(|row| ranges.iter().flat_map(|r| &row[r.clone()]))
                .map(|v| v.to_bits())
                .collect();
            let bits: Vec<u32> = decode(&found).iter().map(|v| v.to_bits()).collect();
            assert_eq!(bits, expected, "{} {ranges:?}", format.name());
            let planes = [found.codes(), found.scales(), found.offsets()].map(Bytes::clone);
            let shape = [found.rows(), found.cols()];
            assert!(Matrix::new(shape, found.format(), planes).is_ok(), "{ranges:?}");
        }
    }

    #[test]
    fn selected_columns_decode_to_the_values_they_had() {
        formats().into_iter().for_each(|format| check_selections(format, 96, &selections()));
    }

    /// Formats of K-quants.
    fn nested() -> [Format; 2] {
        let codes = [(Codes::Uint { bits: 4 }, 32, true), (Codes::Int { bits: 6 }, 16, false)];
        codes.map(|(codes, group, offset)| grouped(codes, group, ScaleKind::Nested, offset))
    }

    #[test]
    fn columns_under_nested_scales_decode_to_the_values_they_had() {
        let wide = vec![
            vec![512..768, 0..256],
            vec![256..768, 256..512],
            vec![128..768],
            vec![256..512, 0..16],
            vec![16..32, 240..272],
            vec![511..513, 3..4],
            vec![768..768],
            vec![],
        ];
        nested().into_iter().for_each(|format| check_selections(format, 768, &wide));
    }

    #[test]
    fn nested_scales_stay_between_superblocks_and_are_f32_elsewhere() {
        for format in nested() {
            let matrix = matrix(format, 768);
            let Format::Grouped { codes, group, offset, .. } = format else { unreachable!() };
            let widened = |group| grouped(codes, group, ScaleKind::F32, offset);
            let cases: [(&[Range<usize>], Format); 5] = [
                (&[512..768, 0..256], format),
                (&[256..256, 0..768], format),
                (&[128..512, 0..256], widened(group)),
                (&[16..32, 0..256], widened(16)),
                (&[3..4, 0..256], Format::Dense(DType::F32)),
            ];
            for (ranges, expected) in cases {
                assert_eq!(matrix.select_columns(ranges).unwrap().format(), expected, "{ranges:?}");
            }
        }
    }

    #[test]
    fn the_format_stays_as_long_as_groups_stay_whole() {
        let wide = grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::F16, true);
        let dense = Format::Dense(DType::F32);
        let regrouped = |group| grouped(Codes::Uint { bits: 4 }, group, ScaleKind::F16, true);
        let cases: [(&[Range<usize>], Format); 6] = [
            (&[128..192, 0..64], wide),
            (&[64..128, 128..200], wide),
            (&[32..64, 64..96], regrouped(32)),
            (&[16..32, 96..128], regrouped(16)),
            (&[192..200, 0..64], dense),
            (&[0..8, 8..24], dense),
        ];
        let matrix = matrix(wide, 200);
        for (ranges, expected) in cases {
            assert_eq!(matrix.select_columns(ranges).unwrap().format(), expected, "{ranges:?}");
        }
    }

    #[test]
    fn columns_that_are_not_there_are_refused() {
        let matrix = matrix(grouped(Codes::Int { bits: 4 }, 32, ScaleKind::F16, false), 64);
        let backwards = Range { start: 40, end: 32 };
        for range in [64..65, 0..65, 70..80, backwards, 0..usize::MAX] {
            assert!(matrix.select_columns(std::slice::from_ref(&range)).is_none(), "{range:?}");
        }
    }
}
