//! `forerun synth`, and what `bench` says of models that are drawn.

use super::engine::at_least_one;
use clap::Args;
use forerun_synth::{PublishedShape, SynthOptions, WeightForm, published};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun synth --like qwen3.5-9b --dtype 4bit ~/models/random-9b
  forerun synth --like qwen3.5-9b --dtype 4bit --layers 4 --vocabulary 8192 out
  forerun synth --like qwen3.6-35b-a3b --narrow 8 --layers 4 --vocabulary 8192 out
  forerun bench synth:qwen3.5-9b --dtype fp8      the same without a file

Shapes:
  qwen3.5-9b, qwen3.6-27b, qwen3.6-35b-a3b, qwen3.5-122b-a10b, gemma4-31b, gemma4-26b-a4b

Exit status: 0 done, 1 error, 2 wrong usage, 130 cancelled.";

/// How a drawn model differs from the published one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Random weights")]
pub(crate) struct SynthShapeArgs {
    /// How weights are stored: bf16, fp8 (blocks of 128) or 4bit (groups of 64) [default: bf16]
    #[arg(long, value_name = "FORM")]
    pub(crate) dtype: Option<WeightForm>,

    /// Only the first N layers
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) layers: Option<usize>,

    /// Divide widths and counts of heads by N; widths stay multiples of 64
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) narrow: Option<usize>,

    /// Only the first N tokens
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) vocabulary: Option<usize>,
}

impl SynthShapeArgs {
    /// The first option that was typed, for a model that is not drawn.
    pub(crate) fn typed(&self) -> Option<&'static str> {
        [
            self.dtype.map(|_| "--dtype"),
            self.layers.map(|_| "--layers"),
            self.narrow.map(|_| "--narrow"),
            self.vocabulary.map(|_| "--vocabulary"),
        ]
        .into_iter()
        .flatten()
        .next()
    }

    /// What to draw.
    pub(crate) fn options(&self, like: &'static PublishedShape, seed: u64) -> SynthOptions {
        SynthOptions {
            like,
            form: self.dtype.unwrap_or(WeightForm::Bf16),
            layers: self.layers,
            narrow: self.narrow.unwrap_or(1),
            vocabulary: self.vocabulary,
            seed,
        }
    }
}

/// Write a model of random weights in the shape of a published one
///
/// For measurements where no checkpoint of that size is at hand: what it says means nothing. The folder has a config,
/// weights in several files and the tokenizer of the bundled model, and every command takes it. Any number is a
/// function of the seed, the tensor's name and its place, so the same command writes the same bytes with any number of
/// cores.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SynthArgs {
    /// Folder to write; it must be empty or absent
    #[arg(value_name = "OUT")]
    pub(crate) target: PathBuf,

    /// The published model whose shape it has
    #[arg(long, value_name = "NAME", value_parser = shape)]
    pub(crate) like: &'static PublishedShape,

    #[command(flatten)]
    pub(crate) shape: SynthShapeArgs,

    /// Keys all numbers
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) seed: u64,

    /// Folder to copy the tokenizer, the chat template and the sampling settings from [default: the bundled model]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tokenizer: Option<PathBuf>,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: like, dtype, random (always true), parameters, bytes, files, assumed (fields of the published shape that
    /// are not certain), config.
    #[arg(long)]
    pub(crate) json: bool,
}

fn shape(name: &str) -> Result<&'static PublishedShape, String> {
    published(name).map_err(|error| error.to_string())
}
