//! Why there is no constraint.

use forerun_text::TextError;

/// What is wrong with a grammar, or with the vocabulary it is for.
#[derive(Debug, thiserror::Error)]
pub enum GrammarError {
    /// The tokenizer could not be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// An end token, or the vocabulary itself, is not one.
    #[error("a grammar cannot be used with this vocabulary: {0}")]
    Vocabulary(String),
    /// More than is read.
    #[error("the {kind} has {size} {unit}; at most {most} are read")]
    TooLarge {
        /// What was given.
        kind: &'static str,
        /// How much.
        size: usize,
        /// Of what.
        unit: &'static str,
        /// The limit.
        most: usize,
    },
    /// Nothing to choose from.
    #[error("a choice needs at least one text to choose from")]
    NoChoice,
    /// It does not compile.
    #[error("the {kind} cannot be used: {why}")]
    Invalid {
        /// What was given.
        kind: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody waits for it any more.
    #[error("the {kind} is not waited for any more")]
    Abandoned {
        /// What was given.
        kind: &'static str,
    },
    /// The end mark of reasoning has no text.
    #[error("the mark that ends reasoning is empty")]
    EmptyMark,
}
