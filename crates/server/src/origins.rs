//! Whose pages may read what the server answers: cross-origin resource sharing.
//!
//! A browser asks before it lets a page of another origin send JSON or a key, and hides answers that do not name the
//! origin. No origin is named unless the operator gave it, so that a page somebody happens to visit cannot use the
//! model. Keys still count: they come in a header that the page itself sets, and cookies are not used.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;

const METHODS: &str = "GET, POST, OPTIONS";
/// Headers that a page may read beside the usual ones.
const READABLE: &str = "x-request-id, request-id, x-forerun-notes, retry-after";
/// Seconds for which a browser need not ask again.
const REMEMBERED: &str = "600";
/// A page of the web that asks for a server of the local network asks with this, too.
const PRIVATE: &str = "access-control-request-private-network";

/// The origins.
#[derive(Debug)]
pub(crate) struct Origins {
    any: bool,
    allowed: Vec<String>,
}

impl Origins {
    pub(crate) fn new(allowed: &[String]) -> Self {
        let allowed: Vec<String> =
            allowed.iter().map(|origin| origin.to_ascii_lowercase()).collect();
        Self { any: allowed.iter().any(|origin| origin == "*"), allowed }
    }

    /// What an answer names as the origin that may read it.
    pub(crate) fn named(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        if self.any {
            return Some(HeaderValue::from_static("*"));
        }
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.allowed.contains(&text).then(|| origin.clone())
    }

    /// The answer to a browser that asks whether a page may send a request.
    pub(crate) fn preflight(&self, parts: &Parts) -> Option<Response> {
        let wanted = parts.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD);
        if parts.method != Method::OPTIONS || wanted.is_none() {
            return None;
        }
        self.named(&parts.headers)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        let fixed = HeaderValue::from_static;
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, fixed(METHODS));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, fixed(REMEMBERED));
        if let Some(asked) = parts.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        if parts.headers.contains_key(PRIVATE) {
            let name = HeaderName::from_static("access-control-allow-private-network");
            headers.insert(name, fixed("true"));
        }
        Some(response)
    }

    /// Names the origin in an answer.
    pub(crate) fn mark(&self, origin: Option<HeaderValue>, headers: &mut HeaderMap) {
        if self.any || !self.allowed.is_empty() {
            // What is kept for one origin is not for another.
            headers.append(header::VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers
                .insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READABLE));
        }
    }
}
