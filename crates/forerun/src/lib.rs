//! Run language models from Rust.
//!
//! ```
//! # fn main() -> Result<(), forerun::Error> {
//! use forerun::GenerationOptions;
//!
//! let model = forerun::Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
//! let options = GenerationOptions::new().max_tokens(20).seed(7);
//! for event in model.complete("Once upon a time", options)? {
//!     print!("{}", event?.text());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - [`Model`]: a checkpoint on a device; [`Options`] size it
//! - [`Model::complete`]: a text, token ids or [`Messages`] to an [`AnswerStream`] of events, or to an [`Answer`]
//! - [`Chat`]: messages that are remembered
//! - [`Batch`]: several requests at once
//! - [`GenerationOptions`]: sampling, stop strings, length, constraints ([`GrammarSource`]), log-probabilities, drafts
//! - [`Finish`]: why an answer ended, its times, what drafting and the prefix cache did for it
//! - [`Scores`]: log-probabilities of a given text
//! - [`Embedding`]: hidden states of a text, pooled to one vector
//!
//! A stream is read like any iterator. There is no thread behind it: whoever reads one steps the engine, for all
//! answers that are open. Drafts, batches, chunks and caches change the time of an answer and never its tokens.
//!
//! The command line and the server are built on the same parts: [`ModelFiles`] opens and loads, [`TextProcessor`] makes
//! a [`Generation`] of a prompt and its options, [`AnswerText`] makes text and an [`Ending`] of the engine's events.
#![forbid(unsafe_code)]

mod answer_text;
mod at_least;
mod batch;
mod cancel;
mod chat;
mod driver;
mod embedding;
mod error;
mod files;
mod fit;
mod generation;
pub mod gguf_text;
mod messages;
mod model;
mod model_text;
mod options;
mod processor;
mod sampling;
mod score;
mod stream;

pub use answer_text::{AnswerText, Ending};
pub use batch::Batch;
pub use cancel::CancelToken;
pub use chat::{Chat, Reply};
pub use embedding::{Embedding, PooledRows, Pooling};
pub use error::{Error, TemplateError};
pub use files::ModelFiles;
pub use fit::{MemoryNeed, free_host_memory};
pub use forerun_devices::{DeviceError, DeviceName, DeviceOptions};
pub use generation::{Generation, GenerationOptions};
pub use messages::{Messages, PromptInput, Reasoning};
pub use model::Model;
pub use model_text::ModelText;
pub use options::{Drafting, MtpUse, Options};
pub use processor::{EncodedPrompt, RenderedChat, TextParts, TextProcessor};
pub use sampling::{PromptKind, SamplingOverrides, SamplingSource};
pub use score::Scores;
pub use stream::{Answer, AnswerStream, Finish, Progress, StreamEvent, TokenEvent};

pub use forerun_base::{DType, Token};
pub use forerun_engine::{
    CacheReport, Depth, DraftVocabulary, Receipt, RejectError, Sampling, TokenLogprobs,
};
pub use forerun_grammar::{GrammarError, GrammarSource};
pub use forerun_model::RopeScale;
pub use forerun_text::TextError;
