//! `/v1/messages` and `/v1/messages/count_tokens`.

use super::receipt::ReceiptTimings;
use crate::answer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a request. Content is read block by block.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) role: MessageRole,
    pub(crate) content: Value,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessageRole {
    System,
    User,
    Assistant,
}

/// A block a client sends.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum RequestBlock {
    Text {
        text: String,
        cache_control: Option<CacheControl>,
        /// Says where a text comes from; nothing a model reads.
        #[serde(rename = "citations")]
        _citations: Option<Value>,
    },
    Thinking {
        thinking: String,
        /// Reasoning is taken as it comes; it is not signed here.
        #[serde(rename = "signature")]
        _signature: Option<String>,
    },
    /// Reasoning of another server that only that one can read.
    RedactedThinking {
        #[serde(rename = "data")]
        _data: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        cache_control: Option<CacheControl>,
        #[serde(rename = "caller")]
        _caller: Option<Value>,
        #[serde(rename = "toolset_name")]
        _toolset: Option<String>,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Value>,
        is_error: Option<bool>,
        cache_control: Option<CacheControl>,
        #[serde(rename = "toolset_name")]
        _toolset: Option<String>,
    },
}

/// The prompt up to here is worth keeping. How long is a matter of room, not of time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CacheControl {
    #[serde(rename = "type")]
    pub(crate) _kind: Ephemeral,
    #[serde(rename = "ttl")]
    pub(crate) _ttl: Option<Ttl>,
    /// Among whom it is shared is the server's matter.
    #[serde(rename = "scope")]
    pub(crate) _scope: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ephemeral {
    Ephemeral,
}

#[derive(Debug, Deserialize)]
pub(crate) enum Ttl {
    #[serde(rename = "5m")]
    Minutes,
    #[serde(rename = "1h")]
    Hour,
}

/// A tool a client defines.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolDefinition {
    #[serde(rename = "type")]
    pub(crate) _kind: Option<String>,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) input_schema: Map<String, Value>,
    pub(crate) cache_control: Option<CacheControl>,
    /// Forced calls always keep to their schema.
    #[serde(rename = "strict")]
    pub(crate) _strict: Option<bool>,
    /// Arguments are always streamed as they come.
    #[serde(rename = "eager_input_streaming")]
    pub(crate) _eager: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum MessagesToolChoice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    None {},
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum ThinkingConfig {
    Enabled { budget_tokens: u64 },
    Adaptive {},
    Disabled {},
}

/// How hard the model should try; a matter of its template.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputEffort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl OutputEffort {
    /// As templates have it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum OutputFormat {
    JsonSchema { schema: Value },
}

/// A whole answer, or the beginning of a streamed one.
#[derive(Debug, Serialize)]
pub(crate) struct MessageResponse<'a> {
    pub(crate) id: &'a str,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) role: &'static str,
    pub(crate) model: &'a str,
    pub(crate) content: Vec<ResponseBlock>,
    pub(crate) stop_reason: Option<&'static str>,
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessagesUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<ReceiptTimings>,
}

/// A block of an answer.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseBlock {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct MessagesUsage {
    /// Prompt tokens that were read anew.
    pub(crate) input_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) cache_creation_input_tokens: usize,
    pub(crate) cache_read_input_tokens: usize,
    pub(crate) output_tokens_details: ThinkingUsage,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ThinkingUsage {
    pub(crate) thinking_tokens: usize,
}

impl From<answer::TokenUsage> for MessagesUsage {
    fn from(usage: answer::TokenUsage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            output_tokens: usage.completion_tokens,
            // Prompts are kept without being asked, so none is marked out.
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached_tokens,
            output_tokens_details: ThinkingUsage { thinking_tokens: usage.reasoning_tokens },
        }
    }
}

/// An event of a stream; its name is its type.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageEvent<'a> {
    MessageStart { message: MessageResponse<'a> },
    Ping,
    ContentBlockStart { index: usize, content_block: ResponseBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: MessagesUsage, timings: ReceiptTimings },
    MessageStop,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct MessageDelta {
    pub(crate) stop_reason: &'static str,
    pub(crate) stop_sequence: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}
