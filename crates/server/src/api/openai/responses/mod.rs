//! `/v1/responses`: answers made of items. Nothing is stored, so a conversation is sent whole each time.

mod input;
mod items;
mod request;
mod stream;
mod tools;

use crate::answer::{AnswerEvent, AnswerFinish, Answers};
use crate::api::{JsonBody, RequestId, json, sse};
use crate::app::App;
use crate::auth::Caller;
use crate::error::ServerError;
use crate::ids;
use crate::wire::receipt::ReceiptTimings;
use crate::wire::responses::{Echo, OutputItem, ResponseObject, Status};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use forerun::Ending;
use items::Items;
use request::ParsedRequest;
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
    app.check_model(body.fields.take::<String>("model")?.as_deref())?;
    let ParsedRequest { streaming, echo, names, mut chat } = request::read(&mut body.fields)?;
    chat.generation.request_id = request_id;
    chat.generation.owner = caller.owner;
    let ignored = chat.ignored.clone();
    let answers = app.ask_chat(chat).await?;
    let (page, items) = (Page::new(&app, echo)?, Items::new(names));
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
    Ok(json(&page.finished(&items.done, &finish)))
}

/// What all views of one response have in common.
struct Page {
    app: Arc<App>,
    id: String,
    created_at: u64,
    echo: Echo,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Page {
    fn new(app: &Arc<App>, echo: Echo) -> Result<Self, ServerError> {
        let (id, created_at) = (ids::fresh("resp_"), ids::now());
        let permit = app.memory.keep(&echo)?;
        Ok(Self { app: Arc::clone(app), id, created_at, echo, _permit: permit })
    }

    fn view<'a>(&'a self, status: Status, output: &'a [OutputItem]) -> ResponseObject<'a> {
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            error: None,
            incomplete_details: None,
            model: &self.app.model.name,
            output,
            echo: &self.echo,
            background: false,
            previous_response_id: None,
            service_tier: "default",
            store: false,
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
