//! `/v1/completions`: text as it stands, continued.

use super::chat::{add_usage, stop_reason};
use super::generation;
use crate::answer::{AnswerEvent, AnswerFinish, Answers, TokenUsage};
use crate::api::sse::{self, Outbox, Teller};
use crate::api::{JsonBody, RequestFields, RequestId, fields, json};
use crate::app::App;
use crate::auth::Caller;
use crate::chat::CompletionRequest;
use crate::error::{ErrorForm, ServerError};
use crate::ids;
use crate::wire::completions::{TextChoice, TextCompletion};
use crate::wire::logprobs::TextLogprobs;
use crate::wire::receipt::ReceiptTimings;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::PromptInput;
use serde_json::{Value, json as value};
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
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    let streaming = generation::streaming(fields)?;
    let mut generation = generation::take(fields, &["max_tokens"])?;
    generation.options.max_tokens.get_or_insert(DEFAULT_TOKENS);
    generation.options.logprobs = fields.take("logprobs")?;
    if generation.options.logprobs.is_some_and(|top| top > generation::TOP_LOGPROBS) {
        let message = format!("`logprobs` is at most {}", generation::TOP_LOGPROBS);
        return Err(ServerError::invalid("logprobs", message));
    }
    generation.request_id = request_id;
    generation.owner = caller.owner;
    let with_logprobs = generation.options.logprobs.is_some();
    let prompts = prompts(fields)?;
    fields.only("best_of", &[value!(generation.choices)])?;
    fields.only("echo", &[value!(false)])?;
    fields.only("continue_final_message", &[value!(false)])?;
    fields.only("suffix", &[value!("")])?;
    fields.finish()?;
    let ignored = fields.ignored.clone();
    let per_prompt = generation.choices;
    let answers = app.ask_completion(CompletionRequest { prompts, generation }).await?;
    drop(body);
    let told = CompletionAnswers {
        app: Arc::clone(&app),
        offsets: vec![0; answers.count()],
        answers,
        id: ids::fresh("cmpl-"),
        created: ids::now(),
        per_prompt,
        with_usage: streaming.usage,
        with_logprobs,
        usage: TokenUsage::default(),
    };
    let response = if streaming.on { sse::response(&app, told) } else { told.whole().await? };
    ignored.add_to_notes();
    Ok(response)
}

/// A text, a list of texts, token ids, or lists of token ids.
fn prompts(fields: &mut RequestFields) -> Result<Vec<PromptInput>, ServerError> {
    let prompts = match fields.need("prompt")? {
        Value::String(text) => vec![PromptInput::Text(text)],
        Value::Array(items) if items.iter().all(Value::is_string) => items
            .into_iter()
            .map(|item| fields::read("prompt", item).map(PromptInput::Text))
            .collect::<Result<_, _>>()?,
        Value::Array(items) if items.iter().all(Value::is_array) => items
            .into_iter()
            .map(|item| fields::read("prompt", item).map(PromptInput::Tokens))
            .collect::<Result<_, _>>()?,
        other => vec![PromptInput::Tokens(fields::read("prompt", other)?)],
    };
    if prompts.is_empty() || prompts.len() > PROMPTS {
        let message = format!("`prompt` has {} prompts; give 1 to {PROMPTS}", prompts.len());
        return Err(ServerError::invalid("prompt", message));
    }
    Ok(prompts)
}

/// The answers and how they are told.
struct CompletionAnswers {
    app: Arc<App>,
    answers: Answers,
    id: String,
    created: u64,
    /// Answers to each prompt.
    per_prompt: usize,
    with_usage: bool,
    with_logprobs: bool,
    /// Where in each answer the next token with log-probabilities begins.
    offsets: Vec<usize>,
    usage: TokenUsage,
}

impl CompletionAnswers {
    fn completion(&self, choices: Vec<TextChoice>) -> TextCompletion<'_> {
        TextCompletion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.app.model.name,
            choices,
            usage: self.with_usage.then_some(None),
            timings: None,
        }
    }

    /// Adds what is known of an answer to a choice; its finish, if it is over.
    fn take(&mut self, choice: &mut TextChoice, event: AnswerEvent) -> Option<Box<AnswerFinish>> {
        match event {
            AnswerEvent::Content { text, logprobs } => {
                choice.text.push_str(&text);
                if self.with_logprobs {
                    let told = choice.logprobs.get_or_insert_default();
                    let offset = &mut self.offsets[choice.index];
                    *offset = told.add(&self.app.tokenizer, &logprobs, *offset);
                }
                None
            }
            AnswerEvent::Finished(finish) => {
                self.finished(choice, &finish);
                Some(finish)
            }
            // Nothing is told apart where no template wrote the prompt.
            AnswerEvent::Started(_)
            | AnswerEvent::Reasoning(_)
            | AnswerEvent::ToolCall { .. }
            | AnswerEvent::ToolArguments { .. }
            | AnswerEvent::ToolEnd => None,
        }
    }

    fn finished(&mut self, choice: &mut TextChoice, finish: &AnswerFinish) {
        add_usage(&mut self.usage, choice.index % self.per_prompt, &finish.usage);
        choice.finish_reason = Some(finish.reason());
        choice.stop_reason = stop_reason(finish);
    }

    async fn whole(mut self) -> Result<Response, ServerError> {
        // An answer without any text has log-probabilities all the same: none.
        let logprobs = || self.with_logprobs.then(TextLogprobs::default);
        let choice = |index| TextChoice { index, logprobs: logprobs(), ..TextChoice::default() };
        let mut told: Vec<TextChoice> = (0..self.answers.count()).map(choice).collect();
        let mut timings = None;
        while let Some(event) = self.answers.next().await {
            let (index, event) = event?;
            if let Some(finish) = self.take(&mut told[index], event) {
                timings.get_or_insert_with(|| ReceiptTimings::from(&*finish));
            }
        }
        let usage = Some(Some(self.usage.into()));
        Ok(json(&TextCompletion { usage, timings, ..self.completion(told) }))
    }
}

impl Teller for CompletionAnswers {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        match self.answers.next().await {
            Some(Ok((_, AnswerEvent::Started(_)))) => return true,
            Some(Ok((index, event))) => {
                let mut choice = TextChoice { index, ..TextChoice::default() };
                let finish = self.take(&mut choice, event);
                let timings = finish.map(|finish| ReceiptTimings::from(&*finish));
                out.json(&TextCompletion { timings, ..self.completion(vec![choice]) });
                return true;
            }
            Some(Err(error)) => out.json(&error.body(ErrorForm::OpenAi, "")),
            None if self.with_usage => {
                let usage = Some(Some(self.usage.into()));
                out.json(&TextCompletion { usage, ..self.completion(Vec::new()) });
                out.text("[DONE]");
            }
            None => out.text("[DONE]"),
        }
        false
    }
}
