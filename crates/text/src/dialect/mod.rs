//! Dialects: how a model writes reasoning and tool calls.
//!
//! Models mark what they think and whom they call in the text itself, each family in its own
//! way. The chat template shows which: it writes earlier turns with the same marks. A
//! [`Dialect`] is found from it once per model and then
//!
//! - reads answers as they come ([`AnswerParser`]),
//! - writes the grammar that holds a model to its calls ([`Dialect::tool_grammar`]),
//! - brings messages to the form the template wants ([`Dialect::normalise_messages`]).
//!
//! A template that shows no form for calls gets one: the system's words tell of the tools and of the marks around a
//! call. Without tools everything that is not reasoning is content.

mod gemma;
mod grammar;
mod json;
mod messages;
mod parser;
mod piece;
mod probe;
mod prompt;
mod python;
mod schema;
mod tool;
mod xml;

pub use parser::AnswerParser;
pub use piece::Piece;
pub use prompt::{Conversation, RenderedPrompt};
pub use tool::{Tool, ToolChoice};

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use forerun_base::Token;
use probe::TemplateTraits;

/// How a model writes reasoning and tool calls, found from its chat template.
#[derive(Clone, Debug)]
pub struct Dialect {
    thinking: Option<Thinking>,
    calls: Option<CallForm>,
    /// The template has no form for calls that is known here, so the system's words tell of one.
    generic: bool,
    /// Marks that are one special token of the model: text cannot spell them in a grammar, and a
    /// detokenizer must not leave them out.
    special: Vec<(&'static str, Token)>,
    habits: TemplateTraits,
}

/// The marks around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thinking {
    open: &'static str,
    close: &'static str,
    /// The mark may open in the middle of a text; otherwise it counts only before any text, since
    /// a model may also write about it.
    anywhere: bool,
}

/// How a call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallForm {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen3)
    Marked,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>` (Qwen3-Coder)
    Xml,
    /// `{"name": …, "parameters": {…}}` as the whole answer (Llama 3)
    Bare,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>}<tool_call|>` (Gemma 4)
    Gemma,
    /// `<|tool_call_start|>[name(key='text')]<|tool_call_end|>` (LFM2)
    Python,
}

/// What the end of a prompt says about reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The prompt opened the reasoning: the answer begins inside it.
    Open,
    /// The prompt closed it: none comes.
    Closed,
    /// The answer may open it by itself.
    Free,
}

const THINK: Thinking = Thinking { open: "<think>", close: "</think>", anywhere: false };
const CHANNEL: Thinking =
    Thinking { open: "<|channel>thought", close: "<channel|>", anywhere: true };

const CALL_OPEN: &str = "<tool_call>";
const CALL_CLOSE: &str = "</tool_call>";
const FUNCTION_OPEN: &str = "<function=";
const PYTHON_TAG: &str = "<|python_tag|>";
const GEMMA_OPEN: &str = "<|tool_call>";
const GEMMA_CLOSE: &str = "<tool_call|>";
const GEMMA_QUOTE: &str = "<|\"|>";
const CHANNEL_OPEN: &str = "<|channel>";
const PYTHON_OPEN: &str = "<|tool_call_start|>";
const PYTHON_CLOSE: &str = "<|tool_call_end|>";

/// Everything that may be a special token.
const MARKS: [&str; 11] = [
    THINK.open,
    THINK.close,
    CHANNEL_OPEN,
    CHANNEL.close,
    CALL_OPEN,
    CALL_CLOSE,
    GEMMA_OPEN,
    GEMMA_CLOSE,
    PYTHON_TAG,
    PYTHON_OPEN,
    PYTHON_CLOSE,
];

impl Dialect {
    /// Finds the dialect of a model. The template is tried out on a few small conversations.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let says = |mark: &str| template.sources().any(|source| source.contains(mark));
        let thinking = if says(CHANNEL_OPEN) && says(CHANNEL.close) {
            Some(CHANNEL)
        } else {
            says(THINK.close).then_some(THINK)
        };
        let special = MARKS.iter().chain([&GEMMA_QUOTE]).filter_map(|mark| {
            let token = tokenizer.token_to_id(mark)?;
            tokenizer.is_special(token).then_some((*mark, token))
        });
        let calls = call_form(&says);
        Self {
            thinking,
            calls: calls.or(Some(CallForm::Marked)),
            generic: calls.is_none(),
            special: special.collect(),
            habits: TemplateTraits::of(template),
        }
    }

    /// Whether the model marks its reasoning.
    pub fn thinks(&self) -> bool {
        self.thinking.is_some()
    }

    /// Whether the template itself has a form for tool calls; otherwise the system's words tell of one.
    pub fn has_own_calls(&self) -> bool {
        !self.generic
    }

    /// The text that opens reasoning.
    pub fn reasoning_open(&self) -> Option<&'static str> {
        self.thinking.map(|marks| marks.open)
    }

    /// The text that ends reasoning.
    pub fn reasoning_end(&self) -> Option<&'static str> {
        self.thinking.map(|marks| marks.close)
    }

    /// What the end of a rendered prompt says about reasoning. Only the end counts: a message may
    /// well contain the marks.
    pub fn opening(&self, prompt: &str) -> Opening {
        let end = prompt.trim_end();
        match self.thinking {
            Some(marks) if end.ends_with(marks.open) => Opening::Open,
            Some(marks) if !end.ends_with(marks.close) => Opening::Free,
            _ => Opening::Closed,
        }
    }

    /// Special tokens that are marks of this dialect. A [`crate::Detokenizer`] has to show them.
    pub fn shown_tokens(&self) -> Vec<Token> {
        self.special.iter().map(|&(_, token)| token).collect()
    }

    /// The special token that opens a call, where one does.
    pub fn call_token(&self) -> Option<Token> {
        match self.calls? {
            CallForm::Gemma => self.special_token(GEMMA_OPEN),
            CallForm::Marked | CallForm::Xml => self.special_token(CALL_OPEN),
            CallForm::Bare => self.special_token(PYTHON_TAG),
            CallForm::Python => self.special_token(PYTHON_OPEN),
        }
    }

    fn special_token(&self, mark: &str) -> Option<Token> {
        self.special.iter().find(|(text, _)| *text == mark).map(|&(_, token)| token)
    }
}

fn call_form(says: &dyn Fn(&str) -> bool) -> Option<CallForm> {
    if says(GEMMA_OPEN) && says(GEMMA_CLOSE) {
        Some(CallForm::Gemma)
    } else if says(PYTHON_OPEN) && says(PYTHON_CLOSE) {
        Some(CallForm::Python)
    } else if says(FUNCTION_OPEN) && says("<parameter=") {
        Some(CallForm::Xml)
    } else if says(CALL_OPEN) && !says("<arg_key>") {
        Some(CallForm::Marked)
    } else if says("tool_calls") && says("<|start_header_id|>") && says("parameters") {
        Some(CallForm::Bare)
    } else {
        None
    }
}
