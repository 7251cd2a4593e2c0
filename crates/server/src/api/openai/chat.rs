//! `/v1/chat/completions`.

use super::chat_stream::ChatStream;
use super::extras::{Extras, ExtrasAsked};
use super::generation::{self, Streaming};
pub(crate) use super::messages;
use super::tools;
use crate::answer::{AnswerEvent, AnswerFinish, Answers, TokenUsage};
use crate::api::{JsonBody, RequestFields, RequestId, json, sse};
use crate::app::App;
use crate::auth::Caller;
use crate::chat::ChatRequest;
use crate::error::ServerError;
use crate::ids;
use crate::models::ModelUse;
use crate::wire::chat::{CalledFunction, ChatChoice, ChatCompletion, ChatMessage, ToolCall};
use crate::wire::logprobs::ChatLogprobs;
use crate::wire::receipt::ReceiptTimings;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::Ending;
use forerun_engine::TokenLogprobs;
use serde_json::json as value;
use std::sync::Arc;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let entry = app.find(body.fields.take("model")?)?;
    let (streaming, extras, mut request) = read(&mut body.fields)?;
    request.generation.request_id = request_id;
    request.generation.owner = caller.owner;
    let with_logprobs = request.generation.options.logprobs.is_some();
    let ignored = request.ignored.clone();
    let model = app.ready(&entry).await?;
    let answers = model.ask_chat(request).await?;
    drop(body);
    let extras = Extras::new(extras, answers.count(), answers.count());
    let response = if streaming.on {
        sse::response(&app, ChatStream::new(model, answers, extras, with_logprobs))
    } else {
        whole(&model, answers, extras, with_logprobs).await?
    };
    ignored.add_to_notes();
    Ok(response)
}

/// The request in neutral form.
fn read(fields: &mut RequestFields) -> Result<(Streaming, ExtrasAsked, ChatRequest), ServerError> {
    let streaming = generation::streaming(fields)?;
    let extras = ExtrasAsked::take(fields, streaming.usage)?;
    let continued = super::messages::continued(fields)?;
    let mut generation = generation::take(fields, &["max_tokens", "max_completion_tokens"])?;
    generation.options.logprobs = logprobs(fields)?;
    generation.tell_prompt = extras.ids;
    let mut messages = messages(fields)?
        .ok_or_else(|| ServerError::invalid("messages", "`messages` is missing"))?;
    let beginning = if continued { Some(super::messages::beginning(&mut messages)?) } else { None };
    let template_arguments = fields.take("chat_template_kwargs")?.unwrap_or_default();
    fields.only("modalities", &[value!(["text"])])?;
    let request = ChatRequest {
        tools: tools::tools(fields)?,
        tool_choice: tools::choice(fields)?,
        parallel_tool_calls: fields.take("parallel_tool_calls")?.unwrap_or(true),
        reasoning: tools::reasoning(fields)?,
        beginning,
        template_arguments,
        generation,
        ignored: fields.ignored.clone(),
        ..ChatRequest::new(messages)
    };
    fields.finish()?;
    Ok((streaming, extras, request))
}

/// Takes `logprobs` and `top_logprobs`.
fn logprobs(fields: &mut RequestFields) -> Result<Option<usize>, ServerError> {
    let on = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    if top.is_some_and(|top| top > generation::TOP_LOGPROBS) {
        let message = format!("`top_logprobs` is at most {}", generation::TOP_LOGPROBS);
        return Err(ServerError::invalid("top_logprobs", message));
    }
    if top.is_some_and(|top| top > 0) && !on {
        let message = "`top_logprobs` needs `logprobs: true`";
        return Err(ServerError::invalid("top_logprobs", message));
    }
    Ok(on.then_some(top.unwrap_or(0)))
}

/// What is known of one answer so far.
#[derive(Default)]
struct ChoiceProgress {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<Box<AnswerFinish>>,
}

async fn whole(
    model: &ModelUse,
    mut answers: Answers,
    mut extras: Extras,
    with_logprobs: bool,
) -> Result<Response, ServerError> {
    let mut parts: Vec<ChoiceProgress> = Vec::new();
    parts.resize_with(answers.count(), ChoiceProgress::default);
    while let Some(event) = answers.next().await {
        let (choice, event) = event?;
        match event {
            AnswerEvent::Started(_) => {}
            AnswerEvent::Tokens { ids, reasoning } => extras.tokens(choice, ids, reasoning),
            AnswerEvent::Reasoning(text) => parts[choice].reasoning.push_str(&text),
            AnswerEvent::Content { text, logprobs } => {
                parts[choice].content.push_str(&text);
                parts[choice].logprobs.extend(logprobs);
            }
            AnswerEvent::ToolCall { id, name, .. } => {
                let function = CalledFunction { name, arguments: String::new() };
                parts[choice].calls.push(ToolCall { id, kind: "function", function });
            }
            AnswerEvent::ToolArguments { index, delta } => {
                parts[choice].calls[index].function.arguments.push_str(&delta);
            }
            AnswerEvent::ToolEnd => {}
            AnswerEvent::Finished(finish) => parts[choice].finish = Some(finish),
        }
    }
    let mut timings = None;
    let mut told = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let finish = part.finish.expect("answers end only when each has finished");
        extras.finish(index, &finish);
        timings.get_or_insert_with(|| ReceiptTimings::from(&*finish));
        told.push(ChatChoice {
            index,
            logprobs: with_logprobs.then(|| ChatLogprobs::new(&model.tokenizer, &part.logprobs)),
            message: ChatMessage {
                role: "assistant",
                // An answer of calls alone has no text.
                content: Some(part.content).filter(|c| part.calls.is_empty() || !c.is_empty()),
                refusal: None,
                reasoning_content: Some(part.reasoning).filter(|text| !text.is_empty()),
                tool_calls: part.calls,
            },
            finish_reason: finish.reason(),
            stop_reason: stop_reason(&finish),
            token_ids: extras.take_ids(index),
        });
    }
    Ok(json(&ChatCompletion {
        id: &ids::fresh("chatcmpl-"),
        object: "chat.completion",
        created: ids::now(),
        model: &model.name,
        choices: told,
        prompt_token_ids: answers.prompts.pop(),
        usage: extras.whole().into(),
        timings: timings.expect("a request has at least one answer"),
    }))
}

/// The stop string that ended an answer.
pub(super) fn stop_reason(finish: &AnswerFinish) -> Option<String> {
    match &finish.end.ending {
        Ending::StopString(stop) => Some(stop.clone()),
        Ending::EndToken | Ending::Length | Ending::Cancelled => None,
    }
}

/// Counts an answer; several to one prompt count the prompt once.
pub(super) fn add_usage(sum: &mut TokenUsage, place_in_prompt: usize, usage: &TokenUsage) {
    let mut counted = *usage;
    if place_in_prompt > 0 {
        (counted.prompt_tokens, counted.cached_tokens) = (0, 0);
    }
    sum.add(&counted);
}
