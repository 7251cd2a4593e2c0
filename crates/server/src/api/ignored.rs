//! Which fields of which API may be given and have no effect, and why.
//!
//! What changes the answer and is not supported is refused by name. The rows below are what clients send by default
//! though the answer is the same without it: hints, labels of who asks, flags of other servers, tools that only
//! another server could run. They are accepted and listed as the first note of the response (`notes`) and in the log.
//! A strict server refuses them as it refuses any other field.

use crate::error::ServerError;
use std::sync::{Arc, Mutex, PoisonError};

/// Which API a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
    Ollama,
    Embeddings,
}

use Api::{Chat, Completions, Embeddings, Messages, Ollama, Responses};

/// The path of a field (`[]` is any index), or a request header, and why it has no effect.
struct IgnoredField {
    apis: &'static [Api],
    path: &'static str,
    why: &'static str,
}

const fn row(apis: &'static [Api], path: &'static str, why: &'static str) -> IgnoredField {
    IgnoredField { apis, path, why }
}

const OPENAI: &[Api] = &[Chat, Completions, Responses];
const LABEL: &str = "it names who asks, which changes no answer";
const PRICE: &str = "every request is served alike";
const LOADED: &str = "all tools are in the prompt from the beginning";
const REASONING: &str = "this model's chat template has no form for it";
const ELSEWHERE: &str = "only tools of the client can be called";
const PLANNED: &str = "how a model is loaded is decided by the server's options";
const AT_ONCE: &str = "all tools there are must be in the request";

/// Every field that is ignored.
const FIELDS: &[IgnoredField] = &[
    row(OPENAI, "user", LABEL),
    row(OPENAI, "safety_identifier", LABEL),
    row(OPENAI, "service_tier", PRICE),
    row(&[Chat, Completions], "metadata", LABEL),
    row(OPENAI, "store", "nothing is stored here; send the conversation with each request"),
    row(&[Chat], "messages[].id", LABEL),
    row(&[Chat], "messages[].reasoning_details", "`reasoning_content` is what templates read"),
    row(&[Chat], "messages[].provider_specific_fields", "templates have no path for it"),
    row(&[Chat, Completions], "guided_decoding_backend", "there is one"),
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
    row(&[Responses], "tools[].output_schema", "templates have no path for it"),
    row(&[Responses], "tools[].format", "it is told to the model, which is not held to it"),
    row(&[Messages], "anthropic-beta", "what a beta allows needs no flag here"),
    row(&[Messages], "metadata", LABEL),
    row(&[Messages], "system[]", "it is a label for billing that changes with every session"),
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
    row(&[Messages], "tools[].input_examples", "templates have no path for it"),
    row(&[Embeddings], "user", LABEL),
    row(&[Ollama], "think", REASONING),
    row(&[Ollama], "keep_alive", "this model stays loaded"),
    row(&[Ollama], "truncate", "a text that is too long is refused"),
    row(&[Ollama], "shift", "an answer ends where the context does"),
    row(&[Ollama], "verbose", "all there is to show is shown"),
    row(&[Ollama], "options.num_ctx", PLANNED),
    row(&[Ollama], "options.num_batch", PLANNED),
    row(&[Ollama], "options.num_gpu", PLANNED),
    row(&[Ollama], "options.main_gpu", PLANNED),
    row(&[Ollama], "options.num_thread", PLANNED),
    row(&[Ollama], "options.num_keep", "an answer ends where the context does"),
    row(&[Ollama], "options.use_mmap", PLANNED),
    row(&[Ollama], "options.use_mlock", PLANNED),
    row(&[Ollama], "options.vocab_only", PLANNED),
    row(&[Ollama], "options.low_vram", PLANNED),
    row(&[Ollama], "options.f16_kv", PLANNED),
    row(&[Ollama], "options.numa", PLANNED),
    row(&[Ollama], "options.logits_all", PLANNED),
];

/// Types of tools that another server would run and that clients offer without being asked to. A star is any ending.
const TOOLS: &[IgnoredField] = &[
    row(&[Responses], "web_search*", ELSEWHERE),
    row(&[Responses], "image_generation", ELSEWHERE),
    row(&[Responses], "tool_search", AT_ONCE),
    row(&[Messages], "web_search_*", ELSEWHERE),
    row(&[Messages], "web_fetch_*", ELSEWHERE),
    row(&[Messages], "code_execution_*", ELSEWHERE),
    row(&[Messages], "advisor_*", ELSEWHERE),
    row(&[Messages], "tool_search_tool_*", AT_ONCE),
];

/// The fields of a request that were ignored; shared by the readers of its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ignored(Arc<RequestState>);

#[derive(Debug, Default)]
struct RequestState {
    /// Without an API nothing is ignored.
    api: Option<Api>,
    strict: bool,
    fields: Mutex<IgnoredFields>,
}

#[derive(Debug, Default)]
struct IgnoredFields {
    named: Vec<String>,
    /// Fields beyond those, which are only counted.
    more: usize,
}

/// Most fields that are kept by name.
const MAX_NAMED: usize = 64;

