//! Writes a smaller copy of a checkpoint in MLX's layout.
//!
//! What the new checkpoint consists of is a `plan`, how precise each part becomes a `policy`; both are settled by
//! [`Quantizer::prepare`], before anything is written. Then `layout` cuts the parts into files and `write` fills one
//! after another, in a `folder` that remembers how far it came.
//!
//! ```no_run
//! use forerun_model::Blueprint;
//! use forerun_quantize::{QuantizeOptions, Quantizer, WriteControl};
//! use forerun_weights::config::{QuantMode, Scheme};
//! use std::path::Path;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Blueprint::open(Path::new("qwen3.5"))?;
//! let options = QuantizeOptions::new(Scheme { mode: QuantMode::Affine, bits: 4, group: 64 });
//! let quantizer = Quantizer::prepare(&source, Path::new("qwen3.5-4bit"), &options)?;
//! let mut watch = WriteControl { progress: &mut |_bytes| {}, cancelled: &|| false };
//! let report = quantizer.write(&mut watch)?;
//! # let _ = report;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod error;
mod files;
mod folder;
mod keep;
mod layout;
mod plan;
mod policy;
mod quantizer;
mod report;
mod text;
mod write;

pub use error::QuantizeError;
pub use keep::Keep;
pub use quantizer::Quantizer;
pub use report::{Modules, PerplexityChange, QuantizeReport};

use forerun_weights::config::Scheme;

/// How to quantise.
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// QuantMode, bits and group of everything without a rule of its own.
    pub base: Scheme,
    /// Exceptions; the last one that matches counts.
    pub keep: Vec<Keep>,
    /// Largest weight file, unless one tensor alone is larger.
    pub shard_bytes: usize,
    /// Threads that encode.
    pub threads: usize,
    /// Writes into a folder that is not empty, and replaces a model in it.
    pub force: bool,
}

impl QuantizeOptions {
    /// No exceptions, files of 5 GB, a thread for each core.
    pub fn new(base: Scheme) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { base, keep: Vec::new(), shard_bytes: 5_000_000_000, threads, force: false }
    }
}

/// How the caller follows what is being written, and ends it.
pub struct WriteControl<'a> {
    /// Told how many bytes have been written since the last call.
    pub progress: &'a mut dyn FnMut(u64),
    /// Asked between two pieces of a matrix; what is complete by then is kept for the next run.
    pub cancelled: &'a dyn Fn() -> bool,
}
