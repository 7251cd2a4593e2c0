//! Bytes on disk -> named tensors -> canonical matrices.
//!
//! A [`Checkpoint`] is a folder with a `config.json` and safetensors files, or a GGUF file or
//! set of files. It maps the files, checks every header before anything is read, and hands out
//! tensors by their stored names or weights as [`forerun_base::Matrix`], whatever format they
//! are stored in:
//!
//! | stored as | recognised by | module |
//! |---|---|---|
//! | F32, F16, BF16 | the dtype | `read` |
//! | MLX affine, mxfp4, mxfp8, nvfp4 | `path.scales` | `read::mlx` |
//! | FP8 e4m3 with block, row or tensor scales | the dtype | `read::fp8` |
//! | blocks of ggml: Q4_0 to Q8_0, Q2_K to Q6_K, IQ4, MXFP4 | the type in a GGUF file | `gguf::blocks` |
//!
//! It knows no model: which names exist and what they mean is the model crate's business. So
//! the names of a GGUF file are replaced by a [`Translation`] that comes from there.
//! It refuses what it cannot read exactly, naming the file, the tensor, what was expected
//! and what was found.
#![deny(unsafe_code)]

mod checkpoint;
pub mod config;
mod error;
mod files;
pub mod gguf;
mod json;
#[expect(unsafe_code, reason = "mapping a file is unsafe by nature; nothing else lives there")]
mod mmap;
pub mod quantize;
mod read;
pub mod safetensors;
mod shards;
mod source;
mod storage;
mod tensor;
mod translation;

pub use checkpoint::{Checkpoint, CheckpointLayout, scaled_weight};
pub use error::WeightsError;
pub use files::WeightFile;
pub use shards::{is_mtp_tensor, parse_index};
pub use source::TensorSource;
pub use storage::{Info, Storage};
pub use tensor::Tensor;
pub use translation::{Renamed, Translation};
