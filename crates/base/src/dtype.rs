//! Element types as they stand in files and buffers.

use std::fmt;

/// The type of one stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say all there is to say")]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    U64,
    I64,
    U32,
    I32,
    U16,
    I16,
    U8,
    I8,
    Bool,
}

impl DType {
    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::U64 | Self::I64 => 8,
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F16 | Self::BF16 | Self::U16 | Self::I16 => 2,
            Self::F8E4M3 | Self::F8E5M2 | Self::U8 | Self::I8 | Self::Bool => 1,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
