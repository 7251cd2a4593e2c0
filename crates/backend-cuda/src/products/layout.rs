//! The packed layout of weights in device memory.
//!
//! # Layout
//! A weight is cut into tiles of 16 rows, and a tile's columns into blocks of 128. A block is one run of bytes: first
//! its codes, ordered so that a lane's 16-byte load is the `A` operand of `mma.m16n8k16`, then its scales. Rows and
//! columns that fill the last tile and block up are zeros, which add nothing.
//!
//! A number that needs more bits than bfloat16 has is stored as the sum of several (*planes*), each a k16 step of its
//! own with the same activations; a weight of `p` planes is `p` times as deep.

use forerun_base::{Codes, DType, Format, MatrixParts, f16_to_f32, f32_to_bf16, f32_to_f16};
use forerun_base::{bf16_to_f32, e4m3_to_f32};

/// Rows of a tile.
pub const TILE: usize = 16;
/// Columns of a block.
pub const BLOCK: usize = 128;
/// Columns of a step of the tensor core.
pub const STEP: usize = 16;

/// What the codes are. The numbers are those of `product.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFamily {
    /// bfloat16.
    Bf16 = 0,
    /// FP8 e4m3.
    E4m3 = 1,
    /// Signed bytes.
    I8 = 2,
    /// Unsigned codes of four bits.
    U4 = 3,
}

/// How scales, and offsets with them, are kept. The numbers are those of `product.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleForm {
    /// There are none.
    None = 0,
    /// One f32 for a block of 16 × 128.
    Tile = 1,
    /// bfloat16 for each row and group.
    Bf16 = 2,
    /// Half floats for each row and group.
    F16 = 3,
    /// f32 for each row and group.
    F32 = 4,
}

/// The packed format of a weight, for which kernels are compiled: weights of the same format can share a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedFormat {
    /// What the codes are.
    pub family: CodeFamily,
    /// Terms that a number is the sum of; 1 unless bfloat16.
    pub planes: usize,
    /// Columns that share a scale: 16, 32, 64 or 128.
    pub group: usize,
    /// How scales are kept.
    pub scales: ScaleForm,
    /// Whether there are offsets.
    pub offset: bool,
    /// The value of code 0: a code's value is the code plus this.
    pub bias: i32,
}

impl PackedFormat {
    /// Dense bfloat16.
    pub const BF16: Self = Self {
        family: CodeFamily::Bf16,
        planes: 1,
        group: BLOCK,
        scales: ScaleForm::None,
        offset: false,
        bias: 0,
    };

    /// Bytes of a block's codes.
    pub const fn code_bytes(self) -> usize {
        match self.family {
            CodeFamily::Bf16 => TILE * BLOCK * 2,
            CodeFamily::E4m3 | CodeFamily::I8 => TILE * BLOCK,
            CodeFamily::U4 => TILE * BLOCK / 2,
        }
    }

    /// Bytes of one group's scales and offsets.
    pub(super) const fn group_bytes(self) -> usize {
        let each = match self.scales {
            ScaleForm::None | ScaleForm::Tile => return 0,
            ScaleForm::Bf16 | ScaleForm::F16 => 2,
            ScaleForm::F32 => 4,
        };
        TILE * each * (1 + self.offset as usize)
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        let scales = match self.scales {
            // Copies keep blocks at multiples of 16 bytes.
            ScaleForm::Tile => 16,
            _ => BLOCK / self.group * self.group_bytes(),
        };
        self.code_bytes() + scales
    }
}

/// The layout of a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub cols: usize,
    /// Its packed format.
    pub kind: PackedFormat,
}

impl PackedLayout {
    /// The layout that holds every number of `matrix` exactly.
    pub fn of(matrix: &MatrixParts) -> Self {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let kind = match matrix.format() {
            Format::Dense(dtype) => dense(dtype),
            Format::Grouped { codes, group, offset, .. } => {
                let (family, bias) = family(codes);
                // Unsigned bytes do not fit into signed ones; their bias is added as an offset.
                let offset = offset || bias > 0;
                let whole = group >= cols;
                let unit = if whole { BLOCK } else { BLOCK.min(1 << group.trailing_zeros()) };
                let kind = PackedFormat {
                    family,
                    planes: 1,
                    group: unit,
                    scales: ScaleForm::F32,
                    offset,
                    bias,
                };
                PackedFormat { scales: super::scales::form(matrix, kind), ..kind }
            }
        };
        Self { rows, cols, kind }
    }

