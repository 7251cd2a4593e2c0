//! A question, whatever API asked it.

use crate::SamplingWish;
use forerun_base::Token;
use forerun_engine::Depth;
use serde_json::{Map, Value};

/// A conversation to go on with.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatRequest {
    /// Messages as a chat template wants them: `role`, `content` as one text, `tool_calls` with arguments as
    /// objects.
    pub(crate) messages: Vec<Value>,
    /// Further variables for the template.
    pub(crate) template_arguments: Map<String, Value>,
    pub(crate) generation: Generation,
}

/// Texts to go on with as they stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompletionRequest {
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) generation: Generation,
}

/// A prompt that no template goes over.
#[derive(Clone, Debug)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<Token>),
}

/// Everything about an answer but its prompt.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) sampling: SamplingWish,
    /// Longest answer; what the context leaves by default.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stops: Vec<String>,
    /// Answers per prompt, seeded one after the other.
    pub(crate) choices: usize,
    /// Go on after the model's end tokens.
    pub(crate) ignore_end: bool,
    /// Guesses per round; the server's own choice by default.
    pub(crate) speculation: Option<Depth>,
    /// Lower runs first.
    pub(crate) priority: i32,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            sampling: SamplingWish::default(),
            max_tokens: None,
            stops: Vec::new(),
            choices: 1,
            ignore_end: false,
            speculation: None,
            priority: 0,
        }
    }
}
