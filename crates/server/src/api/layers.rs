//! Around every request: its id, its key, its error in the form of its API, its line in the log.

use super::ignored;
use crate::app::App;
use crate::error::{Form, ServerError};
use crate::ids;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Instant;

/// The name of a request, its client's own or one we gave it.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) Arc<str>);

const REQUEST_ID: &str = "x-request-id";
/// What Anthropic's clients look for.
const ANTHROPIC_REQUEST_ID: &str = "request-id";
/// Longest name a client may give a request.
const LONGEST_ID: usize = 128;

/// Lets in who has a key.
pub(crate) async fn let_in(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.keys.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Gives the request a name, and an error its body.
pub(crate) async fn name_and_explain(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    request.extensions_mut().insert(RequestId(Arc::clone(&id)));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = super::notes::noting(next.run(request)).await;
    let error = response.extensions_mut().remove::<ServerError>();
    if let Some(error) = &error {
        let body = error.body(Form::of(&path), &id).to_string();
        *response.body_mut() = Body::from(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.remove(header::CONTENT_LENGTH);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        let headers = response.headers_mut();
        if Form::of(&path) == Form::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, value.clone());
        }
        headers.insert(REQUEST_ID, value);
    }
    let (status, ms) = (response.status().as_u16(), started.elapsed().as_millis() as u64);
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    // Methods are counted only where they led somewhere: a client may make up any number of them.
    let verb = if status == 405 || status == 404 { "any" } else { method.as_str() };
    app.metrics.note_http(verb, route, status);
    let error = error.map(|error| error.to_string());
    let ignored = response.headers().get(ignored::HEADER).and_then(|value| value.to_str().ok());
    tracing::info!(request_id = %id, %method, path, status, ms, error, ignored, "request");
    response
}

/// The client's own name for the request if it is a sane one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let sane = |text: &&str| !text.is_empty() && text.len() <= LONGEST_ID;
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane);
    given.map_or_else(|| ids::fresh("req_").into(), Into::into)
}
