//! `/tokenize` and `/detokenize`.

use forerun_base::Token;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Tokenized {
    pub(crate) count: usize,
    pub(crate) max_model_len: usize,
    pub(crate) tokens: Vec<Token>,
    /// Their spelling, where requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_strs: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Detokenized {
    pub(crate) prompt: String,
}
