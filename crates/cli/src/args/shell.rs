//! `forerun completions` and `forerun man`.

use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

const COMPLETION_EXAMPLES: &str = "\
Examples:
  forerun completions bash > ~/.local/share/bash-completion/completions/forerun
  forerun completions zsh > ~/.zfunc/_forerun                     (a folder of $fpath)
  forerun completions fish > ~/.config/fish/completions/forerun.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  forerun man ~/.local/share/man/man1
  man forerun-run";

/// Print what lets a shell complete commands and options
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: Shell,
}

/// Write manual pages: forerun.1, and one for each command
#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Folder to write to; it is made where it is not there
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
