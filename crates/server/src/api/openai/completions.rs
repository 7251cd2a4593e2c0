//! `/v1/completions`: text as it stands, continued.

use super::chat::stop_reason;
use super::echo::{Echo, EchoAsked};
use super::extras::{Extras, ExtrasAsked};
use super::generation;
use crate::answer::{AnswerEvent, AnswerFinish, Answers};
use crate::api::sse::{self, Outbox, Teller};
use crate::api::{JsonBody, RequestFields, RequestId, fields, json};
use crate::app::App;
use crate::auth::Caller;
use crate::chat::CompletionRequest;
use crate::error::{ErrorForm, ServerError};
use crate::ids;
use crate::models::ModelUse;
use crate::wire::completions::{TextChoice, TextCompletion};
use crate::wire::receipt::ReceiptTimings;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::PromptInput;
use serde_json::{Value, json as value};
use std::ops::Range;
use std::sync::Arc;

/// Answers are this long unless asked otherwise, as OpenAI's are.
const DEFAULT_TOKENS: usize = 16;
/// Most prompts of a request.
const PROMPTS: usize = 1024;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let streaming = generation::streaming(fields)?;
    let extras = ExtrasAsked::take(fields, streaming.usage)?;
    let echo = EchoAsked::take(fields)?;
    let mut generation = generation::take(fields, &["max_tokens"])?;
    generation.options.max_tokens.get_or_insert(DEFAULT_TOKENS);
    generation.options.logprobs = logprobs(fields, "logprobs")?;
    (generation.tell_end, generation.tell_prompt) = (echo.text, extras.ids);
    generation.request_id = request_id;
    generation.owner = caller.owner;
    let with_logprobs = generation.options.logprobs.is_some();
    let prompts = inputs(fields, "prompt")?;
    fields.only("best_of", &[value!(generation.choices)])?;
    fields.only("continue_final_message", &[value!(false)])?;
    fields.only("suffix", &[value!("")])?;
    fields.finish()?;
    let ignored = fields.ignored.clone();
    let per_prompt = generation.choices;
    let model = app.ready(&entry).await?;
    let (echoes, prompts) = echo.read(&model, prompts, generation.options.logprobs).await?;
    let count = prompts.len() * per_prompt;
    let answers = match echo.silent {
        true => Answers::none(),
        false => model.ask_completion(CompletionRequest { prompts, generation }).await?,
    };
    drop(body);
    let told = CompletionAnswers {
        model,
        offsets: vec![0; count],
        unopened: 0..count,
        answers,
        id: ids::fresh("cmpl-"),
        created: ids::now(),
        per_prompt,
        with_logprobs,
        echoes,
        silent: echo.silent,
        extras: Extras::new(extras, per_prompt, count),
    };
    let response = if streaming.on { sse::response(&app, told) } else { told.whole().await? };
    ignored.add_to_notes();
    Ok(response)
}

/// Takes how many of the likeliest tokens are told.
pub(super) fn logprobs(
    fields: &mut RequestFields,
    name: &str,
) -> Result<Option<usize>, ServerError> {
    let most = generation::TOP_LOGPROBS;
    match fields.take::<usize>(name)? {
        Some(top) if top > most => {
            Err(ServerError::invalid(name, format!("`{name}` is at most {most}")))
        }
        top => Ok(top),
    }
}

/// A text, a list of texts, token ids, or lists of token ids.
pub(super) fn inputs(
    fields: &mut RequestFields,
    name: &str,
) -> Result<Vec<PromptInput>, ServerError> {
    let prompts = match fields.need(name)? {
        Value::String(text) => vec![PromptInput::Text(text)],
        Value::Array(items) if items.iter().all(Value::is_string) => items
            .into_iter()
            .map(|item| fields::read(name, item).map(PromptInput::Text))
            .collect::<Result<_, _>>()?,
        Value::Array(items) if items.iter().all(Value::is_array) => items
            .into_iter()
            .map(|item| fields::read(name, item).map(PromptInput::Tokens))
            .collect::<Result<_, _>>()?,
        other => vec![PromptInput::Tokens(fields::read(name, other)?)],
    };
    if prompts.is_empty() || prompts.len() > PROMPTS {
        let message = format!("`{name}` has {} prompts; give 1 to {PROMPTS}", prompts.len());
        return Err(ServerError::invalid(name, message));
    }
    Ok(prompts)
}

/// The answers and how they are told.
struct CompletionAnswers {
    model: ModelUse,
    answers: Answers,
    id: String,
    created: u64,
    /// Answers to each prompt.
    per_prompt: usize,
    with_logprobs: bool,
    /// Answers whose prompt is not told yet.
    unopened: Range<usize>,
    /// Prompts that are told back.
    echoes: Vec<Echo>,
    /// Whether prompts get no answers.
    silent: bool,
    /// Where in each answer the next token with log-probabilities begins.
    offsets: Vec<usize>,
    extras: Extras,
}

