//! `/v1/messages/count_tokens`.

use super::request;
use crate::api::{JsonBody, json};
use crate::app::{App, on_the_side};
use crate::error::ServerError;
use crate::prepare;
use crate::wire::anthropic::TokenCount;
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;

pub(crate) async fn count(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let entry = app.find(body.fields.take("model")?)?;
    let request = request::prompt(&mut body.fields)?;
    body.fields.finish()?;
    let (side, ignored) = (app.ready(&entry).await?, request.ignored.clone());
    let tokens = on_the_side(move || prepare::chat_prompt(&side, &request)).await?;
    ignored.add_to_notes();
    Ok(json(&TokenCount { input_tokens: tokens.len() }))
}
