//! `/v1/responses`.

use super::receipt::ReceiptTimings;
use crate::answer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One item of a request's input. Messages are read apart: their type may be left out.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum InputItem {
    Message {
        role: InputRole,
        content: Value,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
        #[serde(rename = "phase")]
        _phase: Option<String>,
    },
    FunctionCall {
        call_id: String,
        namespace: Option<String>,
        name: String,
        arguments: String,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    CustomToolCall {
        call_id: String,
        namespace: Option<String>,
        name: String,
        input: String,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    #[serde(alias = "custom_tool_call_output")]
    FunctionCallOutput {
        call_id: String,
        output: Value,
        /// The call has it, too.
        #[serde(rename = "name")]
        _name: Option<String>,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
    },
    Reasoning {
        content: Option<Vec<ReasoningText>>,
        summary: Option<Vec<SummaryText>>,
        #[serde(rename = "id")]
        _id: Option<String>,
        #[serde(rename = "status")]
        _status: Option<String>,
        /// Reasoning of another server that only that one can read.
        #[serde(rename = "encrypted_content")]
        _encrypted: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum InputRole {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReasoningText {
    ReasoningText { text: String },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum SummaryText {
    SummaryText { text: String },
}

/// A text part of a message or of a result.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum TextPart {
    InputText {
        text: String,
    },
    OutputText {
        text: String,
        #[serde(rename = "annotations")]
        _annotations: Option<Value>,
        #[serde(rename = "logprobs")]
        _logprobs: Option<Value>,
    },
}

/// The function that must be called.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ResponsesNamedTool {
    #[serde(alias = "custom")]
    Function { name: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionTool {
    #[serde(rename = "type")]
    pub(crate) _kind: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Forced calls always keep to their schema.
    #[serde(rename = "strict")]
    pub(crate) _strict: Option<bool>,
}

/// A tool whose input is text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CustomTool {
    #[serde(rename = "type")]
    pub(crate) _kind: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
}

/// What the text of a custom tool looks like.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum CustomFormat {
    Text {},
    Grammar { syntax: String, definition: String },
}

/// Tools under a common name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Namespace {
    #[serde(rename = "type")]
    pub(crate) _kind: String,
    pub(crate) name: String,
    /// What they have in common; each tool describes itself.
    #[serde(rename = "description")]
    pub(crate) _description: Option<String>,
    pub(crate) tools: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum TextFormat {
    Text {},
    JsonObject {},
    JsonSchema {
        schema: Value,
        #[serde(rename = "name")]
        _name: Option<String>,
        #[serde(rename = "description")]
        _description: Option<String>,
        strict: Option<bool>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextSettings {
    pub(crate) format: Option<TextFormat>,
}

/// What a response repeats of its request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Echo {
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<usize>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) reasoning: Value,
    pub(crate) temperature: Option<f32>,
    pub(crate) text: Value,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_p: Option<f32>,
}

/// An answer, whole or in the making.
#[derive(Debug, Serialize)]
pub(crate) struct ResponseObject<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    pub(crate) status: Status,
    pub(crate) error: Option<Value>,
    pub(crate) incomplete_details: Option<Value>,
    pub(crate) model: &'a str,
    pub(crate) output: &'a [OutputItem],
    #[serde(flatten)]
    pub(crate) echo: &'a Echo,
    pub(crate) background: bool,
    pub(crate) previous_response_id: Option<&'a str>,
    pub(crate) service_tier: &'static str,
    pub(crate) store: bool,
    pub(crate) truncation: &'static str,
    pub(crate) usage: Option<ResponsesUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<ReceiptTimings>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// One item of an answer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    Reasoning {
        id: String,
        summary: [(); 0],
        content: Vec<ContentPart>,
        encrypted_content: Option<String>,
        status: Status,
    },
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<ContentPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        arguments: String,
        status: Status,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        input: String,
        status: Status,
    },
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentPart {
    OutputText { text: String, annotations: [(); 0], logprobs: [(); 0] },
    ReasoningText { text: String },
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResponsesUsage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: ReasoningUsage,
    total_tokens: usize,
}

#[derive(Clone, Debug, Serialize)]
struct InputDetails {
    cached_tokens: usize,
}

#[derive(Clone, Debug, Serialize)]
struct ReasoningUsage {
    reasoning_tokens: usize,
}

impl From<answer::TokenUsage> for ResponsesUsage {
    fn from(usage: answer::TokenUsage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.cached_tokens },
            output_tokens: usage.completion_tokens,
            output_tokens_details: ReasoningUsage { reasoning_tokens: usage.reasoning_tokens },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}

/// An event of a stream with its number.
#[derive(Debug, Serialize)]
pub(crate) struct NumberedEvent<'a> {
    #[serde(flatten)]
    pub(crate) event: ResponseEvent<'a>,
    pub(crate) sequence_number: u64,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(crate) enum ResponseEvent<'a> {
    #[serde(rename = "response.created")]
    Created { response: ResponseObject<'a> },
    #[serde(rename = "response.in_progress")]
    InProgress { response: ResponseObject<'a> },
    #[serde(rename = "response.completed")]
    Completed { response: ResponseObject<'a> },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: ResponseObject<'a> },
    #[serde(rename = "response.failed")]
    Failed { response: ResponseObject<'a> },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: usize, item: OutputItem },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: usize, item: OutputItem },
    #[serde(rename = "response.content_part.added")]
    PartAdded { item_id: String, output_index: usize, content_index: usize, part: ContentPart },
    #[serde(rename = "response.content_part.done")]
    PartDone { item_id: String, output_index: usize, content_index: usize, part: ContentPart },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        item_id: String,
        output_index: usize,
        content_index: usize,
        delta: String,
        logprobs: [(); 0],
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        item_id: String,
        output_index: usize,
        content_index: usize,
        text: String,
        logprobs: [(); 0],
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { item_id: String, output_index: usize, content_index: usize, delta: String },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone { item_id: String, output_index: usize, content_index: usize, text: String },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { item_id: String, output_index: usize, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone { item_id: String, output_index: usize, name: String, arguments: String },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta { item_id: String, output_index: usize, delta: String },
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone { item_id: String, output_index: usize, input: String },
}
