//! `/v1/completions`.

use super::logprobs::{PromptLogprobs, TextLogprobs};
use super::receipt::{CompletionUsage, ReceiptTimings};
use forerun::Token;
use serde::Serialize;

/// A whole answer, or part of a streamed one: both have the same form.
#[derive(Debug, Serialize)]
pub(crate) struct TextCompletion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<TextChoice>,
    /// In a stream absent unless requested, then null in all parts but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<CompletionUsage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<ReceiptTimings>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct TextChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<Token>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<Token>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}
