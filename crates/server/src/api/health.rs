//! Whether the process lives, and whether it can answer now.

use crate::app::App;
use crate::error::ServerError;
use axum::extract::State;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// A step of a slow device may take this long.
const BOUND: Duration = Duration::from_secs(5);

/// The process answers.
pub(crate) async fn live() -> Response {
    super::json(&json!({"status": "live"}))
}

/// A token can be generated now: one was at start, and the engine's thread is at work.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ServerError> {
    if app.models.is_closed() {
        return Err(ServerError::Unavailable("the server is shutting down"));
    }
    // A model that is not loaded, or broke where it can be loaded again, is loaded when it is asked for.
    if !app.models.answer_within(BOUND).await {
        return Err(ServerError::Unavailable("the engine does not answer"));
    }
    Ok(super::json(&json!({"status": "ready"})))
}
