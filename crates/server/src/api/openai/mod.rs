//! OpenAI's endpoints.

pub(crate) mod chat;
mod chat_stream;
pub(crate) mod completions;
mod generation;
mod messages;

pub(crate) use messages::messages;
