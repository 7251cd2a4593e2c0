//! From a request to jobs for the engine: what the APIs add to the library's way from prompts to generations.

use crate::answer::Reader;
use crate::app::is_wanted;
use crate::auth;
use crate::calls::{self, AnswerRules, Asked};
use crate::chat::{AnswerOptions, ChatRequest, CompletionRequest, Effort, ReasoningRequest};
use crate::error::ServerError;
use crate::marks::{self, Rendered};
use crate::models::LiveModel;
use crate::service::Job;
use forerun::{PromptKind, RenderedChat, Token};
use forerun_engine::{CacheUse, Constraint};
use forerun_grammar::{GrammarError, GrammarSource, Grammars};
use forerun_text::{ChatTemplate, Dialect, TextError, Tool};
use serde_json::Map;
use std::sync::Arc;

/// One job per answer, and who reads the answer.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) jobs: Vec<Job>,
    pub(crate) readers: Vec<Reader>,
    /// The tokens of each prompt, where they are told.
    pub(crate) prompts: Vec<Vec<Token>>,
    /// What of the request is not done to the letter, for its client to know.
    pub(crate) notes: Vec<String>,
}

/// Jobs for a conversation.
pub(crate) fn chat(model: &LiveModel, request: &ChatRequest) -> Result<Prepared, ServerError> {
    let (conversation, chat) = RequestContext::render(model, request)?;
    let encoded = model.text.encode_chat(chat)?;
    let Some(chat) = &encoded.chat else { unreachable!("a chat was encoded") };
    let parser = model.text.answer_parser(chat, &conversation.tools);
    let rendered = Rendered { template: conversation.template, chat };
    let marked: Vec<usize> =
        conversation.marked.iter().map(|&message| chat.prompt.end_of(message)).collect();
    let marks = || rendered.marks(model, &encoded.tokens, &marked);
    let mut cache = cache(model, &request.generation, marks);
    cache.keep |= !marked.is_empty();
    let outline = Outline {
        generation: &request.generation,
        kind: PromptKind::Chat,
        prompt: &encoded.tokens,
        cache,
        forbidden: conversation.forbidden,
    };
    let AnswerRules { grammar, notes } = conversation.held(model, chat, request)?;
    let changed = chat.prompt.notes.iter().map(|note| (*note).to_owned());
    let mut prepared = Prepared { notes: changed.chain(notes).collect(), ..Prepared::default() };
    prepared.prompts.extend(request.generation.tell_prompt.then(|| encoded.tokens.clone()));
    for choice in 0..request.generation.choices {
        let constraint = model.text.constraint(Some(chat), grammar.as_ref(), &is_wanted)?;
        prepared.jobs.push(outline.job(model, choice, constraint)?);
        prepared.readers.push(Reader::new(parser.clone(), request.generation.include_stop));
    }
    Ok(prepared)
}

/// The tokens of a conversation, up to the opening of the answer.
pub(crate) fn chat_prompt(
    model: &LiveModel,
    request: &ChatRequest,
) -> Result<Vec<Token>, ServerError> {
    let (_, chat) = RequestContext::render(model, request)?;
    Ok(model.text.encode_chat(chat)?.tokens)
}

/// Jobs for texts, prompt by prompt.
pub(crate) fn completion(
    model: &LiveModel,
    request: &CompletionRequest,
) -> Result<Prepared, ServerError> {
    let mut prepared = Prepared::default();
    let generation = &request.generation;
    let AnswerRules { grammar, notes } = calls::format_rules(model, generation)?;
    prepared.notes = notes;
    for prompt in &request.prompts {
        let tokens = model.text.encode_prompt(prompt)?.tokens;
        prepared.prompts.extend(generation.tell_prompt.then(|| tokens.clone()));
        let outline = Outline {
            generation,
            kind: PromptKind::Text,
            prompt: &tokens,
            cache: cache(model, generation, Vec::new),
            forbidden: None,
        };
        for choice in 0..generation.choices {
            let constraint = model.text.constraint(None, grammar.as_ref(), &is_wanted)?;
            prepared.jobs.push(outline.job(model, choice, constraint)?);
            prepared.readers.push(Reader::new(None, generation.include_stop));
        }
    }
    Ok(prepared)
}

