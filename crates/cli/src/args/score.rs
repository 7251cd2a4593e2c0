//! `forerun score`.

use super::{DeviceArgs, EngineArgs, ModelArgs};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun score ~/models/qwen3.5 \"The cat sat on the mat.\" --tokens
  forerun score ~/models/qwen3.5 --file book.txt --ctx 4096
  forerun score ~/models/qwen3.5 --ids @ids.json --kv f32 --logits logits.safetensors --json";

/// Log-probabilities and perplexity of a text
///
/// The text is read from TEXT, `--text`, `--file`, `--ids` or stdin, without a chat template.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScoreArgs {
    /// Model folder, .safetensors or .gguf file, or OWNER/NAME in the hub's cache; the bundled model by default
    ///
    /// A single word that is none of these is the text.
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<String>,

    /// The text; `-` reads stdin
    #[arg(value_name = "TEXT", conflicts_with_all = ["text", "file", "ids"])]
    pub(crate) second: Option<String>,

    /// The text, where TEXT would be taken for an option
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["file", "ids"])]
    pub(crate) text: Option<String>,

    /// Read the text from a file
    #[arg(long, value_name = "FILE", conflicts_with = "ids")]
    pub(crate) file: Option<PathBuf>,

    /// Token ids instead of text: 1,2,3 or [1, 2, 3] or @FILE
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) ids: Option<String>,

    /// Write the logits of every position as safetensors: `logits` [tokens, vocabulary], F32
    #[arg(long, value_name = "FILE")]
    pub(crate) logits: Option<PathBuf>,

    /// List every token with its log-probability
    #[arg(long, conflicts_with = "json")]
    pub(crate) tokens: bool,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: token_ids, logprobs (natural logarithms, one per token; the first is null because
    /// nothing comes before it), perplexity, tokens, timings, model, device, memory.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
