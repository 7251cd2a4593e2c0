//! From a question to jobs for the engine: template, tokenizer, grammar, defaults.

use crate::answer::Reader;
use crate::app::{App, is_wanted};
use crate::auth;
use crate::calls::{Asked, Held};
use crate::chat::{ChatRequest, CompletionRequest, Effort, Generation, Prompt, Reasoning};
use crate::error::ServerError;
use crate::marks::{self, Rendered};
use crate::sampling::PromptKind;
use crate::service::Job;
use forerun_base::Token;
use forerun_engine::{CacheUse, Constraint, RejectError, check_tokens};
use forerun_grammar::{GrammarError, GrammarSource, Grammars};
use forerun_text::{AnswerParser, ChatTemplate, Dialect, Opening, TextError, Tool};
use serde_json::Map;
use std::sync::Arc;

/// A bias that nothing outweighs.
const NEVER: f32 = -1e30;

/// One job per answer, and who reads the answer.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) jobs: Vec<Job>,
    pub(crate) readers: Vec<Reader>,
    /// What of the request is not done to the letter, for its client to know.
    pub(crate) notes: Vec<String>,
}

/// Jobs for a conversation.
pub(crate) fn chat(app: &App, request: &ChatRequest) -> Result<Prepared, ServerError> {
    let conversation = Conversation::new(app, request)?;
    let prompt = conversation.encoded(app)?;
    let parser = AnswerParser::new(
        conversation.dialect,
        conversation.opening == Opening::Open,
        &conversation.tools,
    );
    let marks = || conversation.rendered.marks(app, &prompt, &conversation.marked);
    let mut cache = cache(app, &request.generation, marks);
    cache.keep |= conversation.keep;
    let outline = Outline {
        generation: &request.generation,
        kind: PromptKind::Chat,
        end_tokens: app.model.chat_end_tokens(conversation.rendered.template),
        cache,
        prompt,
        shown: conversation.dialect.shown_tokens(),
        forbidden: conversation.forbidden,
    };
    let Held { grammar, notes } = conversation.held(app, request)?;
    let changed = conversation.rendered.prompt.notes.iter().map(|note| (*note).to_owned());
    let mut prepared = Prepared { notes: changed.chain(notes).collect(), ..Prepared::default() };
    for choice in 0..request.generation.choices {
        let constraint = conversation.constraint(app, request, grammar.as_ref())?;
        prepared.jobs.push(outline.job(app, choice, constraint)?);
        prepared.readers.push(Reader::new(Some(parser.clone())));
    }
    Ok(prepared)
}

/// The tokens of a conversation, up to the opening of the answer.
pub(crate) fn chat_prompt(app: &App, request: &ChatRequest) -> Result<Vec<Token>, ServerError> {
    Conversation::new(app, request)?.encoded(app)
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
            let constraint = constraint(app, request.generation.format.as_ref())?;
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
    let owner = generation.owner.filter(|_| !app.settings.share_cache);
    let salt = auth::cache_salt(owner, generation.cache.salt.as_deref());
    CacheUse { marks, keep: generation.cache.keep, salt, ..CacheUse::default() }
}

