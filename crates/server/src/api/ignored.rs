//! Which fields of which API may be given and have no effect, and why.
//!
//! What changes the answer and is not supported is refused by name. The rows below are what clients send by default
//! though the answer is the same without it: hints, labels of who asks, flags of other servers, tools that only
//! another server could run. They are accepted and told: in the response's header `forerun-ignored` and in the log.
//! A strict server refuses them as it refuses any other field.

use crate::error::ServerError;
use axum::http::HeaderValue;
use axum::response::Response;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a response says what was ignored.
pub(crate) const HEADER: &str = "forerun-ignored";

/// Whose fields they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

use Api::{Chat, Completions, Messages, Responses};

/// A place in a request (`[]` is any index), or a request header, and why it has no effect.
struct Row {
    apis: &'static [Api],
    place: &'static str,
    why: &'static str,
}

const fn row(apis: &'static [Api], place: &'static str, why: &'static str) -> Row {
    Row { apis, place, why }
}

const OPENAI: &[Api] = &[Chat, Completions, Responses];
const LABEL: &str = "it names who asks, which changes no answer";
const PRICE: &str = "every request is served alike";
const LOADED: &str = "all tools are in the prompt from the beginning";
const REASONING: &str = "this model's chat template has no form for it";
const ELSEWHERE: &str = "only tools of the client can be called";
const AT_ONCE: &str = "all tools there are must be in the request";

/// Every field that is ignored.
const FIELDS: &[Row] = &[
    row(OPENAI, "user", LABEL),
    row(OPENAI, "safety_identifier", LABEL),
    row(OPENAI, "service_tier", PRICE),
    row(&[Chat, Completions], "metadata", LABEL),
    row(OPENAI, "stream_options.include_obfuscation", "events are sent as they are"),
    row(&[Chat], "verbosity", "there is no setting for the length of answers but `max_tokens`"),
    row(&[Chat], "prediction", "drafts are made without it and change no answer"),
    row(&[Chat], "web_search_options", "this server searches nothing"),
    row(&[Chat], "enable_thinking", REASONING),
    row(&[Chat], "thinking_budget", REASONING),
    row(&[Chat], "reasoning_effort", REASONING),
    row(&[Responses], "client_metadata", LABEL),
    row(&[Responses], "context_management", "the conversation is read as it was sent"),
    row(&[Responses], "text.verbosity", "there is no setting for the length of answers"),
    row(&[Responses], "reasoning.effort", REASONING),
    row(&[Responses], "reasoning.summary", "reasoning is sent whole"),
    row(&[Responses], "include[]", "the tools it is about are not run here"),
    row(&[Responses], "tools[].defer_loading", LOADED),
    row(&[Responses], "tools[].allowed_callers", "the model is the only caller"),
    row(&[Responses], "tools[].output_schema", "templates have no place for it"),
    row(&[Responses], "tools[].format", "it is told to the model, which is not held to it"),
    row(&[Messages], "anthropic-beta", "what a beta allows needs no flag here"),
    row(&[Messages], "metadata", LABEL),
    row(&[Messages], "service_tier", PRICE),
    row(&[Messages], "speed", PRICE),
    row(&[Messages], "context_management", "the conversation is read as it was sent"),
    row(&[Messages], "context_hint", "the conversation is read as it was sent"),
    row(&[Messages], "diagnostics", "`timings.cache` tells what was cached, and why not more"),
    row(&[Messages], "fallbacks", "there is no other model to fall back to"),
    row(&[Messages], "fallback_credit_token", "there is no other model to fall back to"),
    row(&[Messages], "thinking", REASONING),
    row(&[Messages], "thinking.display", "reasoning is sent whole"),
    row(&[Messages], "thinking.block_binding", "reasoning is not signed here"),
    row(&[Messages], "output_config.effort", REASONING),
    row(&[Messages], "output_config.task_budget", "the model is not told of budgets"),
    row(&[Messages], "tools[].defer_loading", LOADED),
    row(&[Messages], "tools[].allowed_callers", "the model is the only caller"),
    row(&[Messages], "tools[].input_examples", "templates have no place for it"),
];

/// Types of tools that another server would run and that clients offer without being asked to. A star is any ending.
const TOOLS: &[Row] = &[
    row(&[Responses], "web_search*", ELSEWHERE),
    row(&[Responses], "image_generation", ELSEWHERE),
    row(&[Responses], "tool_search", AT_ONCE),
    row(&[Messages], "web_search_*", ELSEWHERE),
    row(&[Messages], "web_fetch_*", ELSEWHERE),
    row(&[Messages], "code_execution_*", ELSEWHERE),
    row(&[Messages], "advisor_*", ELSEWHERE),
    row(&[Messages], "tool_search_tool_*", AT_ONCE),
];

/// What of a request had no effect. Whoever reads a part of the request shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignored(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// No API in particular ignores nothing.
    api: Option<Api>,
    strict: bool,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    named: Vec<String>,
    /// Further ones, which are only counted.
    more: usize,
}

/// Most places that are kept by name.
const NAMED: usize = 64;

impl Api {
    /// The API that lives at a path.
    fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Chat),
            "/v1/completions" => Some(Completions),
            "/v1/responses" => Some(Responses),
            "/v1/messages" | "/v1/messages/count_tokens" => Some(Messages),
            _ => None,
        }
    }
}

