//! Around every request: its id, its key, its error in the form of its API, its line in the log.

use super::notes;
use crate::app::App;
use crate::error::{ErrorForm, ServerError};
use crate::ids;
use crate::server::ConnectionSlot;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
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

/// Bytes of a request's head.
pub(crate) const HEAD_BYTES: usize = 64 << 10;

/// Lets in who has a key, and notes who it is.
pub(crate) async fn let_in(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    match app.keys.check(request.headers()) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

/// Refuses what no endpoint is to see.
fn check_head(app: &App, parts: &Parts) -> Result<(), ServerError> {
    let found = head_bytes(parts);
    if found > HEAD_BYTES {
        return Err(ServerError::HeadTooLarge { found, most: HEAD_BYTES });
    }
    app.hosts.check(parts)?;
    let reserve =
        parts.extensions.get::<Arc<ConnectionSlot>>().is_some_and(|slot| slot.is_reserve());
    if reserve && !parts.uri.path().starts_with("/health") {
        return Err(ServerError::Unavailable("all connections are taken"));
    }
    Ok(())
}

/// Bytes of the first line and the headers as they were sent, but for white space around values.
fn head_bytes(parts: &Parts) -> usize {
    let uri = &parts.uri;
    let host = uri.authority().map_or(0, |host| "http://".len() + host.as_str().len());
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let first = parts.method.as_str().len() + host + path + "  HTTP/1.1\r\n\r\n".len();
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    first + parts.headers.iter().map(line).sum::<usize>()
}

/// Gives the request a name, and an error its body.
pub(crate) async fn name_and_explain(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let (mut parts, body) = request.into_parts();
    let checked = check_head(&app, &parts).map(|()| app.origins.preflight(&parts));
    let origin = app.origins.named(&parts.headers);
    parts.extensions.insert(RequestId(Arc::clone(&id)));
    let request = Request::from_parts(parts, body);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = match checked {
        Ok(Some(preflight)) => preflight,
        Ok(None) => notes::with_notes(next.run(request)).await,
        Err(error) => refused(&request, error),
    };
    let error = response.extensions_mut().remove::<ServerError>();
    if let Some(error) = &error {
        let body = error.body(ErrorForm::of(&path), &id).to_string();
        *response.body_mut() = Body::from(body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.remove(header::CONTENT_LENGTH);
    }
    let headers = response.headers_mut();
    app.origins.mark(origin, headers);
    if let Ok(value) = HeaderValue::from_str(&id) {
        if ErrorForm::of(&path) == ErrorForm::Anthropic {
            headers.insert(ANTHROPIC_REQUEST_ID, value.clone());
        }
        headers.insert(REQUEST_ID, value);
    }
    let (status, ms) = (response.status().as_u16(), started.elapsed().as_millis() as u64);
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    // Methods are counted only where they led somewhere: a client may make up any number of them.
    let verb = if status == 405 || status == 404 { "any" } else { method.as_str() };
    app.metrics.note(verb, route, status);
    let error = error.map(|error| error.to_string());
    let notes = response.headers().get(notes::HEADER).and_then(|value| value.to_str().ok());
    tracing::info!(request_id = %id, %method, path, status, ms, error, notes, "request");
    response
}

/// A refusal of the whole request. A connection of the reserve is closed with it.
fn refused(request: &Request, error: ServerError) -> Response {
    let mut response = error.into_response();
    if request.extensions().get::<Arc<ConnectionSlot>>().is_some_and(|slot| slot.is_reserve()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The client's own name for the request if it is a sane one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let sane = |text: &&str| !text.is_empty() && text.len() <= LONGEST_ID;
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(sane);
    given.map_or_else(|| ids::fresh("req_").into(), Into::into)
}
