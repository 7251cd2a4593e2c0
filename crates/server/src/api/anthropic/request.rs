//! A request of the Messages API in neutral form.

use super::conversation;
use crate::api::openai::generation;
use crate::api::{Ignored, RequestFields, fields};
use crate::chat::{AnswerOptions, CacheOverrides, ChatRequest, Effort, ReasoningRequest};
use crate::error::ServerError;
use crate::wire::anthropic::{self as wire, CacheControl, Message, OutputFormat};
use forerun::{GenerationOptions, GrammarSource};
use forerun_text::ToolChoice;
use serde_json::{Value, json};

/// Takes everything about the prompt.
pub(super) fn prompt(fields: &mut RequestFields) -> Result<ChatRequest, ServerError> {
    let system = fields.take::<Value>("system")?;
    let messages: Vec<Message> = fields.need("messages")?;
    let (messages, beginning) = conversation::messages(system, messages, &fields.ignored)?;
    let tools = tools(fields)?;
    let (tool_choice, parallel_tool_calls) = choice(fields)?;
    let (format, effort) = output_config(fields)?;
    fields.word("speed", &["standard"])?;
    let marked = fields.take::<CacheControl>("cache_control")?.is_some();
    let constraint =
        format.map(|OutputFormat::JsonSchema { schema }| GrammarSource::JsonSchema(schema));
    let generation = AnswerOptions {
        options: GenerationOptions { constraint, ..GenerationOptions::default() },
        cache: CacheOverrides { keep: marked || tools.marked, ..CacheOverrides::default() },
        ..AnswerOptions::default()
    };
    Ok(ChatRequest {
        tools: tools.functions,
        tool_places: tools.places,
        tool_schema: "input_schema",
        tool_choice,
        parallel_tool_calls,
        reasoning: ReasoningRequest { effort, ..thinking(fields)? },
        beginning,
        template_arguments: fields.take("chat_template_kwargs")?.unwrap_or_default(),
        generation,
        ignored: fields.ignored.clone(),
        ..ChatRequest::new(messages)
    })
}

/// Takes everything about the answer.
pub(super) fn answer(
    fields: &mut RequestFields,
    request: &mut ChatRequest,
) -> Result<(), ServerError> {
    fields.word("service_tier", &["auto", "standard_only"])?;
    let max_tokens = fields.need::<u64>("max_tokens")?;
    if max_tokens == 0 {
        return Err(ServerError::invalid("max_tokens", "`max_tokens` is 0; give at least 1"));
    }
    let stops: Vec<String> = fields.take("stop_sequences")?.unwrap_or_default();
    generation::check_stops("stop_sequences", &stops)?;
    let mut generation = generation::common(fields)?;
    generation.options.max_tokens = Some(usize::try_from(max_tokens).unwrap_or(usize::MAX));
    generation.options.stops = stops;
    generation.options.constraint = request.generation.options.constraint.take();
    generation.cache.keep |= request.generation.cache.keep;
    request.generation = generation;
    Ok(())
}

/// The form of the answer, and how hard the model should try.
fn output_config(
    fields: &mut RequestFields,
) -> Result<(Option<OutputFormat>, Option<Effort>), ServerError> {
    let Some(mut config) = fields.inside("output_config")? else { return Ok((None, None)) };
    let (format, effort) = (config.take("format")?, config.take::<wire::OutputEffort>("effort")?);
    config.finish()?;
    let field = "output_config.effort";
    let effort = effort.map(|effort| Effort { word: effort.word().to_owned(), field });
    Ok((format, effort))
}

/// The tools of a request.
#[derive(Default)]
struct Tools {
    /// As chat templates know them.
    functions: Vec<Value>,
    /// Where each is in the request.
    places: Vec<String>,
    /// Whether any is marked as worth keeping.
    marked: bool,
}

fn tools(fields: &mut RequestFields) -> Result<Tools, ServerError> {
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let mut tools = Tools::default();
    for (i, tool) in given.into_iter().enumerate() {
        let place = format!("tools[{i}]");
        if let Some(tool) = read_tool(&place, tool, &fields.ignored)? {
            tools.marked |= tool.cache_control.is_some();
            tools.functions.push(function(tool));
            tools.places.push(place);
        }
    }
    Ok(tools)
}

/// Which tools must be called, and whether several calls may come.
fn choice(fields: &mut RequestFields) -> Result<(Option<ToolChoice>, bool), ServerError> {
    let (choice, single) = match fields.take("tool_choice")? {
        None => (Some(ToolChoice::Auto), None),
        Some(wire::MessagesToolChoice::Auto { disable_parallel_tool_use }) => {
            (Some(ToolChoice::Auto), disable_parallel_tool_use)
        }
        Some(wire::MessagesToolChoice::Any { disable_parallel_tool_use }) => {
            (Some(ToolChoice::Required), disable_parallel_tool_use)
        }
        Some(wire::MessagesToolChoice::Tool { name, disable_parallel_tool_use }) => {
            (Some(ToolChoice::Named(name)), disable_parallel_tool_use)
        }
        Some(wire::MessagesToolChoice::None {}) => (None, None),
    };
    Ok((choice, single != Some(true)))
}

/// A tool of the client; nothing for one that only another server could run.
fn read_tool(
    place: &str,
    tool: Value,
    ignored: &Ignored,
) -> Result<Option<wire::ToolDefinition>, ServerError> {
    let kind = tool.get("type").and_then(Value::as_str).unwrap_or("custom");
    if kind != "custom" {
        if ignored.tool(place, kind)? {
            return Ok(None);
        }
        let (field, kind) = (format!("{place}.type"), crate::app::shortened(kind));
        let message =
            format!("`{field}`: {kind} is not supported; only tools of the client can be called");
        return Err(ServerError::invalid(&field, message));
    }
    let tool = match tool {
        Value::Object(tool) => RequestFields::new(place, tool, ignored).rest()?,
        other => other,
    };
    fields::read(place, tool).map(Some)
}

fn function(tool: wire::ToolDefinition) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = tool.description {
        function["description"] = description.into();
    }
    function["parameters"] = tool.input_schema.into();
    json!({"type": "function", "function": function})
}

fn thinking(fields: &mut RequestFields) -> Result<ReasoningRequest, ServerError> {
    let Some(asked) = fields.inside("thinking")? else { return Ok(ReasoningRequest::default()) };
    let (enabled, budget) = match fields::read("thinking", asked.rest()?)? {
        wire::ThinkingConfig::Enabled { budget_tokens } => {
            (true, Some(usize::try_from(budget_tokens).unwrap_or(usize::MAX)))
        }
        wire::ThinkingConfig::Adaptive {} => (true, None),
        wire::ThinkingConfig::Disabled {} => (false, None),
    };
    Ok(ReasoningRequest { field: "thinking", enabled: Some(enabled), budget, effort: None })
}
