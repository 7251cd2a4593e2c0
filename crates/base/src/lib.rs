//! Words every crate shares: token and sequence ids, element types, and the
//! one canonical layout of a weight matrix ([`Matrix`]) together with its plain decode. [`MatrixParts`] is a matrix
//! whose rows lie in several places or are made when they are asked for.
//!
//! This crate depends on nothing and knows no file format and no device. Files that somebody else put there are opened
//! through [`open_regular`].
#![forbid(unsafe_code)]

mod bytes;
mod dtype;
mod file;
mod float;
mod ids;
mod json;
mod matrix;
mod parallel;

pub use bytes::{Bytes, BytesOwner};
pub use dtype::DType;
pub use file::{open_regular, read_regular, read_regular_text};
pub use float::{bf16_to_f32, e4m3_to_f32, e5m2_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use ids::{LeaseId, SeqId, Token};
pub use json::{null_for_non_finite, quoted_non_finite};
pub use matrix::{
    Codes, FiniteWatch, Format, Matrix, MatrixError, MatrixParts, Nesting, RowSource, SUPERBLOCK,
    ScaleKind, ScaleType,
};
pub use parallel::{find_first, on_threads, threads_for};
