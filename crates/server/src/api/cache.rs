//! What the prefix cache did for the latest requests: why a miss, and where a prompt first differs.

use crate::app::App;
use crate::error::ServerError;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn all(State(app): State<Arc<App>>) -> Response {
    super::json(&json!({"requests": app.looks.of(None)}))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(request_id): Path<String>,
) -> Result<Response, ServerError> {
    let looks = app.looks.of(Some(&request_id));
    if looks.is_empty() {
        let request_id = crate::app::shortened(&request_id);
        return Err(ServerError::UnknownRequest { request_id });
    }
    Ok(super::json(&json!({"requests": looks})))
}
