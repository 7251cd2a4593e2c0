//! `/v1/models`.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct List {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Card>,
}

/// One model.
#[derive(Debug, Serialize)]
pub(crate) struct Card {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// Positions a sequence can reach, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<usize>,
    /// Whether it is loaded.
    pub(crate) state: &'static str,
    /// Why it is not, where it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}
