//! The canonical weight matrix: what every file format becomes at load and the
//! only thing a kernel ever sees.
//!
//! # Math
//! `w[r][c] = scale[r][c / group] · value(code[r][c]) + offset[r][c / group]`, in f32,
//! one multiply and one add. Dense formats have no scale: the code is the value.
//!
//! # Layout
//! Row-major. The codes of a row are one little-endian bit stream: value `c` occupies bits
//! `[c·bits, (c+1)·bits)`, bit 0 being the lowest bit of the row's first byte. A row starts
//! on a byte. Scales and offsets are `[rows, ceil(cols / group)]`, so the last group of a
//! row may be short; nested ones are `[rows, cols / 256]` superblocks, see [`ScaleKind`].
//! A stack of expert matrices is one tall matrix.

mod columns;
mod finite;
mod parts;
mod scales;

pub use finite::FiniteWatch;
pub use parts::{MatrixParts, RowSource};
pub use scales::{Nesting, SUPERBLOCK, ScaleKind, ScaleType};

use crate::parallel::{find_first, on_threads, threads_for};
use crate::{Bytes, DType, bf16_to_f32, e4m3_to_f32, f16_to_f32};
use std::ops::Range;

/// Bytes that are searched at a time: a multiple of every element, and short enough to stay in cache. Also the least
/// that a page has.
const PIECE: usize = 1 << 12;

/// How one code becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// An unsigned integer of 2, 3, 4, 5, 6 or 8 bits.
    Uint {
        /// Width of a code.
        bits: u8,
    },
    /// A signed integer of the same widths, stored as `value + 2^(bits − 1)`. It has no offset.
    Int {
        /// Width of a code.
        bits: u8,
    },
    /// A 4-bit index into sixteen small integers.
    Table {
        /// The integers.
        values: [i8; 16],
    },
    /// An FP8 e4m3 number. NaN codes are refused when a matrix is built.
    E4m3,
}

impl Codes {
    /// Bits per code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Uint { bits } | Self::Int { bits } => bits as usize,
            Self::Table { .. } => 4,
            Self::E4m3 => 8,
        }
    }
}

/// The storage format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Plain numbers: F32, F16 or BF16.
    Dense(DType),
    /// Codes with a scale, and perhaps an offset, per group of columns.
    Grouped {
        /// How a code becomes a number.
        codes: Codes,
        /// Columns that share a scale; a multiple of 16.
        group: usize,
        /// How scales and offsets are stored.
        scale: ScaleKind,
        /// Whether there is an offset plane.
        offset: bool,
    },
}

