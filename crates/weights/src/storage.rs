//! How a tensor is stored, whatever kind of file it lies in.

use crate::gguf::BlockType;
use forerun_base::DType;
use std::fmt;

/// How the values of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// One element after the other.
    Plain(DType),
    /// Blocks of ggml, each with its own scales.
    Block(BlockType),
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(f),
            Self::Block(block) => block.fmt(f),
        }
    }
}

/// What is known about a tensor without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// How its values are stored.
    pub storage: Storage,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Bytes its values take in the file; zero when the type is not known.
    pub bytes: u64,
}
