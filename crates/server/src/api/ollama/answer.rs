//! `/api/chat` and `/api/generate`: an answer in lines of JSON, or in one object.

use super::request::{self, Asked, AskedPrompt};
use super::time::stamp;
use crate::answer::{AnswerEvent, AnswerFinish, Answers};
use crate::api::sse::{self, Outbox, Teller};
use crate::api::{JsonBody, RequestId, json};
use crate::app::App;
use crate::auth::Caller;
use crate::chat::{AnswerOptions, ChatRequest, CompletionRequest};
use crate::error::{ErrorForm, ServerError};
use crate::models::ModelUse;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use forerun::PromptInput;
use serde_json::{Map, Value, json as value};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Chat,
    Generate,
}

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    body: JsonBody,
) -> Result<Response, ServerError> {
    answer(&app, (id, caller), body, Form::Chat).await
}

pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    body: JsonBody,
) -> Result<Response, ServerError> {
    answer(&app, (id, caller), body, Form::Generate).await
}

async fn answer(
    app: &App,
    (RequestId(request_id), caller): (RequestId, Caller),
    mut body: JsonBody,
    form: Form,
) -> Result<Response, ServerError> {
    let began = Instant::now();
    let fields = &mut body.fields;
    let name: String = fields.need("model")?;
    let entry = super::find(app, Some(name.clone()))?;
    let Asked { stream, keep_alive, prompt } = match form {
        Form::Chat => request::chat(fields)?,
        Form::Generate => request::generate(fields)?,
    };
    if keep_alive.is_some() && !entry.comes_and_goes() {
        fields.ignored("keep_alive")?;
    }
    let ignored = fields.ignored.clone();
    let goes = keep_alive == Some(Some(Duration::ZERO));
    if goes && matches!(prompt, AskedPrompt::Nothing) {
        app.models.unload(&entry).await?;
        ignored.add_to_notes();
        return Ok(nothing(&name, form, "unload"));
    }
    let model = app.ready(&entry).await?;
    let loading = began.elapsed();
    model.stay(keep_alive.unwrap_or(app.settings.unload_after));
    let finish_options = |generation: &mut AnswerOptions| {
        generation.request_id = Arc::clone(&request_id);
        generation.owner = caller.owner;
    };
    let answers = match or_raw(&model, prompt, form) {
        AskedPrompt::Nothing => {
            ignored.add_to_notes();
            return Ok(nothing(&name, form, "load"));
        }
        AskedPrompt::Raw(text, mut generation) => {
            finish_options(&mut generation);
            let (prompts, generation) = (vec![PromptInput::Text(text)], *generation);
            model.ask_completion(CompletionRequest { prompts, generation }).await?
        }
        AskedPrompt::Chat(mut request) => {
            finish_options(&mut request.generation);
            model.ask_chat(*request).await?
        }
    };
    drop(body);
    let told = OllamaAnswer { _model: model, name, form, began, loading, answers, call: None };
    let response = if stream { sse::lines(told) } else { told.whole().await? };
    ignored.add_to_notes();
    Ok(response)
}

/// A prompt for a model without a template is read as it stands.
fn or_raw(model: &ModelUse, prompt: AskedPrompt, form: Form) -> AskedPrompt {
    match prompt {
        AskedPrompt::Chat(request)
            if form == Form::Generate
                && matches!(model.text.chat(), Err(forerun::Error::NoTemplate)) =>
        {
            let ChatRequest { messages, generation, .. } = *request;
            let text = messages.iter().filter_map(|message| message["content"].as_str());
            AskedPrompt::Raw(text.collect::<Vec<_>>().join("\n\n"), Box::new(generation))
        }
        other => other,
    }
}

/// What is told where nothing was to be continued.
fn nothing(name: &str, form: Form, reason: &str) -> Response {
    let mut line = line(name, form, Said::default());
    line["done"] = true.into();
    line["done_reason"] = reason.into();
    json(&line)
}

/// Part of an answer.
#[derive(Default)]
struct Said {
    text: String,
    thinking: String,
    calls: Vec<Value>,
}

