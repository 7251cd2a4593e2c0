//! `forerun run`.

use super::engine::at_least_one;
use super::{
    DeviceArgs, EngineArgs, FetchArgs, FormArgs, ModelArgs, SamplingArgs, SpeculationArgs,
};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun run                                      chat with the bundled model
  forerun run \"Book a table for two\"               one answer of the bundled model
  forerun run ~/models/qwen3.5 \"Hello\" --json      one answer as JSON
  echo \"Once upon a time\" | forerun run --raw      continue text from stdin
  forerun run ~/models/qwen3.5 --ids 1,2,3 --temperature 0 --max-tokens 32
  forerun run ~/models/qwen3.5 \"Why?\" --no-think --system \"Be brief.\"
  forerun run \"Was it good?\" --choice yes --choice no
  forerun run \"Book a table\" --json-schema '{\"properties\": {\"seats\": {\"type\": \"integer\"}}}'

With one argument: an existing path, OWNER/NAME or a short name (llama3.2-1b) is the model, anything else the prompt.
OWNER/NAME is a model of the hub; where it is not here it is fetched, at a terminal after a question.
In the chat, /help lists the commands and Ctrl-C stops an answer.
A model without a chat template continues the prompt as it stands.";

/// Answer a prompt, or chat
///
/// With a prompt (an argument, `--prompt`, `--ids`, or stdin that is not a terminal) it prints one
/// answer; without one it opens a chat.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Model folder, .safetensors or .gguf file, or a model of the hub: OWNER/NAME[:FILE]; the bundled model by default
    #[arg(value_name = "MODEL")]
    pub(crate) first: Option<String>,

    /// What to answer; `-` reads stdin (one newline at its end is dropped)
    #[arg(value_name = "PROMPT")]
    pub(crate) second: Option<String>,

    /// The model, where MODEL would be ambiguous
    #[arg(long = "model", value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,

    /// The prompt, where PROMPT would be ambiguous
    #[arg(long = "prompt", value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with = "ids")]
    pub(crate) prompt: Option<String>,

    /// Token ids instead of text: 1,2,3 or [1, 2, 3] or @FILE
    #[arg(long, value_name = "IDS|@FILE")]
    pub(crate) ids: Option<String>,

    /// Take the prompt as it stands, without the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,

    /// Take special tokens that messages spell, such as <|im_end|>, for special tokens instead of text
    #[arg(long, conflicts_with_all = ["raw", "ids"])]
    pub(crate) parse_special: bool,

    /// System message for the chat template
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "ids"])]
    pub(crate) system: Option<String>,

    /// A variable for the chat template; VALUE is JSON or else a string; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = template_arg)]
    #[arg(conflicts_with_all = ["raw", "ids"])]
    pub(crate) template_arg: Vec<(String, serde_json::Value)>,

    /// Ask for reasoning: --template-arg enable_thinking=true
    #[arg(long, conflicts_with_all = ["raw", "ids", "no_think"])]
    pub(crate) think: bool,

    /// Ask for no reasoning: --template-arg enable_thinking=false
    #[arg(long, conflicts_with_all = ["raw", "ids"])]
    pub(crate) no_think: bool,

    /// Longest answer in tokens [default: the model's max_new_tokens, else what the context leaves; 512 of raw text]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) max_tokens: Option<usize>,

    /// End the answer where this text would appear; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,

    /// Go on after the model's end tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// What is shown of the model's reasoning [default: show at a terminal, hide elsewhere]
    ///
    /// Where it cannot be dimmed it stands between lines of <think> and </think>.
    #[arg(long, value_name = "HOW", value_enum)]
    pub(crate) reasoning: Option<ReasoningView>,

    /// Keep nothing of what is typed in the chat
    ///
    /// Otherwise it is kept for later chats in forerun/history of the user's state folder (XDG_STATE_HOME, or
    /// ~/.local/state), which nobody else may read.
    #[arg(long)]
    pub(crate) no_history: bool,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: text, reasoning (null if none), token_ids, finish_reason (stop, length, cancelled), stop_string,
    /// prompt_tokens, completion_tokens, timings, speculation, model, device, seed, sampling, sampling_source (where
    /// what was not typed comes from: model, default, greedy), memory. An end token is in token_ids but not in text.
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) model_options: ModelArgs,

    #[command(flatten)]
    pub(crate) form: FormArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// What is shown of reasoning, which is apart from the answer always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningView {
    /// Before the answer, dimmed
    Show,
    /// One line: how much there was
    Fold,
    /// Nothing
    Hide,
}

fn template_arg(text: &str) -> Result<(String, serde_json::Value), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            Ok((key.to_owned(), value))
        }
        _ => Err("expected KEY=VALUE such as enable_thinking=false".to_owned()),
    }
}