impl Format {
    /// Bytes of codes in a row of `cols` columns.
    pub const fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Dense(dtype) => cols * dtype.size(),
            Self::Grouped { codes, .. } => (cols * codes.bits()).div_ceil(8),
        }
    }

    /// Scales in a row of `cols` columns.
    pub const fn row_groups(self, cols: usize) -> usize {
        match self {
            Self::Dense(_) => 0,
            Self::Grouped { group, .. } => cols.div_ceil(group),
        }
    }

    /// Bytes of scales in a row of `cols` columns; offsets take as many.
    pub const fn row_scale_bytes(self, cols: usize) -> usize {
        match self {
            Self::Dense(_) => 0,
            Self::Grouped { group, scale, .. } => scale.row_bytes(cols, group),
        }
    }

    /// A short name such as `u4/64` or `bf16`; in `u4/32/256` scales are nested.
    pub fn name(self) -> String {
        let (codes, group, scale) = match self {
            Self::Dense(dtype) => return dtype.to_string().to_lowercase(),
            Self::Grouped { codes, group, scale, .. } => (codes, group, scale),
        };
        let nested =
            if scale == ScaleKind::Nested { format!("/{SUPERBLOCK}") } else { String::new() };
        match codes {
            Codes::Uint { bits } => format!("u{bits}/{group}{nested}"),
            Codes::Int { bits } => format!("i{bits}/{group}{nested}"),
            Codes::Table { .. } => format!("t4/{group}{nested}"),
            Codes::E4m3 => format!("e4m3/{group}{nested}"),
        }
    }

    /// Checks the bytes in the planes of codes, scales and offsets against a shape.
    pub fn check_planes(
        self,
        [rows, cols]: [usize; 2],
        found: [usize; 3],
    ) -> Result<(), MatrixError> {
        self.check(cols)?;
        let overflow = || MatrixError::Format(format!("a shape of [{rows}, {cols}] overflows"));
        cols.checked_mul(8).ok_or_else(overflow)?;
        let names = ["codes", "scales", "offsets"];
        for ((plane, each), found) in names.into_iter().zip(self.plane_bytes(cols)).zip(found) {
            let expected = rows.checked_mul(each).ok_or_else(overflow)?;
            if expected != found {
                return Err(MatrixError::Plane { plane, expected, found });
            }
        }
        Ok(())
    }

    /// Refuses FP8 codes that are not numbers; those of other formats always are. All cores search.
    pub fn check_codes(self, codes: &[u8]) -> Result<(), MatrixError> {
        let fp8 = matches!(self, Self::Grouped { codes: Codes::E4m3, .. });
        if fp8 && find_first(codes, PIECE, finite::first_e4m3_nan).is_some() {
            return Err(MatrixError::NotANumber);
        }
        Ok(())
    }

    /// Bytes of a row of `cols` columns in the planes of codes, scales and offsets.
    pub const fn plane_bytes(self, cols: usize) -> [usize; 3] {
        let scales = self.row_scale_bytes(cols);
        let has_offset = matches!(self, Self::Grouped { offset: true, .. });
        [self.row_bytes(cols), scales, if has_offset { scales } else { 0 }]
    }

    /// Refuses what no kernel knows, and rows that the format cannot have.
    fn check(self, cols: usize) -> Result<(), MatrixError> {
        let refuse = |why: String| Err(MatrixError::Format(why));
        let (codes, group, scale, offset) = match self {
            Self::Dense(DType::F32 | DType::F16 | DType::BF16) => return Ok(()),
            Self::Dense(other) => return refuse(format!("{other} is not a dense weight type")),
            Self::Grouped { codes, group, scale, offset } => (codes, group, scale, offset),
        };
        if !matches!(codes.bits(), 2 | 3 | 4 | 5 | 6 | 8) {
            return refuse(format!("{}-bit codes", codes.bits()));
        }
        if group == 0 || group % 16 != 0 {
            return refuse(format!("groups of {group} columns; a group is a multiple of 16"));
        }
        if offset && matches!(codes, Codes::Int { .. }) {
            return refuse("signed codes with offsets".into());
        }
        if scale == ScaleKind::Nested {
            if codes == Codes::E4m3 {
                return refuse("FP8 codes with nested scales".into());
            }
            if !SUPERBLOCK.is_multiple_of(group) || !cols.is_multiple_of(SUPERBLOCK) {
                return refuse(format!(
                    "nested scales for rows of {cols} columns in groups of {group}; \
                     superblocks have {SUPERBLOCK}"
                ));
            }
        }
        Ok(())
    }
}

/// Why bytes do not make a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixError {
    /// The format itself is not one a kernel knows.
    Format(String),
    /// A plane has the wrong number of bytes.
    Plane {
        /// `codes`, `scales` or `offsets`.
        plane: &'static str,
        /// Bytes the shape asks for.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// An FP8 code that is not a number.
    NotANumber,
}

impl std::fmt::Display for MatrixError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Format(why) => write!(f, "{why}"),
            Self::Plane { plane, expected, found } => {
                write!(f, "{plane} hold {found} bytes where the shape needs {expected}")
            }
            Self::NotANumber => write!(f, "holds FP8 codes that are not numbers"),
        }
    }
}

impl std::error::Error for MatrixError {}

/// A weight matrix `[rows, cols]` in the canonical layout.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    format: Format,
    codes: Bytes,
    scales: Bytes,
    offsets: Bytes,
}

impl Matrix {
    /// A dense matrix of F32, F16 or BF16.
    pub fn dense(
        rows: usize,
        cols: usize,
        dtype: DType,
        values: Bytes,
    ) -> Result<Self, MatrixError> {
        let empty = || Bytes::from(Vec::new());
        Self::new([rows, cols], Format::Dense(dtype), [values, empty(), empty()])
    }

