//! `forerun`: fetch, run, serve, score, inspect, verify, benchmark and quantise language models from the command line,
//! and examine the machine they run on.
//!
//! What was typed ([`args`]) becomes a command; each command has a folder or file of its own. This is the only crate
//! that talks to a person.
#![forbid(unsafe_code)]

mod answer;
mod args;
mod bench;
mod bundled;
mod demo;
mod device;
mod doctor;
mod exit;
mod fetch;
mod generation;
mod given;
mod hub_model;
mod ids;
mod inspect;
mod interrupt;
mod kept;
mod load;
mod mtp_state;
mod pull;
mod quantize;
mod receipt;
mod report;
mod run;
mod score;
mod screen;
mod serve;
mod shell;
mod short_names;
mod sizing;
mod stats;
mod stdin;
mod synth;
mod terminal;
mod tokenize;
mod verify;
mod wrap;

use args::{Cli, Command};
use exit::Outcome;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit::code(dispatch(args::typed()))
}

fn dispatch(cli: Cli) -> anyhow::Result<Outcome> {
    // A server drains on Ctrl-C, and sees to that itself.
    if !matches!(cli.command, Some(Command::Serve(_))) {
        interrupt::install()?;
    }
    match cli.command {
        None => demo::tell_a_story(),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Serve(args)) => serve::serve(*args),
        Some(Command::Score(args)) => score::score(&args),
        Some(Command::Inspect(args)) => inspect::inspect(&args),
        Some(Command::Bench(args)) => bench::bench(&args),
        Some(Command::Verify(args)) => verify::verify(&args),
        Some(Command::Quantize(args)) => quantize::quantize(&args),
        Some(Command::Synth(args)) => synth::synth(&args),
        Some(Command::Doctor(args)) => doctor::doctor(&args),
        Some(Command::Pull(args)) => pull::pull(&args),
        Some(Command::List(args)) => kept::list(&args),
        Some(Command::Remove(args)) => kept::remove(&args),
        Some(Command::Tokenize(args)) => tokenize::tokenize(&args),
        Some(Command::Completions(args)) => shell::completions(args),
        Some(Command::Man(args)) => shell::man(&args),
    }
}
