//! `forerun completions` and `forerun man`: what packages install beside the program, made of the same definitions as
//! `--help`.

use crate::args::{self, CompletionsArgs, ManArgs};
use crate::exit::Outcome;
use crate::terminal;
use anyhow::Context;

const PROGRAM: &str = "forerun";

pub(crate) fn completions(args: CompletionsArgs) -> anyhow::Result<Outcome> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), PROGRAM, &mut text);
    terminal::show(&String::from_utf8(text).context("completions are text")?)?;
    Ok(Outcome::Done)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<Outcome> {
    let named = || args.folder.display().to_string();
    std::fs::create_dir_all(&args.folder).with_context(named)?;
    // `forerun help COMMAND` has no page of its own: it shows that command's.
    let command = args::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.folder).with_context(named)?;
    Ok(Outcome::Done)
}