/// How the cache is used; marks are looked for only where they may be of use.
fn cache(model: &LiveModel, generation: &AnswerOptions, marks: impl Fn() -> Vec<u32>) -> CacheUse {
    if !generation.cache.on {
        return CacheUse::OFF;
    }
    let marks = if model.facts.cache_bytes > 0 { marks() } else { Vec::new() };
    let owner = generation.owner.filter(|_| !model.settings.share_cache);
    let salt = auth::cache_salt(owner, generation.cache.salt.as_deref());
    CacheUse { marks, keep: generation.cache.keep, salt, ..CacheUse::default() }
}

/// What a request says beside its messages.
struct RequestContext<'a> {
    template: &'a ChatTemplate,
    dialect: &'a Dialect,
    /// Tools the answer may call.
    tools: Vec<Tool>,
    /// Numbers of messages after which the client set a mark.
    marked: Vec<usize>,
    /// The token that would open a call where none may be made.
    forbidden: Option<Token>,
}

impl<'a> RequestContext<'a> {
    /// The conversation of a request, and what the template writes for it.
    fn render(
        model: &'a LiveModel,
        request: &ChatRequest,
    ) -> Result<(Self, RenderedChat), ServerError> {
        let (template, dialect) = model.text.chat()?;
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
        let conversation = forerun_text::Conversation {
            messages: &request.messages,
            tools: &request.tools,
            variables: &variables,
            parse_special: model.settings.parse_special,
        };
        let ReasoningRequest { enabled, budget, .. } = request.reasoning;
        let mut chat = model.text.render(&conversation, forerun::Reasoning { enabled, budget })?;
        if let Some(beginning) = &request.beginning {
            model.text.begin_answer(&mut chat, beginning, model.settings.parse_special)?;
        }
        let marked = marks::asked(&request.messages);
        Ok((Self { template, dialect, tools, marked, forbidden }, chat))
    }

    /// What the answer must look like, reasoning apart.
    fn held(
        &self,
        model: &LiveModel,
        chat: &RenderedChat,
        request: &ChatRequest,
    ) -> Result<AnswerRules, ServerError> {
        let (dialect, tools, opening) = (self.dialect, &self.tools[..], chat.opening);
        Asked { dialect, tools, opening, request }.held(model)
    }
}

/// Variables for the template: those of the request and what it says about reasoning.
fn variables(
    request: &ChatRequest,
    template: &ChatTemplate,
    dialect: &Dialect,
) -> Result<Map<String, serde_json::Value>, ServerError> {
    const NAME: &str = forerun::Reasoning::VARIABLE;
    const EFFORT: &str = "reasoning_effort";
    let mut variables = request.template_arguments.clone();
    let ReasoningRequest { enabled, budget, effort, field } = &request.reasoning;
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

/// Compiles a grammar for as long as the client waits.
pub(crate) fn compile(
    grammars: &Grammars,
    source: &GrammarSource,
) -> Result<Box<dyn Constraint>, GrammarError> {
    grammars.compile_while(source, &is_wanted)
}

/// What the answers to one prompt have in common.
struct Outline<'a> {
    generation: &'a AnswerOptions,
    kind: PromptKind,
    prompt: &'a [Token],
    cache: CacheUse,
    /// A token that must not come.
    forbidden: Option<Token>,
}

impl Outline<'_> {
    fn job(
        &self,
        model: &LiveModel,
        choice: usize,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<Job, ServerError> {
        let options = &self.generation.options;
        let prompt = self.prompt.to_vec();
        let mut generation = model.text.generation(prompt, self.kind, options, constraint)?;
        if let Some(forbidden) = self.forbidden {
            generation.forbid(forbidden);
        }
        let sampling = &mut generation.sampling;
        sampling.seed = sampling.seed.wrapping_add(choice as u64);
        sampling.check(model.facts.vocabulary)?;
        generation.depth = options.drafts.unwrap_or(model.settings.depth);
        generation.cache = self.cache.clone();
        let request_id = Arc::clone(&self.generation.request_id);
        let AnswerOptions { tell_end, owner, .. } = *self.generation;
        Ok(Job { generation, tell_end, request_id, owner })
    }
}
