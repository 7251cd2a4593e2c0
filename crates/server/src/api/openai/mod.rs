//! OpenAI's endpoints.

pub(crate) mod chat;
mod chat_stream;
pub(crate) mod completions;
pub(super) mod generation;
mod messages;
pub(crate) mod responses;
pub(super) mod tools;

pub(crate) use messages::messages;
