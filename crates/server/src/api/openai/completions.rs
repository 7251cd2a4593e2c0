//! `/v1/completions`: text as it stands, continued.

use super::chat::{add_usage, stop_reason};
use super::generation;
use crate::answer::{AnswerEvent, Answers, Finish, Usage};
use crate::api::sse::{self, Outbox, Teller};
use crate::api::{Fields, JsonBody, fields, json};
use crate::app::App;
use crate::chat::{CompletionRequest, Prompt};
use crate::error::{Form, ServerError};
use crate::ids;
use crate::wire::completions::{Choice, Completion};
use crate::wire::receipt::Timings;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json as value};
use std::sync::Arc;

/// Answers are this long unless asked otherwise, as OpenAI's are.
const DEFAULT_TOKENS: usize = 16;
/// Most prompts of a request.
const PROMPTS: usize = 1024;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    let streaming = generation::streaming(fields)?;
    let mut generation = generation::take(fields, &["max_tokens"])?;
    generation.max_tokens.get_or_insert(DEFAULT_TOKENS);
    let prompts = prompts(fields)?;
    fields.only("best_of", &[value!(generation.choices)])?;
    fields.only("echo", &[value!(false)])?;
    fields.only("suffix", &[value!("")])?;
    fields.finish()?;
    let (per_prompt, choices) = (generation.choices, prompts.len() * generation.choices);
    let answers = app.ask_completion(CompletionRequest { prompts, generation }).await?;
    let told = Told {
        app: Arc::clone(&app),
        answers,
        id: ids::fresh("cmpl-"),
        created: ids::now(),
        per_prompt,
        with_usage: streaming.usage,
        usage: Usage::default(),
    };
    if streaming.on {
        return Ok(sse::response(&app, told));
    }
    told.whole(choices).await
}

/// A text, a list of texts, token ids, or lists of token ids.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ServerError> {
    let prompts = match fields.need("prompt")? {
        Value::String(text) => vec![Prompt::Text(text)],
        Value::Array(items) if items.iter().all(Value::is_string) => items
            .into_iter()
            .map(|item| fields::read("prompt", item).map(Prompt::Text))
            .collect::<Result<_, _>>()?,
        Value::Array(items) if items.iter().all(Value::is_array) => items
            .into_iter()
            .map(|item| fields::read("prompt", item).map(Prompt::Tokens))
            .collect::<Result<_, _>>()?,
        other => vec![Prompt::Tokens(fields::read("prompt", other)?)],
    };
    if prompts.is_empty() || prompts.len() > PROMPTS {
        let message = format!("`prompt` has {} prompts; give 1 to {PROMPTS}", prompts.len());
        return Err(ServerError::invalid("prompt", message));
    }
    Ok(prompts)
}

/// The answers and how they are told.
struct Told {
    app: Arc<App>,
    answers: Answers,
    id: String,
    created: u64,
    /// Answers to each prompt.
    per_prompt: usize,
    with_usage: bool,
    usage: Usage,
}

impl Told {
    fn completion(&self, choices: Vec<Choice>) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.app.model.name,
            choices,
            usage: self.with_usage.then_some(None),
            timings: None,
        }
    }

    fn finished(&mut self, index: usize, finish: &Finish) -> Choice {
        add_usage(&mut self.usage, index % self.per_prompt, &finish.usage);
        Choice {
            index,
            finish_reason: Some(finish.reason()),
            stop_reason: stop_reason(finish),
            ..Choice::default()
        }
    }

    async fn whole(mut self, choices: usize) -> Result<Response, ServerError> {
        let mut told: Vec<Choice> =
            (0..choices).map(|index| Choice { index, ..Choice::default() }).collect();
        let mut timings = None;
        while let Some(event) = self.answers.next().await {
            let (index, event) = event?;
            match event {
                AnswerEvent::Content(text) => told[index].text.push_str(&text),
                AnswerEvent::Finished(finish) => {
                    let text = std::mem::take(&mut told[index].text);
                    told[index] = Choice { text, ..self.finished(index, &finish) };
                    timings.get_or_insert_with(|| Timings::from(&*finish));
                }
            }
        }
        let usage = Some(Some(self.usage.into()));
        Ok(json(&Completion { usage, timings, ..self.completion(told) }))
    }
}

impl Teller for Told {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        match self.answers.next().await {
            Some(Ok((index, AnswerEvent::Content(text)))) => {
                out.json(&self.completion(vec![Choice { index, text, ..Choice::default() }]));
                return true;
            }
            Some(Ok((index, AnswerEvent::Finished(finish)))) => {
                let choice = self.finished(index, &finish);
                let timings = Some(Timings::from(&*finish));
                out.json(&Completion { timings, ..self.completion(vec![choice]) });
                return true;
            }
            Some(Err(error)) => out.json(&error.body(Form::OpenAi, "")),
            None if self.with_usage => {
                let usage = Some(Some(self.usage.into()));
                out.json(&Completion { usage, ..self.completion(Vec::new()) });
                out.text("[DONE]");
            }
            None => out.text("[DONE]"),
        }
        false
    }
}