fn line(name: &str, form: Form, said: Said) -> Value {
    let mut message = Map::new();
    let text = if form == Form::Chat { "content" } else { "response" };
    message.insert(text.to_owned(), said.text.into());
    if !said.thinking.is_empty() {
        message.insert("thinking".to_owned(), said.thinking.into());
    }
    if !said.calls.is_empty() {
        message.insert("tool_calls".to_owned(), said.calls.into());
    }
    let mut line = value!({"model": name, "created_at": stamp(SystemTime::now())});
    match form {
        Form::Chat => {
            message.insert("role".to_owned(), "assistant".into());
            line["message"] = message.into();
        }
        Form::Generate => {
            line.as_object_mut().expect("written as an object").extend(message);
        }
    }
    line["done"] = false.into();
    line
}

/// An answer and how it is told.
struct OllamaAnswer {
    /// Held until the answer is out.
    _model: ModelUse,
    name: String,
    form: Form,
    began: Instant,
    loading: Duration,
    answers: Answers,
    /// The call that is being made: its name and arguments so far.
    call: Option<(String, String)>,
}

impl OllamaAnswer {
    /// What an event says, if it says something; a call when it is whole.
    fn said(&mut self, event: AnswerEvent) -> Option<Said> {
        match event {
            AnswerEvent::Reasoning(thinking) => Some(Said { thinking, ..Said::default() }),
            AnswerEvent::Content { text, .. } => Some(Said { text, ..Said::default() }),
            AnswerEvent::ToolCall { name, .. } => {
                self.call = Some((name, String::new()));
                None
            }
            AnswerEvent::ToolArguments { delta, .. } => {
                self.call.iter_mut().for_each(|(_, arguments)| arguments.push_str(&delta));
                None
            }
            AnswerEvent::ToolEnd => {
                let (name, arguments) = self.call.take()?;
                let arguments: Value = serde_json::from_str(&arguments).unwrap_or_default();
                let call = value!({"function": {"name": name, "arguments": arguments}});
                Some(Said { calls: vec![call], ..Said::default() })
            }
            AnswerEvent::Started(_) | AnswerEvent::Tokens { .. } | AnswerEvent::Finished(_) => None,
        }
    }

    fn last(&self, said: Said, finish: &AnswerFinish) -> Value {
        let mut line = line(&self.name, self.form, said);
        let (times, usage) = (&finish.end.times, &finish.usage);
        let nanoseconds = |time: Duration| Value::from(time.as_nanos() as u64);
        line["done"] = true.into();
        line["done_reason"] = finish.end.ending.reason().into();
        line["total_duration"] = nanoseconds(self.began.elapsed());
        line["load_duration"] = nanoseconds(self.loading);
        line["prompt_eval_count"] = usage.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(times.first_token.saturating_sub(times.started));
        line["eval_count"] = usage.completion_tokens.into();
        line["eval_duration"] = nanoseconds(times.end.saturating_sub(times.first_token));
        line
    }

    async fn whole(mut self) -> Result<Response, ServerError> {
        let (mut all, mut finish) = (Said::default(), None);
        while let Some(event) = self.answers.next().await {
            match event?.1 {
                AnswerEvent::Finished(end) => finish = Some(end),
                event => {
                    let said = self.said(event).unwrap_or_default();
                    all.text.push_str(&said.text);
                    all.thinking.push_str(&said.thinking);
                    all.calls.extend(said.calls);
                }
            }
        }
        let finish = finish.expect("answers end only when each has finished");
        Ok(json(&self.last(all, &finish)))
    }
}

impl Teller<Bytes> for OllamaAnswer {
    async fn more(&mut self, out: &mut Outbox<Bytes>) -> bool {
        match self.answers.next().await {
            Some(Ok((_, AnswerEvent::Finished(finish)))) => {
                out.line(&self.last(Said::default(), &finish));
            }
            Some(Ok((_, event))) => {
                if let Some(said) = self.said(event) {
                    out.line(&line(&self.name, self.form, said));
                }
                return true;
            }
            Some(Err(error)) => out.line(&error.body(ErrorForm::Ollama, "")),
            None => {}
        }
        false
    }
}
