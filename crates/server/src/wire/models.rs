//! `/v1/models`.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct List<'a> {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Card<'a>>,
}

/// One model.
#[derive(Debug, Serialize)]
pub(crate) struct Card<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    /// Positions a sequence can reach.
    pub(crate) max_model_len: usize,
}
