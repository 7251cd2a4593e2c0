//! OpenAI's endpoints.

pub(crate) mod chat;
mod chat_stream;
pub(crate) mod completions;
mod echo;
pub(crate) mod embeddings;
mod extras;
pub(super) mod generation;
mod messages;
pub(crate) mod responses;
pub(super) mod tools;

pub(crate) use generation::check_stops;
pub(crate) use messages::messages;
pub(crate) use tools::{effort, tools};
