//! Why a checkpoint cannot be used. All of it is for the operator: the folder is wrong,
//! damaged, or stored in a way this version does not read.

use crate::gguf::GgufError;
use crate::safetensors::HeaderError;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be opened, or a tensor that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was being read.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path does not hold a checkpoint, or not a whole one.
    #[error("{}: {why}", path.display())]
    Checkpoint {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong and what would be right.
        why: String,
    },
    /// A JSON file that does not say what it must.
    #[error("{}: {why}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A safetensors header that does not describe its file.
    #[error("{}: {source}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: HeaderError,
    },
    /// A GGUF file that does not describe itself.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// One name stands in two files.
    #[error("tensor `{tensor}` is in both {} and {}; remove one", first.display(), second.display())]
    Twice {
        /// The name.
        tensor: String,
        /// The file read first.
        first: PathBuf,
        /// The file that repeats it.
        second: PathBuf,
    },
    /// No file holds the tensor.
    #[error("{}: no tensor `{tensor}` in the weight files", path.display())]
    Missing {
        /// The requested name.
        tensor: String,
        /// The folder.
        path: PathBuf,
    },
    /// The tensor has another shape than the model asks for.
    #[error("{}: tensor `{tensor}` has shape {found:?}; expected {expected:?}", path.display())]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// The requested shape.
        expected: Vec<usize>,
        /// The shape stored.
        found: Vec<usize>,
    },
    /// The tensor cannot be read as what was requested.
    #[error("{}: tensor `{tensor}`: {why}", path.display())]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl WeightsError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    pub(crate) fn checkpoint(path: &Path, why: impl Into<String>) -> Self {
        Self::Checkpoint { path: path.into(), why: why.into() }
    }

    pub(crate) fn json(path: &Path, why: impl ToString) -> Self {
        Self::Json { path: path.into(), why: why.to_string() }
    }
}
