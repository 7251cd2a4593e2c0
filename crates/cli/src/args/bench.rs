//! `forerun bench`.

use super::engine::at_least_one;
use super::{DeviceArgs, DraftVocabularyArgs, EngineArgs, ModelArgs, SamplingArgs, SynthShapeArgs};
use clap::Args;
use forerun_bench::BenchArm;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun bench                                      the bundled model, every depth
  forerun bench ~/models/qwen3.5 --arms plain,3,auto --tokens 256 --reps 5
  forerun bench ~/models/qwen3.5 --contexts 0,1024,4096 --batch 1,4 --csv speed.csv
  forerun bench --temperature 0.8 --seed 7           acceptance when sampling
  forerun bench --min-gain 0.97                      fails if auto loses more than 3 %
  forerun bench --file story.txt --ids 5,6,7 --json
  forerun bench --arms plain,3,auto --svg speed.svg  a chart of the arms
  forerun bench --roofline                           each operation against the machine's best
  forerun bench --roofline --batch 16                the same, and of 16 sequences decoded together
  forerun bench ~/models/qwen3.5 --roofline --read 2048 --tokens 64 --csv roofline.csv
  forerun bench --long 131072 --tokens 32            a prompt of 128K tokens, and 32 after it
  forerun bench synth:qwen3.5-9b --dtype fp8 --accept 0.86,0.74,0.6
                                                     random weights in a published shape, and so many drafts taken

Arms:
  plain            no drafts: the baseline of every gain
  N                N drafts a round, as `run --draft N`
  auto             as many drafts as pay, as `run` does
  mtp, mtp:N       the same by the MTP head alone
  ngram, ngram:N   the same from the text alone

Exit status: 0 done, 1 error, other tokens than plain or less than --min-gain, 2 wrong usage.";

/// What makes no sense where arms are not compared.
const ONLY_COMPARING: [&str; 16] = [
    "prompt",
    "ids",
    "file",
    "arms",
    "contexts",
    "min_gain",
    "drafter",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
];

/// Measure speed with and without speculative decoding, side by side
///
/// Every repetition runs all arms on the same prompt one after the other, in an order that rotates,
/// so that a busy machine hurts all alike. A gain is the median over repetitions of an arm's
/// speed over the speed of plain in the same repetition. All arms must give the same tokens.
///
/// Answers are greedy unless --temperature is given, whatever the model's files ask for; the seed is
/// 1 unless --seed is given. They go on after end tokens, so that all arms do the same work.
///
/// Weights are loaded once, and once more for each further drafter that `mtp` and `ngram` arms ask for.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Model folder, .safetensors or .gguf file, OWNER/NAME in the hub's cache, or synth:NAME for random weights in a
    /// published shape (see `forerun synth --help`) [default: the bundled model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,

    /// A prompt, taken as it stands; may be repeated [default: five openings, one of random tokens]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,

    /// A prompt as token ids: 1,2,3 or [1, 2, 3] or @FILE; may be repeated
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) ids: Vec<String>,

    /// A prompt from a file; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Vec<PathBuf>,

    /// Length of each answer
    #[arg(long, value_name = "N", default_value = "128", value_parser = at_least_two)]
    pub(crate) tokens: usize,

    /// What to compare [default: plain,1,2,3,4,auto; without an MTP head plain,ngram:4,auto]
    #[arg(long, value_name = "ARM,..", value_delimiter = ',')]
    pub(crate) arms: Vec<BenchArm>,

    /// Repetitions; the spread is over these
    #[arg(long, value_name = "N", default_value = "3", value_parser = at_least_one)]
    pub(crate) reps: usize,

    /// Random tokens to put before each prompt
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', default_value = "0")]
    pub(crate) contexts: Vec<usize>,

    /// Answers at a time, all to the same prompt; when sampling each has a seed of its own
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = at_least_one)]
    pub(crate) batch: Vec<usize>,

    /// Lengths of random prompts to time the reading of [default: 512,1024 where they fit]
    #[arg(long, value_name = "TOKENS,..", value_delimiter = ',', value_parser = at_least_one)]
    pub(crate) read: Vec<usize>,

    /// Measure each operation against what this machine could do at best, instead of comparing arms
    ///
    /// First the machine: read bandwidth of all threads from memory, f32 multiply-adds, the time of a parallel job that
    /// does nothing. Then a random prompt (--read, default 512), a plain decode (--tokens) and steps of 1, 2, 4 and 8
    /// rows, all but one of them drafts; with --batch N a plain decode of N sequences together. Rates are taken
    /// undisturbed; shares of time come from further runs in which every operation is timed alone. Bytes are what has
    /// to move at least once, so an operation whose data stays in cache can exceed the bandwidth.
    #[arg(long, conflicts_with_all = ONLY_COMPARING)]
    pub(crate) roofline: bool,

    /// Read a random prompt of N tokens and decode --tokens after it, instead of comparing arms
    ///
    /// Shows the speed of each eighth of the prompt, resident memory against the memory plan, and the speed of
    /// decoding at the end against the bound by weights, keys and state. May go beyond the positions a model was
    /// made for: its text suffers from that, its speed does not.
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with_all = ONLY_COMPARING)]
    #[arg(conflicts_with_all = ["roofline", "read", "reps", "batch"])]
    pub(crate) long: Option<usize>,

    /// Fail unless the median gain of auto is at least X with every prompt, context and batch
    #[arg(long, value_name = "X")]
    pub(crate) min_gain: Option<f64>,

    /// Take a share of the drafts at each place of a round, whatever the model says of them
    ///
    /// For models of random weights, which accept none: 0.86,0.74,0.6 takes the first draft of 86 % of the rounds, the
    /// second of 74 %, the third of 60 % and no further one. No text is the model's then, so arms are not held to the
    /// same tokens; every output says `scripted acceptance`.
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["roofline", "long"])]
    pub(crate) accept: Vec<f32>,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: version, model, device, kv, tokens, reps, sampling, seed, acceptance (measured or scripted),
    /// scripted_acceptance (the shares of --accept), arms, reading, cells (one
    /// per prompt, context and batch, with its arms and the token ids all of them gave), worst
    /// (the lowest median gain of each arm), measurements. With --roofline: version, model, device, kv, machine,
    /// phases (prompt, decode, verify, batch, each with its operations), widths. With --long: version, model, device,
    /// kv, machine, prompt_tokens, pieces, decode, memory.
    #[arg(long)]
    pub(crate) json: bool,

    /// Write one line per measurement as CSV; `-` for stdout instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub(crate) csv: Option<String>,

    /// Draw decoding speed by arm as a bar chart (SVG)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["roofline", "long"])]
    pub(crate) svg: Option<PathBuf>,

    /// Draw a report of `--json` that was written before, instead of measuring
    #[arg(long, value_name = "FILE", requires = "svg")]
    pub(crate) from: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) synth: SynthShapeArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) vocabulary: DraftVocabularyArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// The first token belongs to the prompt, so a speed needs a second.
fn at_least_two(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&n| n > 1)
        .ok_or_else(|| "expected an integer of at least 2".to_owned())
}
