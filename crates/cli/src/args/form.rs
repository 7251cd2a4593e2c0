//! What an answer must look like.

use clap::Args;
use std::path::PathBuf;

/// At most one of them can be given.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Form of the answer (one of these)")]
#[group(multiple = false)]
pub(crate) struct FormArgs {
    /// JSON that this schema describes: a file, or the schema itself, which begins with `{`
    #[arg(long, value_name = "FILE|TEXT")]
    pub(crate) json_schema: Option<String>,

    /// A text that this expression matches as a whole
    #[arg(long, value_name = "RE", allow_hyphen_values = true)]
    pub(crate) regex: Option<String>,

    /// A text of the Lark grammar in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) grammar: Option<PathBuf>,

    /// One of these texts; repeat it for each of them
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) choice: Vec<String>,
}
