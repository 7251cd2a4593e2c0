//! `/v1/chat/completions`.

use super::chat_stream::ChatStream;
use super::generation::{self, Streaming};
pub(crate) use super::messages;
use crate::answer::{AnswerEvent, Answers, Finish, Usage};
use crate::api::{Fields, JsonBody, json, sse};
use crate::app::App;
use crate::chat::ChatRequest;
use crate::error::ServerError;
use crate::ids;
use crate::service::Ending;
use crate::wire::chat::{Answer, Choice, Completion};
use crate::wire::receipt::Timings;
use axum::extract::State;
use axum::response::Response;
use serde_json::json as value;
use std::sync::Arc;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    app.check_model(body.fields.take::<String>("model")?.as_deref())?;
    let (streaming, request) = read(&mut body.fields)?;
    let choices = request.generation.choices;
    let answers = app.ask_chat(request).await?;
    if streaming.on {
        let stream = ChatStream::new(&app, answers, choices, streaming.usage);
        return Ok(sse::response(&app, stream));
    }
    whole(&app, answers, choices).await
}

/// The request in neutral form.
fn read(fields: &mut Fields) -> Result<(Streaming, ChatRequest), ServerError> {
    let streaming = generation::streaming(fields)?;
    let generation = generation::take(fields, &["max_tokens", "max_completion_tokens"])?;
    let messages = messages(fields)?
        .ok_or_else(|| ServerError::invalid("messages", "`messages` is missing"))?;
    let template_arguments = fields.take("chat_template_kwargs")?.unwrap_or_default();
    fields.only("modalities", &[value!(["text"])])?;
    fields.only("response_format", &[value!({"type": "text"})])?;
    fields.finish()?;
    Ok((streaming, ChatRequest { messages, template_arguments, generation }))
}

/// What is known of one answer so far.
#[derive(Default)]
struct Part {
    content: String,
    finish: Option<Box<Finish>>,
}

async fn whole(app: &App, mut answers: Answers, choices: usize) -> Result<Response, ServerError> {
    let mut parts: Vec<Part> = Vec::new();
    parts.resize_with(choices, Part::default);
    while let Some(event) = answers.next().await {
        let (choice, event) = event?;
        match event {
            AnswerEvent::Content(text) => parts[choice].content.push_str(&text),
            AnswerEvent::Finished(finish) => parts[choice].finish = Some(finish),
        }
    }
    let mut usage = Usage::default();
    let mut timings = None;
    let mut told = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let finish = part.finish.expect("answers end only when each has finished");
        add_usage(&mut usage, index, &finish.usage);
        timings.get_or_insert_with(|| Timings::from(&*finish));
        told.push(Choice {
            index,
            message: Answer { role: "assistant", content: Some(part.content), refusal: None },
            logprobs: None,
            finish_reason: finish.reason(),
            stop_reason: stop_reason(&finish),
        });
    }
    Ok(json(&Completion {
        id: &ids::fresh("chatcmpl-"),
        object: "chat.completion",
        created: ids::now(),
        model: &app.model.name,
        choices: told,
        usage: usage.into(),
        timings: timings.expect("a request has at least one answer"),
    }))
}

/// The stop string that ended an answer.
pub(super) fn stop_reason(finish: &Finish) -> Option<String> {
    match &finish.end.ending {
        Ending::Stop(stop) => Some(stop.clone()),
        Ending::EndToken | Ending::Length => None,
    }
}

/// Counts an answer; several to one prompt count the prompt once.
pub(super) fn add_usage(sum: &mut Usage, place_in_prompt: usize, usage: &Usage) {
    let mut counted = *usage;
    if place_in_prompt > 0 {
        (counted.prompt_tokens, counted.cached_tokens) = (0, 0);
    }
    sum.add(&counted);
}
