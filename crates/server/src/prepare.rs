//! From a question to jobs for the engine: template, tokenizer, grammar, defaults.

use crate::answer::Reader;
use crate::app::App;
use crate::chat::{ChatRequest, CompletionRequest, Generation, Prompt};
use crate::error::ServerError;
use crate::marks::{self, Rendered};
use crate::sampling::PromptKind;
use crate::service::Job;
use forerun_base::Token;
use forerun_engine::{CacheUse, Constraint, RejectError, check_tokens};
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::{AnswerParser, ChatInput, Dialect, Opening, Tool, ToolChoice};
use serde_json::{Map, json};
use std::sync::Arc;

/// No vocabulary in use spells a token with more bytes.
const LONGEST_TOKEN: usize = 1024;

/// A bias that nothing outweighs.
const NEVER: f32 = -1e30;

/// One job per answer, and who reads the answer.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) jobs: Vec<Job>,
    pub(crate) readers: Vec<Reader>,
}

/// Jobs for a conversation.
pub(crate) fn chat(app: &App, request: &ChatRequest) -> Result<Prepared, ServerError> {
    let conversation = Conversation::new(app, request)?;
    let prompt = encode(app, &conversation.rendered.text, false)?;
    let parser = AnswerParser::new(
        conversation.dialect,
        conversation.opening == Opening::Open,
        &conversation.tools,
    );
    let marks = || conversation.rendered.marks(app, &prompt, &conversation.marked);
    let mut cache = cache(app, &request.generation, marks);
    cache.keep |= !conversation.marked.is_empty();
    let outline = Outline {
        generation: &request.generation,
        kind: PromptKind::Chat,
        end_tokens: app.model.chat_end_tokens(conversation.rendered.template),
        cache,
        prompt,
        shown: conversation.dialect.shown_tokens(),
        forbidden: conversation.forbidden,
    };
    let mut prepared = Prepared::default();
    for choice in 0..request.generation.choices {
        let constraint = conversation.constraint(app, request)?;
        prepared.jobs.push(outline.job(app, choice, constraint)?);
        prepared.readers.push(Reader::new(Some(parser.clone())));
    }
    Ok(prepared)
}

/// The tokens of a conversation, up to the opening of the answer.
pub(crate) fn chat_prompt(app: &App, request: &ChatRequest) -> Result<Vec<Token>, ServerError> {
    encode(app, &Conversation::new(app, request)?.rendered.text, false)
}

/// Jobs for texts, prompt by prompt.
pub(crate) fn completion(app: &App, request: &CompletionRequest) -> Result<Prepared, ServerError> {
    let mut prepared = Prepared::default();
    for prompt in &request.prompts {
        let prompt = match prompt {
            Prompt::Text(text) => encode(app, text, true)?,
            Prompt::Tokens(tokens) => {
                check_tokens(tokens, app.facts.vocabulary)?;
                tokens.clone()
            }
        };
        let outline = Outline {
            generation: &request.generation,
            kind: PromptKind::Text,
            prompt,
            end_tokens: app.model.end_tokens(),
            cache: cache(app, &request.generation, Vec::new),
            shown: Vec::new(),
            forbidden: None,
        };
        for choice in 0..request.generation.choices {
            let format = request.generation.format.as_ref();
            let constraint = format.map(|source| compile(app, source)).transpose()?;
            prepared.jobs.push(outline.job(app, choice, constraint)?);
            prepared.readers.push(Reader::new(None));
        }
    }
    Ok(prepared)
}

/// How the cache is used; marks are looked for only where they may be of use.
fn cache(app: &App, generation: &Generation, marks: impl Fn() -> Vec<u32>) -> CacheUse {
    if !generation.cache.on {
        return CacheUse::OFF;
    }
    let marks = if app.facts.cache_bytes > 0 { marks() } else { Vec::new() };
    CacheUse { marks, keep: generation.cache.keep, ..CacheUse::default() }
}

/// A conversation as the model reads it.
struct Conversation<'a> {
    dialect: &'a Dialect,
    /// Tools the answer may call.
    tools: Vec<Tool>,
    rendered: Rendered<'a>,
    opening: Opening,
    /// Messages after which the client set a mark.
    marked: Vec<usize>,
    /// The token that would open a call where none may be made.
    forbidden: Option<Token>,
}

impl<'a> Conversation<'a> {
    fn new(app: &'a App, request: &ChatRequest) -> Result<Self, ServerError> {
        let (Some(template), Some(dialect)) = (&app.model.template, &app.dialect) else {
            let message =
                "this model has no chat template; continue text at /v1/completions instead";
            return Err(ServerError::invalid("messages", message));
        };
        let messages = dialect.normalise_messages(&request.messages)?;
        let mut tools = Tool::parse_all(&request.tools)?;
        let offered = request.tools.clone();
        let mut forbidden = None;
        if request.tool_choice.is_none() && !tools.is_empty() {
            // The prompt stays as it is where calls are allowed, so that what is cached of it holds for both.
            tools.clear();
            forbidden = dialect.call_token();
        }
        if !tools.is_empty() && !dialect.calls_tools() {
            let why = "this model's chat template has no form for tool calls";
            return Err(ServerError::unsupported("tools", why));
        }
        let variables = variables(request, dialect)?;
        let mut text = template.render(&ChatInput {
            messages: &messages,
            tools: &offered,
            add_generation_prompt: true,
            extra: &variables,
        })?;
        let mut opening = dialect.opening(&text);
        if let (Some(_), Opening::Free, Some(mark)) =
            (request.reasoning.budget, opening, dialect.reasoning_open())
        {
            // A budget is for reasoning that has begun.
            text.push_str(mark);
            opening = Opening::Open;
        }
        let rendered = Rendered { template, messages, tools: offered, variables, text };
        let marked = marks::asked(&request.messages);
        Ok(Self { dialect, tools, rendered, opening, marked, forbidden })
    }

