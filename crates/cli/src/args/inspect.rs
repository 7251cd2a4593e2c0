//! `forerun inspect`.

use super::engine::at_least_one;
use super::{EngineArgs, ModelArgs, SpeculationArgs};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun inspect ~/models/qwen3.5
  forerun inspect ~/models/qwen3.5 --ctx 32768 --batch 8 --kv bf16
  forerun inspect ~/models/qwen3.5 --json";

/// What a model is made of and what it would need
///
/// Reads headers and configuration only; no weights are loaded.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Model folder, .safetensors or .gguf file, or OWNER/NAME in the hub's cache [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// Sequences at a time in the memory plan
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub(crate) batch: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}
