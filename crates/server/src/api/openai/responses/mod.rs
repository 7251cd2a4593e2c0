//! `/v1/responses`: answers made of items. A conversation is sent whole each time, unless the operator lets it be kept.

mod input;
mod items;
mod request;
mod stream;
mod tools;

use crate::answer::{AnswerEvent, AnswerFinish, Answers};
use crate::api::{JsonBody, RequestId, json, sse};
use crate::app::App;
use crate::auth::{Caller, Owner};
use crate::error::ServerError;
use crate::ids;
use crate::models::ModelUse;
use crate::wire::receipt::ReceiptTimings;
use crate::wire::responses::{Echo, OutputItem, ResponseObject, Status};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::Ending;
use items::Items;
use request::{KeptConversation, ParsedRequest};
use serde_json::{Value, json as value};
use std::sync::Arc;
use stream::ResponseStream;
use tokio::sync::OwnedSemaphorePermit;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    Extension(caller): Extension<Caller>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let entry = app.find(body.fields.take("model")?)?;
    let store = app.responses.as_ref().map(|store| (store, caller.owner));
    let ParsedRequest { streaming, echo, names, kept, mut chat } =
        request::read(&mut body.fields, store)?;
    chat.generation.request_id = request_id;
    chat.generation.owner = caller.owner;
    let ignored = chat.ignored.clone();
    let model = app.ready(&entry).await?;
    let answers = model.ask_chat(chat).await?;
    let (page, items) =
        (Page::new(&app, model, echo)?.keeping(kept, caller.owner), Items::new(names));
    drop(body);
    let response = if streaming {
        sse::response(&app, ResponseStream::new(page, answers, items))
    } else {
        whole(&page, answers, items).await?
    };
    ignored.add_to_notes();
    Ok(response)
}

async fn whole(
    page: &Page,
    mut answers: Answers,
    mut items: Items,
) -> Result<Response, ServerError> {
    let mut finish = None;
    while let Some(event) = answers.next().await {
        match event?.1 {
            AnswerEvent::Finished(end) => finish = Some(end),
            part => items.take(part, &mut |_| {}),
        }
    }
    let finish = finish.expect("answers end only when each has finished");
    items.close(status(&finish), &mut |_| {});
    page.keep(&items.done);
    Ok(json(&page.finished(&items.done, &finish)))
}

/// What all views of one response have in common.
struct Page {
    app: Arc<App>,
    model: ModelUse,
    /// The response that this one goes on from.
    previous: Option<String>,
    /// What is kept with the answer, and whose it is.
    input: Option<Vec<Value>>,
    owner: Option<Owner>,
    id: String,
    created_at: u64,
    echo: Echo,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Page {
    fn new(app: &Arc<App>, model: ModelUse, echo: Echo) -> Result<Self, ServerError> {
        let (id, created_at) = (ids::fresh("resp_"), ids::now());
        let permit = app.memory.keep(&echo)?;
        let (app, previous, input, owner) = (Arc::clone(app), None, None, None);
        Ok(Self { app, model, previous, input, owner, id, created_at, echo, _permit: permit })
    }

    /// The same, kept when it is whole where that is wanted.
    fn keeping(self, kept: KeptConversation, owner: Option<Owner>) -> Self {
        Self { previous: kept.previous, input: kept.items, owner, ..self }
    }

    /// Keeps the conversation with its answer.
    fn keep(&self, output: &[OutputItem]) {
        if let (Some(store), Some(input)) = (&self.app.responses, &self.input) {
            let said = output.iter().filter_map(|item| serde_json::to_value(item).ok());
            store.put(self.owner, &self.id, input.iter().cloned().chain(said).collect());
        }
    }

    fn view<'a>(&'a self, status: Status, output: &'a [OutputItem]) -> ResponseObject<'a> {
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            error: None,
            incomplete_details: None,
            model: &self.model.name,
            output,
            echo: &self.echo,
            background: false,
            previous_response_id: self.previous.as_deref(),
            service_tier: "default",
            store: self.input.is_some(),
            truncation: "disabled",
            usage: None,
            timings: None,
        }
    }

    fn finished<'a>(
        &'a self,
        output: &'a [OutputItem],
        finish: &AnswerFinish,
    ) -> ResponseObject<'a> {
        let status = status(finish);
        let why = value!({"reason": "max_output_tokens"});
        ResponseObject {
            incomplete_details: (status == Status::Incomplete).then_some(why),
            usage: Some(finish.usage.into()),
            timings: Some(ReceiptTimings::from(finish)),
            ..self.view(status, output)
        }
    }

    fn failed<'a>(&'a self, output: &'a [OutputItem], error: &ServerError) -> ResponseObject<'a> {
        let error: Value = value!({"code": "server_error", "message": error.to_string()});
        ResponseObject { error: Some(error), ..self.view(Status::Failed, output) }
    }
}

fn status(finish: &AnswerFinish) -> Status {
    match finish.end.ending {
        Ending::Length | Ending::Cancelled => Status::Incomplete,
        Ending::EndToken | Ending::StopString(_) => Status::Completed,
    }
}