/// A conversation as the model reads it.
struct Conversation<'a> {
    dialect: &'a Dialect,
    /// Tools the answer may call.
    tools: Vec<Tool>,
    rendered: Rendered<'a>,
    opening: Opening,
    /// Numbers of messages after which the client set a mark.
    marked: Vec<usize>,
    /// Whether it set any.
    keep: bool,
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
        let own = |error| match error {
            TextError::Message { path, problem } => {
                TextError::Message { path: request.own_place(&path), problem }
            }
            other => other,
        };
        let mut tools = Tool::parse_all(&request.tools).map_err(own)?;
        let mut forbidden = None;
        if request.tool_choice.is_none() && !tools.is_empty() {
            // The prompt stays as it is where calls are allowed, so that what is cached of it holds for both.
            tools.clear();
            forbidden = dialect.call_token();
        }
        let variables = variables(request, template, dialect)?;
        let mut prompt = dialect.prompt(
            template,
            &app.model.tokenizer,
            &forerun_text::Conversation {
                messages: &request.messages,
                tools: &request.tools,
                variables: &variables,
                parse_special: app.settings.parse_special,
            },
        )?;
        let mut opening = dialect.opening(&prompt.text);
        if let (Some(_), Opening::Free, Some(mark)) =
            (request.reasoning.budget, opening, dialect.reasoning_open())
        {
            // A budget is for reasoning that has begun.
            prompt.text.push_str(mark);
            opening = Opening::Open;
        }
        let asked = marks::asked(&request.messages);
        let marked = asked.iter().map(|&message| prompt.end_of(message)).collect();
        let (rendered, keep) = (Rendered { template, prompt }, !asked.is_empty());
        Ok(Self { dialect, tools, rendered, opening, marked, keep, forbidden })
    }

    fn encoded(&self, app: &App) -> Result<Vec<Token>, ServerError> {
        let (tokenizer, prompt) = (&app.model.tokenizer, &self.rendered.prompt);
        tokenizer.check_length(&prompt.text, app.facts.context)?;
        Ok(tokenizer.encode_chat(&prompt.text, &prompt.literals)?)
    }

    /// What the answer must look like, reasoning apart.
    fn held(&self, app: &App, request: &ChatRequest) -> Result<Held, ServerError> {
        let (dialect, tools, opening) = (self.dialect, &self.tools[..], self.opening);
        Asked { dialect, tools, opening, request }.held(app)
    }

    /// What the answer is held to.
    fn constraint(
        &self,
        app: &App,
        request: &ChatRequest,
        grammar: Option<&GrammarSource>,
    ) -> Result<Option<Box<dyn Constraint>>, ServerError> {
        let inner = constraint(app, grammar)?;
        // Reasoning that a template begins though it was told not to ends at once.
        let off = request.reasoning.enabled == Some(false);
        let budget = if off { Some(0) } else { request.reasoning.budget };
        match (self.opening, self.dialect.reasoning_end()) {
            (Opening::Open, Some(end)) if inner.is_some() || budget.is_some() => {
                Ok(Some(grammars(&app.grammars)?.after_reasoning(end, budget, inner)?))
            }
            _ => Ok(inner),
        }
    }
}

/// Variables for the template: those of the request and what it says about reasoning.
fn variables(
    request: &ChatRequest,
    template: &ChatTemplate,
    dialect: &Dialect,
) -> Result<Map<String, serde_json::Value>, ServerError> {
    const NAME: &str = "enable_thinking";
    const EFFORT: &str = "reasoning_effort";
    let mut variables = request.template_arguments.clone();
    let Reasoning { enabled, budget, effort, field } = &request.reasoning;
    let enabled = enabled.or(budget.map(|_| true));
    if let Some(Effort { word, field }) = effort {
        if template.mentions(EFFORT) {
            variables.entry(EFFORT).or_insert_with(|| word.as_str().into());
        } else {
            request.ignored.field(field)?;
        }
    }
    if enabled == Some(true) && !dialect.thinks() {
        request.ignored.field(field)?;
        return Ok(variables);
    }
    if let Some(enabled) = enabled {
        let before = variables.insert(NAME.to_owned(), enabled.into());
        if before.is_some_and(|before| before != enabled) {
            let message =
                format!("`{field}` and `chat_template_kwargs.{NAME}` contradict each other");
            return Err(ServerError::invalid(field, message));
        }
    }
    Ok(variables)
}

pub(crate) fn grammars(made: &Result<Grammars, GrammarError>) -> Result<&Grammars, ServerError> {
    made.as_ref().map_err(|error| ServerError::invalid("response_format", error.to_string()))
}

/// Compiles a grammar for as long as the client waits.
pub(crate) fn compile(
    grammars: &Grammars,
    source: &GrammarSource,
) -> Result<Box<dyn Constraint>, GrammarError> {
    grammars.compile_while(source, &is_wanted)
}

/// The constraint of a grammar, if there is one.
fn constraint(
    app: &App,
    source: Option<&GrammarSource>,
) -> Result<Option<Box<dyn Constraint>>, ServerError> {
    let Some(source) = source else { return Ok(None) };
    Ok(Some(compile(grammars(&app.grammars)?, source)?))
}

/// Text to tokens as it stands, special tokens included. One that is too long for the context is not tokenized first.
pub(crate) fn encode(app: &App, text: &str, add_special: bool) -> Result<Vec<Token>, ServerError> {
    app.model.tokenizer.check_length(text, app.facts.context)?;
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
            owner: generation.owner,
            constraint,
            logprobs: generation.logprobs,
            shown: self.shown.clone(),
        })
    }
}