impl CompletionAnswers {
    fn completion(&self, choices: Vec<TextChoice>) -> TextCompletion<'_> {
        TextCompletion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model.name,
            usage: self.extras.chunk_usage(choices.first().map(|choice| choice.index)),
            choices,
            timings: None,
        }
    }

    /// A choice with what is told of its prompt.
    fn open(&mut self, index: usize) -> TextChoice {
        let mut choice = TextChoice { index, ..TextChoice::default() };
        let prompt = index / self.per_prompt;
        if let Some(echo) = self.echoes.get(prompt) {
            self.offsets[index] = echo.tell(&self.model.tokenizer, &mut choice);
            if self.silent {
                self.extras.read_only(index, echo.tokens.len());
                choice.finish_reason = Some("length");
            }
            choice.prompt_token_ids = self.extras.tells_ids().then(|| echo.tokens.clone());
        } else {
            choice.prompt_token_ids = self.answers.prompts.get(prompt).cloned();
        }
        choice
    }

    /// Adds what is known of an answer to a choice; its finish, if it is over.
    fn take(&mut self, choice: &mut TextChoice, event: AnswerEvent) -> Option<Box<AnswerFinish>> {
        match event {
            AnswerEvent::Content { text, logprobs } => {
                choice.text.push_str(&text);
                if self.with_logprobs {
                    let told = choice.logprobs.get_or_insert_default();
                    let offset = &mut self.offsets[choice.index];
                    *offset = told.add(&self.model.tokenizer, &logprobs, *offset);
                }
                None
            }
            AnswerEvent::Finished(finish) => {
                self.finished(choice, &finish);
                Some(finish)
            }
            AnswerEvent::Started(usage) => {
                self.extras.start(choice.index, usage);
                None
            }
            AnswerEvent::Tokens { ids, reasoning } => {
                self.extras.tokens(choice.index, ids, reasoning);
                None
            }
            // Nothing is told apart where no template wrote the prompt.
            AnswerEvent::Reasoning(_)
            | AnswerEvent::ToolCall { .. }
            | AnswerEvent::ToolArguments { .. }
            | AnswerEvent::ToolEnd => None,
        }
    }

    fn finished(&mut self, choice: &mut TextChoice, finish: &AnswerFinish) {
        self.extras.finish(choice.index, finish);
        choice.finish_reason = Some(finish.reason());
        choice.stop_reason = stop_reason(finish);
    }

    async fn whole(mut self) -> Result<Response, ServerError> {
        let mut told: Vec<TextChoice> =
            self.unopened.clone().map(|index| self.open(index)).collect();
        if self.with_logprobs {
            // An answer without any text has log-probabilities all the same: none.
            for choice in &mut told {
                choice.logprobs.get_or_insert_default();
            }
        }
        let mut timings = None;
        while let Some(event) = self.answers.next().await {
            let (index, event) = event?;
            if let Some(finish) = self.take(&mut told[index], event) {
                timings.get_or_insert_with(|| ReceiptTimings::from(&*finish));
            }
        }
        for choice in &mut told {
            choice.token_ids = self.extras.take_ids(choice.index);
        }
        let usage = Some(Some(self.extras.whole().into()));
        Ok(json(&TextCompletion { usage, timings, ..self.completion(told) }))
    }
}

impl Teller for CompletionAnswers {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        if self.echoes.is_empty() && self.answers.prompts.is_empty() {
            self.unopened = 0..0;
        }
        if let Some(index) = self.unopened.next() {
            let choice = self.open(index);
            out.json(&self.completion(vec![choice]));
            return true;
        }
        match self.answers.next().await {
            Some(Ok((index, event))) => {
                let silent = matches!(event, AnswerEvent::Started(_) | AnswerEvent::Tokens { .. });
                let mut choice = TextChoice { index, ..TextChoice::default() };
                let finish = self.take(&mut choice, event);
                if silent {
                    return true;
                }
                choice.token_ids = self.extras.take_ids(index);
                let timings = finish.map(|finish| ReceiptTimings::from(&*finish));
                out.json(&TextCompletion { timings, ..self.completion(vec![choice]) });
                return true;
            }
            Some(Err(error)) => out.json(&error.body(ErrorForm::OpenAi, "")),
            None => {
                if let Some(usage) = self.extras.last_usage() {
                    let usage = Some(Some(usage));
                    out.json(&TextCompletion { usage, ..self.completion(Vec::new()) });
                }
                out.text("[DONE]");
            }
        }
        false
    }
}
