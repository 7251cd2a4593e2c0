//! What bodies look like. Serde types only, one file per API.

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod receipt;
pub(crate) mod responses;
pub(crate) mod tokens;
