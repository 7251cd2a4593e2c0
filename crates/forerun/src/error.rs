//! Errors by type: what to change is in the variant, what happened in its text.

use crate::MemoryNeed;
use forerun_devices::DeviceError;
use forerun_engine::{EngineError, RejectError};
use forerun_grammar::GrammarError;
use forerun_model::ModelError;
use forerun_report::bytes_text;
use forerun_text::TextError;

/// Why a model cannot be opened, or a request has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint cannot be read, or describes a network that is not supported.
    #[error("{}", named(path, cause))]
    Open {
        /// The model as it was given.
        path: String,
        /// What is wrong with it.
        cause: ModelError,
    },
    /// The drafter does not fit the model.
    #[error("drafter {}", named(path, cause))]
    Drafter {
        /// The drafter as it was given.
        path: String,
        /// What is wrong with it.
        cause: ModelError,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is less free memory than the model and its caches need.
    #[error(
        "{} are needed and {} are free: {} for weights, {} for caches, states and work at a context of {context}, {} \
         to spare; {}",
        bytes_text(need.total()), bytes_text(*free), bytes_text(need.weights), bytes_text(need.planned),
        bytes_text(need.spare), what_fits(*longest)
    )]
    Memory {
        /// Free bytes.
        free: u64,
        /// What the engine takes.
        need: MemoryNeed,
        /// Positions of the context that is for.
        context: usize,
        /// The longest context that fits, if one does.
        longest: Option<usize>,
    },
    /// The device makes no buffer as large as one of the caches.
    #[error(
        "`{label}` takes a buffer of {} at a context of {context}, and this device makes none beyond {}; a smaller context, \
         fewer sequences or an 8-bit KV cache needs less",
        bytes_text(*bytes), bytes_text(*most)
    )]
    Buffer {
        /// What it is for.
        label: String,
        /// Bytes of it.
        bytes: u64,
        /// Bytes of the largest that the device makes.
        most: u64,
        /// Positions of the context those bytes are for.
        context: usize,
    },
    /// The engine cannot be built, or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The memory of caches, states and scratch cannot be allocated.
    #[error("cannot prepare the engine; a smaller context needs less memory: {0}")]
    Prepare(EngineError),
    /// The model has no tokenizer, so that only token ids go in and out.
    #[error("{0}; a prompt of token ids needs none (`--ids` on the command line)")]
    NoTokenizer(String),
    /// The model has no chat template.
    #[error("this model has no chat template; continue text instead of sending messages")]
    NoTemplate,
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A text cannot be encoded or rendered.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A constraint does not compile.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The vocabulary cannot be used for constraints.
    #[error("{0}")]
    Vocabulary(String),
    /// A request that can never run: an empty prompt, one that is too long, a sampling parameter out of range.
    #[error(transparent)]
    Reject(#[from] RejectError),
    /// A least length and a constraint, which alone says when an answer may end.
    #[error(
        "a least length goes with no grammar, no tool that must be called and no budget of reasoning"
    )]
    MinTokens,
    /// The constraint of an answer cannot go on; the same request ends the same way.
    #[error("the answer cannot go on: {0}")]
    Refused(String),
    /// The engine or its device failed under an answer.
    #[error("the answer failed: {0}")]
    Failed(String),
    /// Hidden states that are not numbers, or all zero.
    #[error(
        "the hidden states of the text are not finite or all zero: a weight is broken or too large"
    )]
    Hidden,
    /// Logits that are not numbers.
    #[error("the logits at position {position} are not finite: a weight is broken or too large")]
    NotFinite {
        /// The first such position.
        position: usize,
    },
}

/// A chat template that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {cause}")]
pub struct TemplateError {
    /// The folder or file it is in.
    pub path: String,
    /// What is wrong with it.
    pub cause: String,
}

/// What is wrong with a model, under the name it was given by; said once where the cause begins with that name itself.
fn named(given: &str, cause: &ModelError) -> String {
    let text = cause.to_string();
    match text.split_once(": ") {
        Some((place, rest)) if given.split(' ').next_back() == Some(place) => {
            format!("{given}: {rest}")
        }
        _ => format!("{given}: {text}"),
    }
}

fn what_fits(longest: Option<usize>) -> String {
    match longest {
        Some(context) => format!("the longest context that fits is {context}"),
        None => {
            "no context is short enough; take a smaller model, or one with fewer bits".to_owned()
        }
    }
}
