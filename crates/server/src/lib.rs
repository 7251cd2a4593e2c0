//! HTTP in front of the engine: what people's clients speak on one side, tokens on the other.
//!
//! ```text
//!   wire      what bodies look like, serde only        api     one file per endpoint
//!   chat      a question, whatever API asked it        answer  its answer, whatever API tells it
//!   models    which are served, and which are loaded   service the thread that owns an engine
//!   server    listening, limits, shutdown
//! ```
//!
//! A handler turns a wire type into a `chat::ChatRequest`, asks, and writes `answer::AnswerEvent`s in its
//! API's form. Nothing a client sends is trusted: sizes, depths, times and counts are bounded, and what
//! is not supported is refused by name.
#![forbid(unsafe_code)]

mod answer;
mod api;
mod app;
mod auth;
mod cache_traces;
mod calls;
mod chat;
mod error;
mod ids;
mod marks;
mod metrics;
mod model;
mod models;
mod origins;
mod page;
mod prepare;
mod responses_store;
mod server;
mod service;
mod settings;
mod wire;

pub use model::{Facts, ServedModel};
pub use models::{LoadError, LoadModel, LoadedModel, ModelDetails, ModelEntry, RoomLeft};
pub use server::{Handle, Server, StartError};
pub use settings::Settings;
