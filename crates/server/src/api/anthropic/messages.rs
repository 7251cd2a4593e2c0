//! `/v1/messages`.

use super::stream::MessageStream;
use super::{partial, request};
use crate::answer::{AnswerEvent, AnswerFinish, Answers};
use crate::api::{JsonBody, RequestId, json, sse};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ServerError;
use crate::ids;
use crate::models::ModelUse;
use crate::wire::anthropic::{MessageResponse, ResponseBlock};
use crate::wire::receipt::ReceiptTimings;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::Ending;
use serde_json::Value;
use std::sync::Arc;

/// Reasoning is not signed here; clients want something to send back.
pub(super) const SIGNATURE: &str = "unsigned";

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let entry = app.find(fields.take("model")?)?;
    let streaming = fields.take("stream")?.unwrap_or(false);
    let mut request = request::prompt(fields)?;
    request::answer(fields, &mut request)?;
    fields.finish()?;
    request.generation.request_id = request_id;
    request.generation.owner = caller.owner;
    let ignored = request.ignored.clone();
    let model = app.ready(&entry).await?;
    let answers = model.ask_chat(request).await?;
    drop(body);
    let response = if streaming {
        sse::response(&app, MessageStream::new(model, answers))
    } else {
        whole(&model, answers).await?
    };
    ignored.add_to_notes();
    Ok(response)
}

async fn whole(model: &ModelUse, mut answers: Answers) -> Result<Response, ServerError> {
    let mut blocks = Blocks::default();
    let mut finish = None;
    while let Some(event) = answers.next().await {
        match event?.1 {
            AnswerEvent::Finished(end) => finish = Some(end),
            part => blocks.take(part),
        }
    }
    let finish = finish.expect("answers end only when each has finished");
    Ok(json(&MessageResponse {
        id: &ids::fresh("msg_"),
        kind: "message",
        role: "assistant",
        model: &model.name,
        content: blocks.finish(),
        stop_reason: Some(stop_reason(&finish)),
        stop_sequence: stop_sequence(&finish),
        usage: finish.usage.into(),
        timings: Some(ReceiptTimings::from(&*finish)),
    }))
}

/// Why an answer ended, in this API's words.
pub(super) fn stop_reason(finish: &AnswerFinish) -> &'static str {
    match finish.end.ending {
        Ending::EndToken if finish.calls > 0 => "tool_use",
        Ending::EndToken => "end_turn",
        Ending::StopString(_) => "stop_sequence",
        Ending::Length | Ending::Cancelled => "max_tokens",
    }
}

pub(super) fn stop_sequence(finish: &AnswerFinish) -> Option<String> {
    match &finish.end.ending {
        Ending::StopString(stop) => Some(stop.clone()),
        Ending::EndToken | Ending::Length | Ending::Cancelled => None,
    }
}

/// Blocks as they fill.
#[derive(Default)]
struct Blocks {
    done: Vec<ResponseBlock>,
    /// JSON text of the call that is last.
    arguments: Option<String>,
}

impl Blocks {
    fn take(&mut self, part: AnswerEvent) {
        match (part, self.done.last_mut()) {
            (AnswerEvent::Reasoning(text), Some(ResponseBlock::Thinking { thinking, .. })) => {
                thinking.push_str(&text);
            }
            (AnswerEvent::Reasoning(thinking), _) => {
                self.close_call();
                self.done
                    .push(ResponseBlock::Thinking { thinking, signature: SIGNATURE.to_owned() });
            }
            (AnswerEvent::Content { text: more, .. }, Some(ResponseBlock::Text { text })) => {
                text.push_str(&more)
            }
            (AnswerEvent::Content { text, .. }, _) => {
                self.close_call();
                self.done.push(ResponseBlock::Text { text });
            }
            (AnswerEvent::ToolCall { id, name, .. }, _) => {
                self.close_call();
                self.done.push(ResponseBlock::ToolUse { id, name, input: Value::Null });
                self.arguments = Some(String::new());
            }
            (AnswerEvent::ToolArguments { delta, .. }, _) => {
                self.arguments.get_or_insert_default().push_str(&delta);
            }
            (
                AnswerEvent::Started(_)
                | AnswerEvent::Tokens { .. }
                | AnswerEvent::ToolEnd
                | AnswerEvent::Finished(_),
                _,
            ) => {}
        }
    }

    fn close_call(&mut self) {
        if let (Some(text), Some(ResponseBlock::ToolUse { input, .. })) =
            (self.arguments.take(), self.done.last_mut())
        {
            *input = partial::object(&text);
        }
    }

    fn finish(mut self) -> Vec<ResponseBlock> {
        self.close_call();
        self.done
    }
}
