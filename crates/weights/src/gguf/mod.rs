//! GGUF: one file, or a numbered set, with metadata, tensors and often a vocabulary.
//!
//! | module | does |
//! |---|---|
//! | `header` | the container, checked against the file before anything is believed |
//! | `metadata` | typed keys and values |
//! | `kind` | element types and their sizes |
//! | `blocks` | packed types to canonical matrices, without changing a decoded value |
//! | `set` | which files belong together |
//!
//! Versions 2 and 3, little-endian. What the keys mean is the model crate's business.

mod blocks;
mod cursor;
mod error;
mod header;
mod kind;
mod metadata;
pub(crate) mod set;

pub use blocks::parts;
pub use error::GgufError;
pub use header::{GgufHeader, GgufTensor, parse};
pub use kind::BlockType;
pub use metadata::Metadata;
