//! `forerun tokenize`.

use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun tokenize ~/models/qwen3.5 \"Hello, world\"
  forerun tokenize ~/models/gemma-3.gguf --file book.txt --ids-only > ids.txt
  forerun tokenize ~/models/qwen3.5 --decode 9707,11,1879 --json";

/// Text to token ids, or ids to text
///
/// Reads the tokenizer only; no weights are loaded. The text is read from TEXT, `--file` or stdin, without a
/// chat template.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenizeArgs {
    /// Model folder, .safetensors or .gguf file, or OWNER/NAME in the hub's cache; the bundled model by default
    ///
    /// A single word that is none of these is the text.
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<String>,

    /// The text; `-` reads stdin
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "decode"])]
    pub(crate) second: Option<String>,

    /// Read the text from a file
    #[arg(long, value_name = "FILE", conflicts_with = "decode")]
    pub(crate) file: Option<PathBuf>,

    /// The other way round: 1,2,3 or [1, 2, 3] or @FILE to text
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) decode: Option<String>,

    /// Leave out the tokens that the model puts around every text
    #[arg(long, conflicts_with = "decode")]
    pub(crate) no_special: bool,

    /// One id a line and nothing else
    #[arg(long, conflicts_with_all = ["decode", "json"])]
    pub(crate) ids_only: bool,

    /// Print one JSON object: tokens, token_ids, text
    #[arg(long)]
    pub(crate) json: bool,
}
