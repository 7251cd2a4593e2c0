//! A request of the Responses API in neutral form.

use super::input;
use crate::api::openai::generation;
use crate::api::{Fields, fields};
use crate::chat::{ChatRequest, Generation, Reasoning};
use crate::error::ServerError;
use crate::wire::responses::{self as wire, Echo, Format, Function, NamedTool, Text};
use forerun_grammar::GrammarSource;
use forerun_text::ToolChoice;
use serde_json::{Map, Value, json};

/// Whether it is streamed, what the response repeats, and the question.
pub(super) fn read(fields: &mut Fields) -> Result<(bool, Echo, ChatRequest), ServerError> {
    let streaming = generation::streaming(fields)?.on;
    nothing_else(fields)?;
    let instructions: Option<String> = fields.take("instructions")?;
    let messages = input::messages(instructions.as_deref(), fields.need("input")?)?;
    let shown = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tools = functions(&shown)?;
    let tool_choice = fields.take::<Value>("tool_choice")?.unwrap_or_else(|| json!("auto"));
    let choice = choice(tool_choice.clone())?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let text = fields.take::<Value>("text")?.unwrap_or_else(|| json!({}));
    let format = format(text.clone())?;
    let mut template_arguments: Map<String, Value> =
        fields.take("chat_template_kwargs")?.unwrap_or_default();
    let reasoning = fields.take::<Value>("reasoning")?.unwrap_or_else(|| json!({}));
    let thinking = thinking(reasoning.clone(), &mut template_arguments)?;
    let generation =
        Generation { max_tokens: max_tokens(fields)?, format, ..generation::common(fields)? };
    let metadata = fields.take("metadata")?.unwrap_or_default();
    fields.finish()?;
    let echo = Echo {
        instructions,
        max_output_tokens: generation.max_tokens,
        metadata,
        parallel_tool_calls: parallel,
        reasoning: over(json!({"effort": null, "summary": null}), reasoning),
        temperature: generation.sampling.temperature,
        text: over(json!({"format": {"type": "text"}}), text),
        tool_choice,
        tools: shown,
        top_p: generation.sampling.top_p,
    };
    let request = ChatRequest {
        tools,
        tool_choice: choice,
        parallel_tool_calls: parallel,
        reasoning: thinking,
        template_arguments,
        generation,
        ..ChatRequest::new(messages)
    };
    Ok((streaming, echo, request))
}

/// Takes what may only say that nothing special is wanted.
fn nothing_else(fields: &mut Fields) -> Result<(), ServerError> {
    fields.drop(&["user", "safety_identifier"]);
    fields.only("store", &[json!(false)])?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("top_logprobs", &[json!(0)])?;
    // Reasoning is sent in the open, so there is nothing to encrypt.
    fields.only("include", &[json!([]), json!(["reasoning.encrypted_content"])])
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ServerError> {
    const NAME: &str = "max_output_tokens";
    match fields.take::<u64>(NAME)? {
        Some(0) => Err(ServerError::invalid(NAME, format!("`{NAME}` is 0; give at least 1"))),
        asked => Ok(asked.map(|asked| usize::try_from(asked).unwrap_or(usize::MAX))),
    }
}

/// What was given, over what holds otherwise.
fn over(mut default: Value, given: Value) -> Value {
    if let (Value::Object(default), Value::Object(given)) = (&mut default, given) {
        default.extend(given);
    }
    default
}

/// Tools as chat templates know them.
fn functions(tools: &[Value]) -> Result<Vec<Value>, ServerError> {
    let function = |(i, tool): (usize, &Value)| {
        let place = format!("tools[{i}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("function") | None => {}
            Some(kind) => {
                let (field, kind) = (format!("{place}.type"), crate::app::shortened(kind));
                let message = format!(
                    "`{field}`: {kind} is not supported; only functions of the client can be called"
                );
                return Err(ServerError::invalid(&field, message));
            }
        }
        let tool: Function = fields::read(&place, tool.clone())?;
        let mut function = json!({"name": tool.name});
        if let Some(description) = tool.description {
            function["description"] = description.into();
        }
        if let Some(parameters) = tool.parameters {
            function["parameters"] = parameters.into();
        }
        Ok(json!({"type": "function", "function": function}))
    };
    tools.iter().enumerate().map(function).collect()
}

/// Nothing when no tool may be called.
fn choice(choice: Value) -> Result<Option<ToolChoice>, ServerError> {
    match choice.as_str() {
        Some("auto") => Ok(Some(ToolChoice::Auto)),
        Some("required") => Ok(Some(ToolChoice::Required)),
        Some("none") => Ok(None),
        Some(_) => {
            let message = "`tool_choice` is none, auto, required or the name of a function";
            Err(ServerError::invalid("tool_choice", message))
        }
        None => {
            let NamedTool::Function { name } = fields::read("tool_choice", choice)?;
            Ok(Some(ToolChoice::Named(name)))
        }
    }
}

fn format(text: Value) -> Result<Option<GrammarSource>, ServerError> {
    let text: Text = fields::read("text", text)?;
    Ok(match text.format {
        None | Some(Format::Text {}) => None,
        Some(Format::JsonObject {}) => Some(GrammarSource::JsonObject),
        Some(Format::JsonSchema { schema, .. }) => Some(GrammarSource::JsonSchema(schema)),
    })
}

/// No effort is no reasoning; other efforts are the template's to understand.
fn thinking(
    reasoning: Value,
    arguments: &mut Map<String, Value>,
) -> Result<Reasoning, ServerError> {
    let wire::Reasoning { effort, .. } = fields::read("reasoning", reasoning)?;
    let enabled = match effort.as_deref() {
        None => None,
        Some("none") => Some(false),
        Some(effort @ ("minimal" | "low" | "medium" | "high" | "xhigh")) => {
            arguments.entry("reasoning_effort").or_insert(effort.into());
            Some(true)
        }
        Some(other) => {
            let message = format!(
                "`reasoning.effort` is {}; give none, minimal, low, medium, high or xhigh",
                crate::app::shortened(other)
            );
            return Err(ServerError::invalid("reasoning.effort", message));
        }
    };
    Ok(Reasoning { enabled, budget: None })
}
