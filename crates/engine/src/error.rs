//! What can go wrong, by who has to act.

use forerun_backend::BackendError;
use forerun_base::SeqId;
use forerun_model::ModelError;

/// Why a request can never run. Waiting for room is not an error: see [`crate::Admission`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RejectError {
    /// Nothing to continue.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// No room for the prompt and one token.
    #[error(
        "prompt has {prompt} tokens; the context holds {context}, and the answer needs room too"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Positions in the context.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Tokens in the vocabulary.
        vocabulary: usize,
    },
    /// A sampling parameter out of range.
    #[error("{name} is {value}; expected {expected}")]
    Sampling {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The answer may not have a single token.
    #[error("max_tokens is 0; at least 1 is needed")]
    NoTokens,
    /// No retained sequence of that id.
    #[error("sequence {} is not waiting to be continued", .0.0)]
    NotRetained(SeqId),
}

/// Why the engine itself failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A text that cannot be scored.
    #[error(transparent)]
    Reject(#[from] RejectError),
    /// Settings that make no engine.
    #[error("{0}")]
    Settings(String),
    /// The prefix cache's folder cannot be used.
    #[error("prefix cache: {0}")]
    Cache(String),
    /// The model could not be prepared.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
