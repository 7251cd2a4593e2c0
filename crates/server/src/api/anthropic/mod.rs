//! Anthropic's endpoints.

mod conversation;
pub(crate) mod count_tokens;
pub(crate) mod messages;
mod partial;
mod request;
mod stream;
