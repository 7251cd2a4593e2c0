//! A request of the Messages API in neutral form.

use super::conversation;
use crate::api::openai::generation;
use crate::api::{Fields, fields};
use crate::chat::{CacheOverrides, ChatRequest, Generation, Reasoning};
use crate::error::ServerError;
use crate::wire::anthropic::{self as wire, CacheControl, Message, OutputConfig, OutputFormat};
use forerun_grammar::GrammarSource;
use forerun_text::ToolChoice;
use serde_json::{Map, Value, json};

/// Takes everything about the prompt.
pub(super) fn prompt(fields: &mut Fields) -> Result<ChatRequest, ServerError> {
    let system = fields.take::<Value>("system")?;
    let messages: Vec<Message> = fields.need("messages")?;
    let messages = conversation::messages(system, messages)?;
    let (tools, tools_marked) = tools(fields)?;
    let (tool_choice, parallel_tool_calls) = choice(fields)?;
    let mut template_arguments: Map<String, Value> =
        fields.take("chat_template_kwargs")?.unwrap_or_default();
    let config: Option<OutputConfig> = fields.take("output_config")?;
    let OutputConfig { format, effort } = config.unwrap_or_default();
    if let Some(effort) = effort {
        template_arguments.entry("reasoning_effort").or_insert(json!(effort));
    }
    fields.only("speed", &[json!("standard")])?;
    let marked = fields.take::<CacheControl>("cache_control")?.is_some();
    let generation = Generation {
        format: format.map(|OutputFormat::JsonSchema { schema }| GrammarSource::JsonSchema(schema)),
        cache: CacheOverrides { keep: marked || tools_marked, ..CacheOverrides::default() },
        ..Generation::default()
    };
    Ok(ChatRequest {
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning: thinking(fields)?,
        template_arguments,
        generation,
        ..ChatRequest::new(messages)
    })
}

/// Takes everything about the answer.
pub(super) fn answer(fields: &mut Fields, request: &mut ChatRequest) -> Result<(), ServerError> {
    fields.drop(&["metadata"]);
    fields.only("service_tier", &[json!("auto"), json!("standard_only")])?;
    let max_tokens = fields.need::<u64>("max_tokens")?;
    if max_tokens == 0 {
        return Err(ServerError::invalid("max_tokens", "`max_tokens` is 0; give at least 1"));
    }
    let stops: Vec<String> = fields.take("stop_sequences")?.unwrap_or_default();
    generation::check_stops("stop_sequences", &stops)?;
    let mut generation = Generation {
        max_tokens: Some(usize::try_from(max_tokens).unwrap_or(usize::MAX)),
        stops,
        format: request.generation.format.take(),
        ..generation::common(fields)?
    };
    generation.cache.keep |= request.generation.cache.keep;
    request.generation = generation;
    Ok(())
}

/// Tools as chat templates know them, and whether any is marked as worth keeping.
fn tools(fields: &mut Fields) -> Result<(Vec<Value>, bool), ServerError> {
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let mut tools = Vec::with_capacity(given.len());
    let mut keep = false;
    for (i, tool) in given.into_iter().enumerate() {
        let tool = read_tool(&format!("tools[{i}]"), tool)?;
        keep |= tool.cache_control.is_some();
        tools.push(function(tool));
    }
    Ok((tools, keep))
}

/// Which tools must be called, and whether several calls may come.
fn choice(fields: &mut Fields) -> Result<(Option<ToolChoice>, bool), ServerError> {
    let (choice, single) = match fields.take("tool_choice")? {
        None => (Some(ToolChoice::Auto), None),
        Some(wire::ToolChoice::Auto { disable_parallel_tool_use }) => {
            (Some(ToolChoice::Auto), disable_parallel_tool_use)
        }
        Some(wire::ToolChoice::Any { disable_parallel_tool_use }) => {
            (Some(ToolChoice::Required), disable_parallel_tool_use)
        }
        Some(wire::ToolChoice::Tool { name, disable_parallel_tool_use }) => {
            (Some(ToolChoice::Named(name)), disable_parallel_tool_use)
        }
        Some(wire::ToolChoice::None {}) => (None, None),
    };
    Ok((choice, single != Some(true)))
}

fn read_tool(place: &str, tool: Value) -> Result<wire::Tool, ServerError> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
    if kind != "custom" {
        let (field, kind) = (format!("{place}.type"), crate::app::shortened(kind));
        let message =
            format!("`{field}`: {kind} is not supported; only tools of the client can be called");
        return Err(ServerError::invalid(&field, message));
    }
    fields::read(place, tool)
}

fn function(tool: wire::Tool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = tool.description {
        function["description"] = description.into();
    }
    function["parameters"] = tool.input_schema.into();
    json!({"type": "function", "function": function})
}

fn thinking(fields: &mut Fields) -> Result<Reasoning, ServerError> {
    Ok(match fields.take("thinking")? {
        None => Reasoning::default(),
        Some(wire::Thinking::Enabled { budget_tokens }) => Reasoning {
            enabled: Some(true),
            budget: Some(usize::try_from(budget_tokens).unwrap_or(usize::MAX)),
        },
        Some(wire::Thinking::Adaptive {}) => Reasoning { enabled: Some(true), budget: None },
        Some(wire::Thinking::Disabled {}) => Reasoning { enabled: Some(false), budget: None },
    })
}
