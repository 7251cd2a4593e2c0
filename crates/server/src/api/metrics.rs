//! Numbers for Prometheus.

use crate::app::App;
use crate::error::ServerError;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

const FORM: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ServerError> {
    let broken = |_| ServerError::Failed("cannot write the metrics".to_owned());
    let text = app.metrics.text(&app.models).map_err(broken)?;
    Ok(([(header::CONTENT_TYPE, FORM)], text).into_response())
}