    /// A dense F32 matrix from numbers.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Result<Self, MatrixError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::dense(rows, cols, DType::F32, bytes.into())
    }

    /// Checks the planes `[codes, scales, offsets]` against the shape; unused planes are empty.
    pub fn new(
        [rows, cols]: [usize; 2],
        format: Format,
        [codes, scales, offsets]: [Bytes; 3],
    ) -> Result<Self, MatrixError> {
        format.check_planes([rows, cols], [codes.len(), scales.len(), offsets.len()])?;
        format.check_codes(&codes)?;
        Ok(Self { rows, cols, format, codes, scales, offsets })
    }

    /// Output channels (for an embedding: vocabulary entries).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The plane of codes (or of dense numbers).
    pub fn codes(&self) -> &Bytes {
        &self.codes
    }

    /// The plane of scales; empty when dense.
    pub fn scales(&self) -> &Bytes {
        &self.scales
    }

    /// The plane of offsets; empty when there are none.
    pub fn offsets(&self) -> &Bytes {
        &self.offsets
    }

    /// Bytes in all planes.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len() + self.offsets.len()
    }

    /// Reads one byte of every page with all cores, so that a mapped file is in memory.
    pub fn touch(&self) {
        for plane in [&self.codes, &self.scales, &self.offsets] {
            let each = plane.len().div_ceil(threads_for(plane.len())).max(1);
            let sum = on_threads(plane.chunks(each).collect(), |share| {
                share.iter().step_by(PIECE).fold(0u8, |a, &b| a ^ b)
            });
            std::hint::black_box(sum);
        }
    }

    /// A matrix of the rows in `ranges`, in that order. Copies only when there are several.
    pub fn select_rows(&self, ranges: &[Range<usize>]) -> Option<Self> {
        let rows = ranges.iter().map(|r| r.len()).sum();
        let take = |plane: &Bytes| -> Option<Bytes> {
            let stride = plane.len().checked_div(self.rows).unwrap_or(0);
            let bytes = |r: &Range<usize>| plane.slice(r.start * stride..r.end * stride);
            if let [range] = ranges {
                return bytes(range);
            }
            let mut out = Vec::with_capacity(rows * stride);
            for range in ranges {
                out.extend_from_slice(&bytes(range)?);
            }
            Some(out.into())
        };
        if ranges.iter().any(|r| r.start > r.end || r.end > self.rows) {
            return None;
        }
        Some(Self {
            rows,
            cols: self.cols,
            format: self.format,
            codes: take(&self.codes)?,
            scales: take(&self.scales)?,
            offsets: take(&self.offsets)?,
        })
    }

    /// One tall matrix from several of equal width and format; `None` when they differ.
    pub fn stack(parts: &[Self]) -> Option<Self> {
        let first = parts.first()?;
        if parts.iter().any(|p| p.cols != first.cols || p.format != first.format) {
            return None;
        }
        if parts.len() == 1 {
            return Some(first.clone());
        }
        let join = |plane: fn(&Self) -> &Bytes| -> Bytes {
            let mut out = Vec::with_capacity(parts.iter().map(|p| plane(p).len()).sum());
            parts.iter().for_each(|p| out.extend_from_slice(plane(p)));
            out.into()
        };
        Some(Self {
            rows: parts.iter().map(|p| p.rows).sum(),
            cols: first.cols,
            format: first.format,
            codes: join(Self::codes),
            scales: join(Self::scales),
            offsets: join(Self::offsets),
        })
    }

    /// Decodes row `row` into `out`: the definition every kernel is held to.
    ///
    /// # Panics
    /// When `row` or the length of `out` does not fit the matrix.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row or output outside the matrix");
        let stride = self.format.row_bytes(self.cols);
        let line = &self.codes[row * stride..(row + 1) * stride];
        match self.format {
            Format::Dense(dtype) => {
                for (c, o) in out.iter_mut().enumerate() {
                    let half = |i: usize| u16::from_le_bytes([line[2 * i], line[2 * i + 1]]);
                    *o = match dtype {
                        DType::F16 => f16_to_f32(half(c)),
                        DType::BF16 => bf16_to_f32(half(c)),
                        _ => ScaleType::F32.get(line, c),
                    };
                }
            }
            Format::Grouped { codes, group, scale, offset } => {
                let bytes = self.format.row_scale_bytes(self.cols);
                let number =
                    |plane: &Bytes, c| scale.get(&plane[row * bytes..][..bytes], group, c / group);
                for (c, o) in out.iter_mut().enumerate() {
                    let value = code_value(codes, line, c);
                    let shift = if offset { number(&self.offsets, c) } else { 0.0 };
                    *o = number(&self.scales, c) * value + shift;
                }
            }
        }
    }
}

/// The number that code `c` of a row stands for, before scale and offset.
fn code_value(codes: Codes, line: &[u8], c: usize) -> f32 {
    let bits = codes.bits();
    let first = c * bits / 8;
    let low = u16::from(line[first]);
    let high = line.get(first + 1).map_or(0, |&b| u16::from(b));
    let code = ((low | (high << 8)) >> (c * bits % 8)) & ((1 << bits) - 1);
    match codes {
        Codes::Uint { .. } => f32::from(code),
        Codes::Int { bits } => f32::from(code) - f32::from(1u16 << (bits - 1)),
        Codes::Table { values } => f32::from(values[usize::from(code)]),
        Codes::E4m3 => e4m3_to_f32(code as u8),
    }
}