    /// Columns as the tensor core sees them, planes and filling included.
    pub const fn depth(&self) -> usize {
        (self.cols.next_multiple_of(STEP) * self.kind.planes).next_multiple_of(BLOCK)
    }

    /// Blocks of a tile.
    pub const fn blocks(&self) -> usize {
        self.depth() / BLOCK
    }

    /// Tiles.
    pub const fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Bytes of a tile.
    pub const fn tile_bytes(&self) -> usize {
        self.blocks() * self.kind.block_bytes()
    }

    /// Bytes of all.
    pub const fn bytes(&self) -> usize {
        self.tiles() * self.tile_bytes()
    }

    /// Sums over the columns that are made apart and then added in order.
    ///
    /// One chain costs bfloat16 nothing and is what libraries compute. The others gain from four, and they are long
    /// enough for four to be shared by four warps.
    pub const fn segments(&self) -> usize {
        let plain = matches!(self.kind.family, CodeFamily::Bf16) && self.kind.planes == 1;
        let depth = self.depth();
        if !plain && depth >= 2048 && depth.is_multiple_of(512) { 4 } else { 1 }
    }

    /// Whether another product's rows of this width can be left as columns for this one: without padding, and without
    /// sums of groups.
    pub const fn takes_columns_of(&self, width: usize) -> bool {
        self.kind.planes == 1 && !self.kind.offset && self.depth() == width
    }

    /// A readable name, for `inspect` and tests.
    pub fn name(&self) -> String {
        let PackedFormat { family, planes, group, scales, offset, .. } = self.kind;
        let family = match family {
            CodeFamily::Bf16 if planes == 1 => return "bf16".into(),
            CodeFamily::Bf16 => return format!("{planes}×bf16"),
            CodeFamily::E4m3 => "e4m3",
            CodeFamily::I8 => "8-bit",
            CodeFamily::U4 => "4-bit",
        };
        let scales = match scales {
            ScaleForm::None => "no",
            ScaleForm::Tile => "block",
            ScaleForm::Bf16 => "bf16",
            ScaleForm::F16 => "f16",
            ScaleForm::F32 => "f32",
        };
        let offset = if offset { " and offsets" } else { "" };
        format!("{family}/{group}, {scales} scales{offset}")
    }
}

fn dense(dtype: DType) -> PackedFormat {
    // 8, 11 and 24 bits of significand in terms of 8.
    let planes = match dtype {
        DType::BF16 => 1,
        DType::F16 => 2,
        _ => 3,
    };
    PackedFormat { planes, ..PackedFormat::BF16 }
}

/// The family that holds these codes, and the bias of its values.
fn family(codes: Codes) -> (CodeFamily, i32) {
    match codes {
        Codes::Uint { bits: ..=4 } => (CodeFamily::U4, 0),
        Codes::Int { bits: ..=4 } => (CodeFamily::U4, -8),
        Codes::Uint { bits: 8 } => (CodeFamily::I8, 128),
        Codes::Uint { .. } | Codes::Int { .. } | Codes::Table { .. } => (CodeFamily::I8, 0),
        Codes::E4m3 => (CodeFamily::E4m3, 0),
    }
}

/// The code of a packed weight for code `code` of a matrix.
pub(super) fn packed_code(codes: Codes, code: u8) -> u8 {
    match codes {
        Codes::Uint { bits: 8 } => code.wrapping_sub(128),
        Codes::Uint { .. } | Codes::E4m3 => code,
        Codes::Int { bits: bits @ ..=4 } => code + 8 - (1 << (bits - 1)),
        Codes::Int { bits } => code.wrapping_sub(1 << (bits - 1)),
        Codes::Table { values } => values[usize::from(code & 15)] as u8,
    }
}

/// The value of a packed code, before scale and offset.
pub(super) fn packed_value(kind: PackedFormat, code: u8) -> f32 {
    match kind.family {
        CodeFamily::E4m3 => e4m3_to_f32(code),
        CodeFamily::I8 => f32::from(code as i8) + kind.bias as f32,
        _ => f32::from(code) + kind.bias as f32,
    }
}

/// Whether bfloat16 holds a number.
pub(super) fn fits_bf16(number: f32) -> bool {
    bf16_to_f32(f32_to_bf16(number)).to_bits() == number.to_bits()
}

/// Whether a half float holds a number.
pub(super) fn fits_f16(number: f32) -> bool {
    f16_to_f32(f32_to_f16(number)).to_bits() == number.to_bits()
}
