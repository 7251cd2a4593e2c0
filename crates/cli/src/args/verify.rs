//! `forerun verify`.

use super::engine::{Kv, at_least_one};
use super::{DeviceArgs, DraftVocabularyArgs, ModelArgs, SynthShapeArgs};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun verify                             prove it on the bundled model
  forerun verify ~/models/qwen3.5 --quick    fewer arms, for a large model
  forerun verify ~/models/qwen3.5 --tokens 128 --seed 7 --kv bf16
  forerun verify --draft-vocabulary 1000     with drafts of 1000 tokens alone
  forerun verify synth:qwen3.5-9b --layers 8 --quick
  forerun verify --json > proof.json

Exit status: 0 everything identical, 1 a difference or an error, 2 wrong usage, 130 cancelled.";

/// Prove on this machine that speed changes nothing
///
/// A set of requests (greedy, seeded sampling, penalties, early stops) is first answered one by
/// one without drafts. Then the same is done again in every other way: with drafts by the MTP
/// head at each depth, with n-gram drafts, in pieces of other sizes, all requests in
/// one batch, continued from a kept state, and as a text to score. Token ids and the bits of
/// every row of logits must be the same each time.
///
/// Memory holds the weights once at a time, but they are loaded once for each setting of the
/// engine: 8 times, with `--quick` 5 times; one less for a model without MTP head.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VerifyArgs {
    /// Model folder, .safetensors or .gguf file, OWNER/NAME in the hub's cache, or synth:NAME for random weights in a
    /// published shape (see `forerun synth --help`) [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// Longest answer of a request
    #[arg(long, value_name = "N", default_value = "48", value_parser = at_least_one)]
    pub(crate) tokens: usize,

    /// Fewer arms: depths 1, 3 and 8, one small chunk
    #[arg(long)]
    pub(crate) quick: bool,

    /// Makes other prompts and keys the noise of sampling
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: identical, arms (arm, prefill_chunk, verdict, reason, requests, tokens, logits_rows,
    /// drafted, accepted, difference, seconds), requests, model, device, settings, seconds.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) synth: SynthShapeArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) vocabulary: DraftVocabularyArgs,

    /// Element type of the key/value cache
    #[arg(long, value_enum, default_value_t = Kv::F16, help_heading = "Engine")]
    pub(crate) kv: Kv,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
