//! What can be typed. Help texts live here and nothing else does.

mod bench;
mod device;
mod doctor;
mod engine;
mod fetch;
mod form;
mod inspect;
mod kept;
mod model;
mod pull;
mod quantize;
mod run;
mod sampling;
mod score;
mod serve;
mod shell;
mod speculation;
mod synth;
mod tokenize;
mod verify;

pub(crate) use bench::BenchArgs;
pub(crate) use device::DeviceArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use engine::{EngineArgs, at_least_one};
pub(crate) use fetch::FetchArgs;
pub(crate) use form::FormArgs;
pub(crate) use inspect::InspectArgs;
pub(crate) use kept::{ListArgs, RemoveArgs};
pub(crate) use model::ModelArgs;
pub(crate) use pull::PullArgs;
pub(crate) use quantize::QuantizeArgs;
pub(crate) use run::{ReasoningView, RunArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use score::ScoreArgs;
pub(crate) use serve::{LogForm, LogLevel, ServeArgs};
pub(crate) use shell::{CompletionsArgs, ManArgs};
pub(crate) use speculation::{DraftVocabularyArgs, SpeculationArgs};
pub(crate) use synth::{SynthArgs, SynthShapeArgs};
pub(crate) use tokenize::TokenizeArgs;
pub(crate) use verify::VerifyArgs;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  forerun                                   tell a story with the bundled model
  forerun run                               chat with the bundled model
  forerun run ~/models/qwen3.5 \"Hello\"      one answer
  forerun serve ~/models/qwen3.5            answer the OpenAI and Anthropic APIs
  forerun run Qwen/Qwen3.5-0.8B \"Hello\"    a model of the hub, fetched where it is not here
  forerun pull Qwen/Qwen3.5-0.8B            fetch a model only; `list` and `rm` show and remove what was fetched
  forerun score ~/models/qwen3.5 --file a.txt
  forerun inspect ~/models/qwen3.5 --ctx 32768
  forerun bench ~/models/qwen3.5            measure what drafting gains
  forerun verify ~/models/qwen3.5           prove that drafting changes nothing
  forerun quantize ~/models/qwen3.5 ~/models/qwen3.5-4bit --bits 4
  forerun synth --like qwen3.5-9b out       random weights in a published shape, to measure
  forerun doctor                            what this machine has, and whether it computes correctly

Exit status: 0 done, 1 error, 2 wrong usage, 130 cancelled.";

/// Run language models on this machine.
///
/// Without a command, the bundled model tells a story.
#[derive(Debug, Parser)]
#[command(name = "forerun", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<RunArgs>),
    Serve(Box<ServeArgs>),
    Score(ScoreArgs),
    Inspect(InspectArgs),
    Bench(Box<BenchArgs>),
    Verify(VerifyArgs),
    Quantize(QuantizeArgs),
    Synth(SynthArgs),
    Doctor(DoctorArgs),
    Pull(PullArgs),
    List(ListArgs),
    #[command(name = "rm")]
    Remove(RemoveArgs),
    Tokenize(TokenizeArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// What was typed; where that has no meaning, the program ends here and says why.
pub(crate) fn typed() -> Cli {
    parse(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// The meaning of words, the first of which is the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words).map_err(without_false_tip)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Every command with its options. A negative number is a value, of which the option says what is wrong with it; it is
/// never taken for an option of that name.
pub(crate) fn command() -> clap::Command {
    let takes_values = |arg: &Arg| arg.get_action().takes_values();
    let signed = |arg: Arg| if takes_values(&arg) { arg.allow_negative_numbers(true) } else { arg };
    Cli::command().mut_subcommands(|command| command.mut_args(signed))
}

/// An unknown option without the advice to pass it as a value: nearly always it is misspelt.
fn without_false_tip(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    error
}
