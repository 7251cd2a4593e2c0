//! How the scales and offsets of a row are stored.

use crate::{bf16_to_f32, f16_to_f32};

/// Columns that share the f16 scale of nested scales.
pub const SUPERBLOCK: usize = 256;
/// Bytes of that scale.
const HALF: usize = 2;

/// A type of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say all there is to say")]
pub enum ScaleType {
    F32,
    F16,
    BF16,
}

impl ScaleType {
    /// Bytes per scale.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Scale number `i` of a plane.
    #[inline]
    pub fn get(self, plane: &[u8], i: usize) -> f32 {
        match self {
            Self::F32 => {
                let b = &plane[4 * i..4 * i + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            Self::F16 => f16_to_f32(half(plane, 2 * i)),
            Self::BF16 => bf16_to_f32(half(plane, 2 * i)),
        }
    }
}

/// How scales are stored, and offsets with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleKind {
    /// A float for each group.
    Float(ScaleType),
    /// For every [`SUPERBLOCK`] columns a half `d`, then an i8 `s` for each of their groups, whose
    /// scale is `d · s`: exact in f32, 11 bits times 7. The columns of a row are whole superblocks.
    Nested,
}

impl ScaleKind {
    /// An f32 for each group.
    pub const F32: Self = Self::Float(ScaleType::F32);
    /// An f16 for each group.
    pub const F16: Self = Self::Float(ScaleType::F16);
    /// A bfloat16 for each group.
    pub const BF16: Self = Self::Float(ScaleType::BF16);

    /// Bytes of the scales in a row of `cols` columns.
    pub(super) const fn row_bytes(self, cols: usize, group: usize) -> usize {
        match self {
            Self::Float(float) => cols.div_ceil(group) * float.size(),
            Self::Nested => cols / SUPERBLOCK * (HALF + SUPERBLOCK / group),
        }
    }

    /// The scale of group `i` in the scales of a row, whose groups have `group` columns.
    #[inline]
    pub fn get(self, row: &[u8], group: usize, i: usize) -> f32 {
        match self {
            Self::Float(float) => float.get(row, i),
            Self::Nested => {
                let [d, s] = Nesting::new(group).place(i);
                f16_to_f32(half(row, d)) * f32::from(row[s] as i8)
            }
        }
    }
}

/// Where the numbers of nested scales lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nesting {
    /// Groups of a superblock, as a power of two.
    shift: u32,
}

impl Nesting {
    /// For groups of `group` columns, which divide a superblock.
    pub const fn new(group: usize) -> Self {
        Self { shift: (SUPERBLOCK / group).trailing_zeros() }
    }

    /// Groups of a superblock.
    pub const fn groups(self) -> usize {
        1 << self.shift
    }

    /// The bytes of a row at which the f16 and the i8 of group `i` begin.
    #[inline]
    pub const fn place(self, i: usize) -> [usize; 2] {
        let block = i >> self.shift;
        [(block << self.shift) + block * HALF, i + (block + 1) * HALF]
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codes, Format, Matrix};

    #[test]
    fn scales_and_groups_follow_each_other_without_gaps() {
        for group in [16, 32, 64, 128, 256] {
            let (nesting, groups) = (Nesting::new(group), SUPERBLOCK / group);
            assert_eq!(nesting.groups(), groups);
            let mut next = 0;
            for i in 0..3 * groups {
                let [d, s] = nesting.place(i);
                if i % groups == 0 {
                    assert_eq!(d, next, "group {i} of {group}");
                    next += HALF;
                }
                assert_eq!(s, next, "group {i} of {group}");
                assert_eq!(d, nesting.place(i / groups * groups)[0], "group {i} of {group}");
                next += 1;
            }
            assert_eq!(next, ScaleKind::Nested.row_bytes(3 * SUPERBLOCK, group));
        }
    }

    #[test]
    fn nested_scales_want_whole_superblocks_and_whole_numbers() {
        let uint = Codes::Uint { bits: 4 };
        let cases = [
            (uint, 32, 512, true),
            (uint, 256, 256, true),
            (uint, 32, 0, true),
            (uint, 32, 384, false),
            (uint, 48, 768, false),
            (uint, 512, 512, false),
            (Codes::E4m3, 32, 256, false),
        ];
        for (codes, group, cols, fits) in cases {
            let format = Format::Grouped { codes, group, scale: ScaleKind::Nested, offset: false };
            let planes = [format.row_bytes(cols), format.row_scale_bytes(cols), 0];
            let planes = planes.map(|bytes| vec![0; bytes].into());
            let found = Matrix::new([1, cols], format, planes);
            assert_eq!(found.is_ok(), fits, "{codes:?} in groups of {group}, {cols} columns");
        }
    }

    #[test]
    fn a_nested_scale_is_the_exact_product_of_its_two_numbers() {
        for d in (0..=u16::MAX).filter(|d| d & 0x7c00 != 0x7c00) {
            for s in [-128_i8, -127, -1, 0, 1, 63, 127] {
                let [low, high] = d.to_le_bytes();
                let found = ScaleKind::Nested.get(&[low, high, s as u8], SUPERBLOCK, 0);
                let expected = f64::from(f16_to_f32(d)) * f64::from(s);
                assert_eq!(f64::from(found).to_bits(), expected.to_bits(), "{d:#x} times {s}");
            }
        }
    }
}