impl Api {
    /// The API that is served at a URL path.
    fn of(url: &str) -> Option<Self> {
        match url {
            "/v1/chat/completions" => Some(Chat),
            "/v1/completions" => Some(Completions),
            "/v1/responses" => Some(Responses),
            "/v1/messages" | "/v1/messages/count_tokens" => Some(Messages),
            url if url.starts_with("/api/") => Some(Ollama),
            "/v1/embeddings" | "/v1/rerank" => Some(Embeddings),
            _ => None,
        }
    }
}

impl Ignored {
    /// For a request to a URL path, nothing ignored yet.
    pub(crate) fn new(url: &str, strict: bool) -> Self {
        Self(Arc::new(RequestState { api: Api::of(url), strict, fields: Mutex::default() }))
    }

    /// Why a field may be ignored, if it may.
    fn why(&self, path: &str) -> Option<&'static str> {
        let (api, path) = (self.0.api?, without_indexes(path));
        let found = FIELDS.iter().find(|row| row.apis.contains(&api) && row.path == path);
        found.map(|row| row.why)
    }

    /// Why a tool of this type may be ignored, if it may.
    fn why_tool(&self, kind: &str) -> Option<&'static str> {
        let api = self.0.api?;
        let fits = |row: &&IgnoredField| match row.path.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => kind == row.path,
        };
        TOOLS.iter().filter(|row| row.apis.contains(&api)).find(fits).map(|row| row.why)
    }

    /// Whether the table has a field.
    pub(crate) fn knows(&self, path: &str) -> bool {
        self.why(path).is_some()
    }

    /// Ignores a field if the table has it; whether it has.
    pub(crate) fn field(&self, path: &str) -> Result<bool, ServerError> {
        self.take(path.to_owned(), self.why(path))
    }

    /// Ignores a tool if the table has its type; whether it has.
    pub(crate) fn tool(&self, path: &str, kind: &str) -> Result<bool, ServerError> {
        self.take(path.to_owned(), self.why_tool(kind))
    }

    fn take(&self, path: String, why: Option<&'static str>) -> Result<bool, ServerError> {
        let Some(why) = why else { return Ok(false) };
        if self.0.strict {
            let field = crate::app::shortened(&path);
            return Err(ServerError::Unsupported { field, why: Some(why) });
        }
        let mut fields = self.0.fields.lock().unwrap_or_else(PoisonError::into_inner);
        if fields.named.len() >= MAX_NAMED {
            fields.more += 1;
        } else if !fields.named.contains(&path) {
            fields.named.push(path);
        }
        Ok(true)
    }

    /// Adds what was ignored to the notes of the response.
    pub(crate) fn add_to_notes(&self) {
        if let Some(fields) = self.list() {
            super::notes::add_ignored(&fields);
        }
    }

    /// What was ignored so far, bounded in length; `None` where nothing was.
    fn list(&self) -> Option<String> {
        let fields = self.0.fields.lock().unwrap_or_else(PoisonError::into_inner);
        (!fields.named.is_empty()).then(|| listed(&fields))
    }
}

/// Names of ignored fields with their indexes, separated by commas and bounded in length.
fn listed(fields: &IgnoredFields) -> String {
    const MAX_LEN: usize = 1024;
    let mut text = String::new();
    let mut left = fields.named.len() + fields.more;
    for path in &fields.named {
        if text.len() + path.len() > MAX_LEN {
            break;
        }
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(path);
        left -= 1;
    }
    if left > 0 {
        text.push_str(&format!(", and {left} more"));
    }
    text
}

/// `tools[4].tools[2].name` as `tools[].tools[].name`.
fn without_indexes(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside || c == '[' {
            out.push(c);
        }
    }
    // Functions in a namespace are tools like others.
    out.replace("tools[].tools[]", "tools[]")
}

/// The fields of a request, and not inside them, that an API ignores: name and reason.
pub(crate) fn documented(url: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let api = Api::of(url);
    let outer = |row: &&IgnoredField| !row.path.contains(['.', '[', '-']);
    let of_api = move |row: &&IgnoredField| api.is_some_and(|api| row.apis.contains(&api));
    FIELDS.iter().filter(of_api).filter(outer).map(|row| (row.path, row.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_table_has_is_ignored_once_and_told_in_order() {
        let ignored = Ignored::new("/v1/responses", false);
        assert_eq!(ignored.list(), None);
        for (path, known) in [
            ("client_metadata", true),
            ("tools[4].tools[2].defer_loading", true),
            ("client_metadata", true),
            ("previous_response_id", false),
            ("thinking", false),
        ] {
            assert_eq!(ignored.field(path).unwrap(), known, "{path}");
        }
        assert!(ignored.tool("tools[8]", "web_search_preview").unwrap());
        assert!(!ignored.tool("tools[9]", "computer_use_preview").unwrap());
        let told = "client_metadata, tools[4].tools[2].defer_loading, tools[8]";
        assert_eq!(ignored.list().as_deref(), Some(told));
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
        let told = ignored.list().unwrap();
        let (named, more) = told.rsplit_once(", and ").unwrap();
        let left: usize = more.strip_suffix(" more").unwrap().parse().unwrap();
        assert_eq!(named.split(", ").count() + left, 10_000);
        assert!(told.len() < 1100, "{told}");
    }
}