impl Ignored {
    /// Nothing yet, of a request to `path`.
    pub(crate) fn new(path: &str, strict: bool) -> Self {
        Self(Arc::new(Inner { api: Api::of(path), strict, places: Mutex::default() }))
    }

    /// Why a field may be ignored, if it may.
    fn why(&self, place: &str) -> Option<&'static str> {
        let (api, place) = (self.0.api?, without_indexes(place));
        let found = FIELDS.iter().find(|row| row.apis.contains(&api) && row.place == place);
        found.map(|row| row.why)
    }

    /// Why a tool of this type may be ignored, if it may.
    fn why_tool(&self, kind: &str) -> Option<&'static str> {
        let api = self.0.api?;
        let fits = |row: &&Row| match row.place.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => kind == row.place,
        };
        TOOLS.iter().filter(|row| row.apis.contains(&api)).find(fits).map(|row| row.why)
    }

    /// Whether the table has a field.
    pub(crate) fn knows(&self, place: &str) -> bool {
        self.why(place).is_some()
    }

    /// Ignores a field if the table has it; whether it has.
    pub(crate) fn field(&self, place: &str) -> Result<bool, ServerError> {
        self.take(place.to_owned(), self.why(place))
    }

    /// Ignores a tool if the table has its type; whether it has.
    pub(crate) fn tool(&self, place: &str, kind: &str) -> Result<bool, ServerError> {
        self.take(place.to_owned(), self.why_tool(kind))
    }

    fn take(&self, place: String, why: Option<&'static str>) -> Result<bool, ServerError> {
        let Some(why) = why else { return Ok(false) };
        if self.0.strict {
            let field = crate::app::shortened(&place);
            return Err(ServerError::Unsupported { field, why: Some(why) });
        }
        let mut places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.named.len() >= NAMED {
            places.more += 1;
        } else if !places.named.contains(&place) {
            places.named.push(place);
        }
        Ok(true)
    }

    /// Says in a response what was ignored.
    pub(crate) fn tell(&self, mut response: Response) -> Response {
        let places = self.0.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let (false, Ok(value)) =
            (places.named.is_empty(), HeaderValue::try_from(listed(&places)))
        {
            response.headers_mut().insert(HEADER, value);
        }
        response
    }
}

/// Places as a header has them: names of the table with indexes, bounded, as clients bound the headers they read.
fn listed(places: &Places) -> String {
    const MOST: usize = 1024;
    let mut text = String::new();
    let mut left = places.named.len() + places.more;
    for place in &places.named {
        if text.len() + place.len() > MOST {
            break;
        }
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(place);
        left -= 1;
    }
    if left > 0 {
        text.push_str(&format!(", and {left} more"));
    }
    text
}

/// `tools[4].tools[2].name` as `tools[].tools[].name`.
fn without_indexes(place: &str) -> String {
    let mut out = String::with_capacity(place.len());
    let mut inside = false;
    for c in place.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside || c == '[' {
            out.push(c);
        }
    }
    // Functions in a namespace are tools like others.
    out.replace("tools[].tools[]", "tools[]")
}

/// The fields of a request, and not inside them, that an API ignores: name and reason.
pub(crate) fn documented(path: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let api = Api::of(path);
    let outer = |row: &&Row| !row.place.contains(['.', '[', '-']);
    let of_api = move |row: &&Row| api.is_some_and(|api| row.apis.contains(&api));
    FIELDS.iter().filter(of_api).filter(outer).map(|row| (row.place, row.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(ignored: &Ignored) -> Option<String> {
        let response = ignored.tell(Response::default());
        response.headers().get(HEADER).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn what_the_table_has_is_ignored_once_and_told_in_order() {
        let ignored = Ignored::new("/v1/responses", false);
        assert_eq!(header(&ignored), None);
        for (place, known) in [
            ("client_metadata", true),
            ("tools[4].tools[2].defer_loading", true),
            ("client_metadata", true),
            ("previous_response_id", false),
            ("thinking", false),
        ] {
            assert_eq!(ignored.field(place).unwrap(), known, "{place}");
        }
        assert!(ignored.tool("tools[8]", "web_search_preview").unwrap());
        assert!(!ignored.tool("tools[9]", "computer_use_preview").unwrap());
        let told = "client_metadata, tools[4].tools[2].defer_loading, tools[8]";
        assert_eq!(header(&ignored).as_deref(), Some(told));
    }

    #[test]
    fn a_strict_server_refuses_what_the_table_has_by_name_and_reason() {
        let ignored = Ignored::new("/v1/messages", true);
        let error = ignored.field("context_management").unwrap_err().to_string();
        assert!(error.contains("`context_management`") && error.contains("read as"), "{error}");
        let error = ignored.tool("tools[1].type", "web_search_20250305").unwrap_err().to_string();
        assert!(error.contains("`tools[1].type`"), "{error}");
    }

    #[test]
    fn a_header_is_bounded_and_counts_the_rest() {
        let ignored = Ignored::new("/v1/messages", false);
        for i in 0..10_000 {
            assert!(ignored.field(&format!("tools[{i}].defer_loading")).unwrap());
        }
        let told = header(&ignored).unwrap();
        let (named, more) = told.rsplit_once(", and ").unwrap();
        let left: usize = more.strip_suffix(" more").unwrap().parse().unwrap();
        assert_eq!(named.split(", ").count() + left, 10_000);
        assert!(told.len() < 1100, "{told}");
    }
}
