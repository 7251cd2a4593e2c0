//! Chat templates: a conversation as JSON to the prompt text the model was trained on.
//!
//! Templates are Jinja as `transformers` runs it. They come with downloaded models and are not
//! trusted: instructions, built text, nesting and time are bounded ([`meter`]), and one that
//! breaks out of every other check panics on its own thread, not on the caller's.

mod bytecode;
mod clock;
mod environment;
mod growth;
mod json;
mod load;
mod meter;
mod special;

pub use special::SpecialTokens;

use crate::error::TextError;
use clock::Clock;
use minijinja::{AutoEscape, Environment, Error, machinery};
use serde_json::{Map, Value as Json};
use std::fmt;

/// The compiler, comparing and dropping are recursive; with the limits on depth this is ample.
const STACK_BYTES: usize = 64 << 20;
/// How deep JSON from a client may nest, as in `serde_json`'s own parser.
const MAX_JSON_DEPTH: usize = 128;

/// A compiled chat template, with a second one for conversations with tools where the model has
/// that.
pub struct ChatTemplate {
    default: Option<String>,
    tool_use: Option<String>,
    special: SpecialTokens,
    environment: Environment<'static>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |source: &Option<String>| source.as_ref().map_or(0, String::len);
        let (default, tools) = (bytes(&self.default), bytes(&self.tool_use));
        write!(f, "ChatTemplate({default} bytes, {tools} for tools)")
    }
}

/// One conversation to render.
#[derive(Clone, Copy, Debug)]
pub struct ChatInput<'a> {
    /// The messages, as the chat API has them.
    pub messages: &'a [Json],
    /// Tool definitions; none gives the template `tools = None`.
    pub tools: &'a [Json],
    /// Whether to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking` or `documents`. They may replace special
    /// tokens, but not the fields above.
    pub extra: &'a Map<String, Json>,
}

impl ChatTemplate {
    /// Compiles one template text.
    pub fn from_source(source: &str, special: SpecialTokens) -> Result<Self, TextError> {
        Self::from_sources(Some(source), None, special)
    }

    fn from_sources(
        default: Option<&str>,
        tool_use: Option<&str>,
        special: SpecialTokens,
    ) -> Result<Self, TextError> {
        let prepare = |source: Option<&str>| source.map(checked_source).transpose();
        Ok(Self {
            default: prepare(default)?,
            tool_use: prepare(tool_use)?,
            special,
            environment: environment::environment(clock::system_clock()),
        })
    }

    /// Replaces the clock behind `strftime_now`; `clock` gives unix seconds.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        let clock: Clock = std::sync::Arc::new(clock);
        self.environment = environment::environment(clock);
        self
    }

    /// The template texts, for finding out what they are about.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        [&self.default, &self.tool_use].into_iter().flatten().map(String::as_str)
    }

    /// Whether the template's text has a word, such as the name of a variable it may read.
    pub fn mentions(&self, word: &str) -> bool {
        self.sources().any(|source| source.contains(word))
    }

    /// The special tokens the template sees.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Renders a conversation. The errors of `raise_exception` carry the template's message.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TextError> {
        let with_tools = self.tool_use.as_ref().filter(|_| !input.tools.is_empty());
        let source = with_tools.or(self.default.as_ref()).ok_or_else(|| {
            failure(None, "the model has no template for conversations without tools")
        })?;
        on_deep_stack(|| self.render_source(source, input))
    }

    fn render_source(&self, source: &str, input: &ChatInput<'_>) -> Result<String, TextError> {
        let variables = self.variables(input)?;
        let syntax = environment::syntax();
        // Compiled for each render: it takes a fraction of a millisecond, and the alternative is
        // a structure that borrows from itself.
        let program = bytecode::compile(source, &syntax).map_err(template_error)?;
        let mut text = String::new();
        let mut out = machinery::make_string_output(&mut text);
        let (main, blocks) = (&program.main, &program.blocks);
        let escape = AutoEscape::None;
        machinery::eval(&self.environment, main, variables, blocks, &mut out, escape)
            .map_err(template_error)?;
        Ok(text)
    }

    fn variables(&self, input: &ChatInput<'_>) -> Result<minijinja::Value, TextError> {
        type Pair = (String, minijinja::Value);
        const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];
        if let Some(name) = RESERVED.iter().find(|name| input.extra.contains_key(**name)) {
            let message = format!("`{name}` cannot be given as a template argument");
            return Err(failure(None, message));
        }
        let none = || minijinja::Value::from(());
        let tools = if input.tools.is_empty() { none() } else { list_value(input.tools, 0)? };
        let mut pairs: Vec<Pair> = vec![("documents".to_owned(), none())];
        pairs.extend(self.special.iter().map(|(k, v)| (k.to_owned(), v.into())));
        for (name, value) in input.extra {
            pairs.push((name.clone(), value_of(value, 0)?));
        }
        pairs.push(("messages".to_owned(), list_value(input.messages, 0)?));
        pairs.push(("tools".to_owned(), tools));
        pairs.push(("add_generation_prompt".to_owned(), input.add_generation_prompt.into()));
        Ok(minijinja::Value::from_pairs(pairs))
    }
}

/// Checks that a source compiles, and returns the form that renders use.
fn checked_source(source: &str) -> Result<String, TextError> {
    on_deep_stack(|| {
        let syntax = environment::syntax();
        let prepared = bytecode::prepare(source, &syntax).map_err(template_error)?;
        bytecode::compile(&prepared, &syntax).map_err(template_error)?;
        Ok(prepared)
    })
}

/// Runs template work on a thread of its own: with a known stack, and with a panic of the
/// template library contained.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, TextError> + Send,
) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|e| failure(None, format!("cannot start a thread: {e}")))?
            .join()
            .unwrap_or_else(|_| Err(failure(None, "the template breaks the template engine")))
    })
}

fn list_value(items: &[Json], depth: usize) -> Result<minijinja::Value, TextError> {
    let values: Result<Vec<_>, _> = items.iter().map(|item| value_of(item, depth + 1)).collect();
    values.map(minijinja::Value::from)
}

fn value_of(json: &Json, depth: usize) -> Result<minijinja::Value, TextError> {
    if depth > MAX_JSON_DEPTH {
        return Err(failure(None, format!("a message is nested over {MAX_JSON_DEPTH} deep")));
    }
    Ok(match json {
        Json::Null => minijinja::Value::from(()),
        Json::Bool(b) => (*b).into(),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(signed), _) => signed.into(),
            (_, Some(unsigned)) => unsigned.into(),
            _ => n.as_f64().unwrap_or(f64::NAN).into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => list_value(items, depth)?,
        Json::Object(map) => {
            let pairs = map.iter().map(|(k, v)| Ok((k.as_str(), value_of(v, depth + 1)?)));
            minijinja::Value::from_pairs(pairs.collect::<Result<Vec<_>, TextError>>()?)
        }
    })
}

fn failure(line: Option<usize>, message: impl Into<String>) -> TextError {
    TextError::Template { line, message: message.into() }
}

fn template_error(error: Error) -> TextError {
    let raised = environment::exception_message(&error);
    let message = raised.unwrap_or_else(|| {
        let detail = error.detail().map(|d| format!(": {d}")).unwrap_or_default();
        format!("{}{detail}", error.kind())
    });
    failure(error.line().filter(|&line| line > 0), message)
}
