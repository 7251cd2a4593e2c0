//! Options that choose tokens.

use clap::Args;
use forerun::{SamplingOverrides, Token};

#[derive(Args, Clone, Debug)]
#[command(
    next_help_heading = "Sampling (defaults: the model's files, or for a chat T 0.8, K 40, top P 0.95, min P 0.05)"
)]
pub(crate) struct SamplingArgs {
    /// Randomness: 0 always takes the most likely token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,

    /// Keep the most likely tokens that together reach probability P; 1 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Keep tokens at least P times as likely as the most likely one; 0 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Above 1 makes tokens of prompt and answer less likely; 1 does nothing
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,

    /// Subtracted from the logit of every token already in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,

    /// Subtracted from a token's logit once per time it is in the answer
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,

    /// Add BIAS to the logit of token id TOKEN; may be repeated
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = logit_bias)]
    pub(crate) logit_bias: Vec<(Token, f32)>,

    /// Same seed, same text. By default a new one each run; `--json` reports it
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// The parameters that were typed.
    pub(crate) fn overrides(&self) -> SamplingOverrides {
        SamplingOverrides {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

fn logit_bias(text: &str) -> Result<(Token, f32), String> {
    let parts = text.split_once('=');
    let parsed = parts.and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "expected TOKEN=BIAS such as 50=-100, TOKEN a token id".to_owned())
}
