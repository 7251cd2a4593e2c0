//! Grammars that an answer must follow: JSON schemas, regular expressions, choices, Lark.
//!
//! [`Grammars`] holds what a model's vocabulary looks like to a grammar, once. [`Grammars::compile`] makes a
//! [`forerun_engine::Constraint`] of a [`GrammarSource`], and [`Grammars::after_reasoning`] puts one behind a model's
//! thoughts. The work is done by llguidance; this crate knows its limits, so that whatever a client sends, the answer
//! is a constraint or a [`GrammarError`] that says what is wrong, within bounded time and memory.
#![forbid(unsafe_code)]

mod cache;
mod compiled;
mod error;
mod gate;
mod grammars;
mod limits;
mod loosen;
mod matcher;
mod pool;
mod reason;
mod source;
mod vocabulary;
mod walk;
mod way;

pub use error::GrammarError;
pub use grammars::Grammars;
pub use loosen::{Loosen, Loosening, loosen};
pub use source::GrammarSource;
