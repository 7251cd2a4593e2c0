//! What activations become where they meet weights.

use std::fmt;

/// The arithmetic of products. Whatever is chosen holds for every row, so drafts, chunks and batches change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// As exact as f32.
    Exact,
    /// One bfloat16, on CUDA.
    Half,
    /// Rounded to 8 bits by blocks, on the CPU.
    Int8,
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Half => "half",
            Self::Int8 => "int8",
        })
    }
}
