//! `/v1/chat/completions`.

use super::receipt::{Timings, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a request. Fields a client sends back from an answer are known, too.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) role: Role,
    #[serde(default)]
    pub(crate) content: Option<Value>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<Map<String, Value>>>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning_content: Option<String>,
    pub(crate) refusal: Option<String>,
    /// Says where an answer comes from; nothing a model reads.
    #[serde(rename = "annotations")]
    pub(crate) _annotations: Option<Value>,
    pub(crate) audio: Option<Value>,
    pub(crate) function_call: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    pub(crate) include_obfuscation: Option<bool>,
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub(crate) struct Completion<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Usage,
    pub(crate) timings: Timings,
}

#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) message: Answer,
    pub(crate) logprobs: Option<Value>,
    pub(crate) finish_reason: &'static str,
    /// The stop string that ended it.
    pub(crate) stop_reason: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
}

/// Part of a streamed answer.
#[derive(Debug, Serialize)]
pub(crate) struct Chunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChunkChoice>,
    /// Absent unless the client asked for usage; then null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<Value>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_reason: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
}