    /// What the answer must look like, reasoning apart.
    fn grammar(&self, request: &ChatRequest) -> Result<Option<GrammarSource>, ServerError> {
        let (format, parallel) = (request.generation.format.as_ref(), request.parallel_tool_calls);
        let Some(choice) = &request.tool_choice else { return Ok(format.cloned()) };
        let calls = match (choice, format) {
            (ToolChoice::Auto, Some(format)) if !self.tools.is_empty() => {
                let schema = match format {
                    GrammarSource::JsonObject => json!({"type": "object"}),
                    GrammarSource::JsonSchema(schema) => schema.clone(),
                    other => {
                        let message = format!("a {} cannot stand beside tools", other.kind());
                        return Err(ServerError::invalid("structured_outputs", message));
                    }
                };
                self.dialect.tool_or_json_grammar(&self.tools, &schema, parallel, self.opening)?
            }
            // A call that is required has a form of its own.
            _ => self.dialect.tool_grammar(&self.tools, choice, parallel, self.opening)?,
        };
        Ok(calls.map(GrammarSource::Lark).or_else(|| format.cloned()))
    }

    /// What the answer is held to.
    fn constraint(
        &self,
        app: &App,
        request: &ChatRequest,
    ) -> Result<Option<Box<dyn Constraint>>, ServerError> {
        let inner = self.grammar(request)?.map(|source| compile(app, &source)).transpose()?;
        // Reasoning that a template begins though it was told not to ends at once.
        let off = request.reasoning.enabled == Some(false);
        let budget = if off { Some(0) } else { request.reasoning.budget };
        match (self.opening, self.dialect.reasoning_end()) {
            (Opening::Open, Some(end)) if inner.is_some() || budget.is_some() => {
                Ok(Some(grammars(app)?.after_reasoning(end, budget, inner)?))
            }
            _ => Ok(inner),
        }
    }
}

/// Variables for the template: those of the request and what it says about reasoning.
fn variables(
    request: &ChatRequest,
    dialect: &Dialect,
) -> Result<Map<String, serde_json::Value>, ServerError> {
    const NAME: &str = "enable_thinking";
    let mut variables = request.template_arguments.clone();
    let (enabled, budget) = (request.reasoning.enabled, request.reasoning.budget);
    if !dialect.thinks() && (enabled == Some(true) || budget.is_some()) {
        let field = if budget.is_some() { "thinking_budget" } else { NAME };
        return Err(ServerError::unsupported(field, "this model does not mark any reasoning"));
    }
    if let Some(enabled) = enabled.or(budget.map(|_| true)) {
        let before = variables.insert(NAME.to_owned(), enabled.into());
        if before.is_some_and(|before| before != enabled) {
            let message = format!("`{NAME}` is given twice, with different values");
            return Err(ServerError::invalid(NAME, message));
        }
    }
    Ok(variables)
}

fn grammars(app: &App) -> Result<&Grammars, ServerError> {
    app.grammars
        .as_ref()
        .map_err(|error| ServerError::invalid("response_format", error.to_string()))
}

fn compile(app: &App, source: &GrammarSource) -> Result<Box<dyn Constraint>, ServerError> {
    Ok(grammars(app)?.compile(source)?)
}

/// Text to tokens. One that is too long for any context is not tokenized first.
pub(crate) fn encode(app: &App, text: &str, add_special: bool) -> Result<Vec<Token>, ServerError> {
    let (bytes, context) = (text.len(), app.facts.context);
    if bytes > context.saturating_mul(LONGEST_TOKEN) {
        let message = format!("the prompt has {bytes} bytes; the context holds {context} tokens");
        return Err(ServerError::Invalid { param: None, message });
    }
    Ok(app.model.tokenizer.encode(text, add_special)?)
}

/// What the answers to one prompt have in common.
struct Outline<'a> {
    generation: &'a Generation,
    kind: PromptKind,
    prompt: Vec<Token>,
    end_tokens: Vec<Token>,
    cache: CacheUse,
    /// Special tokens that are part of the text.
    shown: Vec<Token>,
    /// A token that must not come.
    forbidden: Option<Token>,
}

impl Outline<'_> {
    fn job(
        &self,
        app: &App,
        choice: usize,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Job, ServerError> {
        let (context, prompt, generation) = (app.facts.context, &self.prompt, self.generation);
        if prompt.len() >= context {
            return Err(RejectError::PromptTooLong { prompt: prompt.len(), context }.into());
        }
        let mut sampling = generation.sampling.over(&app.model.defaults, self.kind);
        if let Some(forbidden) = self.forbidden {
            sampling.logit_bias.retain(|&(token, _)| token != forbidden);
            sampling.logit_bias.push((forbidden, NEVER));
        }
        sampling.check(app.facts.vocabulary)?;
        sampling.seed = sampling.seed.wrapping_add(choice as u64);
        let asked = app.model.defaults.max_new_tokens.map_or(context, |n| n as usize);
        let ends = if generation.ignore_end { Vec::new() } else { self.end_tokens.clone() };
        Ok(Job {
            prompt: prompt.clone(),
            sampling,
            max_tokens: generation.max_tokens.unwrap_or(asked),
            end_tokens: ends,
            stops: generation.stops.clone(),
            depth: generation.speculation.unwrap_or(app.settings.depth),
            priority: generation.priority,
            cache: self.cache.clone(),
            request_id: Arc::clone(&generation.request_id),
            constraint,
            logprobs: generation.logprobs,
            shown: self.shown.clone(),
        })
    }
}
