//! Answers as they come: server-sent events, or lines of JSON.

use crate::app::App;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;

/// Tells events as they come. `more` puts the next ones into the queue and says whether there may be others.
pub(crate) trait Teller<T = Event>: Send + 'static {
    /// Waits for what comes next; false when it was the last.
    fn more(&mut self, out: &mut Outbox<T>) -> impl Future<Output = bool> + Send;
}

/// Events to be sent.
#[derive(Default)]
pub(crate) struct Outbox<T = Event>(VecDeque<T>);

impl Outbox {
    /// An event of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        self.named(None, value);
    }

    /// An event of JSON with a name.
    pub(crate) fn named(&mut self, name: Option<&str>, value: &impl Serialize) {
        let event = match name {
            Some(name) => Event::default().event(name),
            None => Event::default(),
        };
        let text = serde_json::to_string(value).expect("wire types have text keys only");
        self.0.push_back(event.data(text));
    }

    /// An event of JSON named by its `type`.
    pub(crate) fn typed(&mut self, value: &impl Serialize) {
        let value = serde_json::to_value(value).expect("wire types have text keys only");
        self.named(value.get("type").and_then(Value::as_str), &value);
    }

    /// An event of plain text.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_back(Event::default().data(text));
    }
}

/// A stream of events, with comments while there is nothing to tell.
pub(crate) fn response(app: &App, teller: impl Teller) -> Response {
    let keep_alive = KeepAlive::new().interval(app.settings.keep_alive).text("keep-alive");
    let mut response = Sse::new(told(teller)).keep_alive(keep_alive).into_response();
    // Proxies that collect responses would turn a stream into a wait.
    response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
    response
}

/// A stream of lines.
pub(crate) fn lines(teller: impl Teller<Bytes>) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(told(teller))).into_response()
}

impl Outbox<Bytes> {
    /// A line of JSON.
    pub(crate) fn line(&mut self, value: &Value) {
        self.0.push_back(format!("{value}\n").into());
    }
}

fn told<T: Send + 'static>(
    teller: impl Teller<T>,
) -> impl Stream<Item = Result<T, Infallible>> + Send {
    stream::unfold(
        (teller, Outbox(VecDeque::new()), true),
        |(mut teller, mut out, mut going)| async move {
            loop {
                if let Some(event) = out.0.pop_front() {
                    return Some((Ok(event), (teller, out, going)));
                }
                if !going {
                    return None;
                }
                going = teller.more(&mut out).await;
            }
        },
    )
}
