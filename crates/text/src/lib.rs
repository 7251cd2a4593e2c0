//! Text around a language model: everything between what people write and the tokens a model
//! reads.
//!
//! - [`Tokenizer`]: text to tokens and back (`tokenizer.json`)
//! - [`Vocabulary`]: the same from the tables of a GGUF file
//! - [`Detokenizer`]: tokens to text as they come, never half a character
//! - [`StopMatcher`]: stop strings across token boundaries
//! - [`Transcript`]: both of these over one answer
//! - [`ChatTemplate`]: a conversation to a prompt (`chat_template.jinja`)
//! - [`Literals`]: special tokens that a client's text spells, which stay text
//! - [`Dialect`]: reasoning and tool calls, in messages and in answers
//! - [`GenerationDefaults`]: end tokens and sampling settings a model asks for
//!
//! No device and no weights. The files come from the network and are not trusted: whatever they
//! contain, the answer is a value or a [`TextError`], within bounded time and memory.
#![forbid(unsafe_code)]

mod bytes;
mod detokenizer;
mod dialect;
mod engine;
mod error;
mod expressions;
mod file;
mod generation;
mod literal;
mod pipeline;
mod stop;
mod template;
mod tokenizer;
mod transcript;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use dialect::{
    AnswerParser, Conversation, Dialect, Opening, Piece, RenderedPrompt, Tool, ToolChoice,
};
pub use error::TextError;
pub use generation::GenerationDefaults;
pub use literal::Literals;
pub use stop::{Released, StopMatcher};
pub use template::{ChatInput, ChatTemplate, SpecialTokens};
pub use tokenizer::Tokenizer;
pub use transcript::Transcript;
pub use vocabulary::{TextFiles, Vocabulary};
