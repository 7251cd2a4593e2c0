//! The element types of GGUF files.
//!
//! Types that exist but cannot be decoded are listed with their sizes, so that a file which
//! holds some is still checked as a whole and opened.

use super::blocks::{BlockRepack, PlaneSizes, legacy, packed, super_blocks, table};
use crate::Storage;
use forerun_base::DType;
use std::fmt;

/// A packed element type of ggml, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockType(u32);

/// What is known about one type.
#[derive(Debug)]
pub(super) struct BlockTypeInfo {
    pub(super) id: u32,
    pub(super) name: &'static str,
    /// Values in a block.
    pub(super) values: usize,
    /// Bytes in a block.
    pub(super) bytes: usize,
    /// How blocks become a canonical matrix; `None` when this version cannot read them.
    pub(super) repack: Option<BlockRepack>,
}

/// Every packed type in use.
static KINDS: [BlockTypeInfo; 28] = [
    packed::<legacy::Q4_0>(2, "Q4_0"),
    packed::<legacy::Q4_1>(3, "Q4_1"),
    packed::<legacy::Q5_0>(6, "Q5_0"),
    packed::<legacy::Q5_1>(7, "Q5_1"),
    packed::<legacy::Q8_0>(8, "Q8_0"),
    packed::<super_blocks::Q2K>(10, "Q2_K"),
    packed::<super_blocks::Q3K>(11, "Q3_K"),
    packed::<super_blocks::Q4K>(12, "Q4_K"),
    packed::<super_blocks::Q5K>(13, "Q5_K"),
    packed::<super_blocks::Q6K>(14, "Q6_K"),
    packed::<table::Iq4Nl>(20, "IQ4_NL"),
    packed::<table::Iq4Xs>(23, "IQ4_XS"),
    packed::<table::Mxfp4>(39, "MXFP4"),
    foreign(9, "Q8_1", 32, 36),
    foreign(15, "Q8_K", 256, 292),
    foreign(16, "IQ2_XXS", 256, 66),
    foreign(17, "IQ2_XS", 256, 74),
    foreign(18, "IQ3_XXS", 256, 98),
    foreign(19, "IQ1_S", 256, 50),
    foreign(21, "IQ3_S", 256, 110),
    foreign(22, "IQ2_S", 256, 82),
    foreign(29, "IQ1_M", 256, 56),
    foreign(31, "Q4_0_4_4", 32, 18),
    foreign(32, "Q4_0_4_8", 32, 18),
    foreign(33, "Q4_0_8_8", 32, 18),
    foreign(34, "TQ1_0", 256, 54),
    foreign(35, "TQ2_0", 256, 66),
    foreign(40, "NVFP4", 64, 36),
];

const fn foreign(id: u32, name: &'static str, values: usize, bytes: usize) -> BlockTypeInfo {
    BlockTypeInfo { id, name, values, bytes, repack: None }
}

impl BlockType {
    /// The types that can be decoded.
    pub fn readable() -> impl Iterator<Item = Self> {
        KINDS.iter().filter(|kind| kind.repack.is_some()).map(|kind| Self(kind.id))
    }

    /// Its number in the file.
    pub fn id(self) -> u32 {
        self.0
    }

    /// Values and bytes of a block; `None` when nothing is known about the type.
    pub fn block(self) -> Option<[usize; 2]> {
        self.kind().map(|kind| [kind.values, kind.bytes])
    }

    /// Bytes that `values` of this type take as a canonical matrix; `None` for a type that cannot be decoded.
    pub fn loaded_bytes(self, values: u64) -> Option<u64> {
        let kind = self.kind()?;
        let block = PlaneSizes::new(kind.repack?.format, kind.values).sum();
        Some(values / kind.values as u64 * block as u64)
    }

    pub(super) fn kind(self) -> Option<&'static BlockTypeInfo> {
        KINDS.iter().find(|kind| kind.id == self.0)
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => f.write_str(kind.name),
            None => write!(f, "ggml type {}", self.0),
        }
    }
}

impl Storage {
    /// The type with this number in a GGUF file. Every number is one, known or not.
    pub fn from_ggml(id: u32) -> Self {
        Self::Plain(match id {
            0 => DType::F32,
            1 => DType::F16,
            24 => DType::I8,
            25 => DType::I16,
            26 => DType::I32,
            27 => DType::I64,
            28 => DType::F64,
            30 => DType::BF16,
            other => return Self::Block(BlockType(other)),
        })
    }

    /// Values and bytes of the smallest piece; `None` when nothing is known about the type.
    pub fn block(self) -> Option<[usize; 2]> {
        match self {
            Self::Plain(dtype) => Some([1, dtype.size()]),
            Self::Block(block) => block.block(),
        }
    }
}
