//! OpenAI's endpoints.

pub(crate) mod chat;
mod chat_stream;
pub(crate) mod completions;
mod generation;
mod messages;
mod tools;

pub(crate) use messages::messages;
