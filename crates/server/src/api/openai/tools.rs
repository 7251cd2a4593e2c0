//! Tools, reasoning and the form of an answer.

use super::super::{RequestFields, fields};
use crate::chat::{Effort, ReasoningRequest};
use crate::error::ServerError;
use crate::wire::chat::ChatNamedTool;
use forerun_grammar::GrammarSource;
use forerun_text::ToolChoice;
use serde_json::{Map, Value};

/// Takes `tool_choice`; `None` for none at all.
pub(super) fn choice(fields: &mut RequestFields) -> Result<Option<ToolChoice>, ServerError> {
    match fields.take("tool_choice")? {
        None => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(ToolChoice::Auto)),
            "required" => Ok(Some(ToolChoice::Required)),
            _ => {
                let message = "`tool_choice` is none, auto, required or the name of a function";
                Err(ServerError::invalid("tool_choice", message))
            }
        },
        Some(named) => {
            let named: ChatNamedTool = fields::read("tool_choice", named)?;
            if named.kind != "function" {
                let why = "a choice is of type `function`";
                return Err(ServerError::unsupported("tool_choice.type", why));
            }
            Ok(Some(ToolChoice::Named(named.function.name)))
        }
    }
}

/// How hard a model may be told to think.
const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// Takes what is said about reasoning.
pub(super) fn reasoning(fields: &mut RequestFields) -> Result<ReasoningRequest, ServerError> {
    let enabled: Option<bool> = fields.take("enable_thinking")?;
    let budget: Option<u64> = fields.take("thinking_budget")?;
    let effort = effort("reasoning_effort", fields.take("reasoning_effort")?)?;
    if let (Some(enabled), Some(effort)) = (enabled, effort.enabled)
        && enabled != effort
    {
        let message = "`enable_thinking` and `reasoning_effort` contradict each other";
        return Err(ServerError::invalid("reasoning_effort", message));
    }
    Ok(match (enabled, budget) {
        (None, None) => effort,
        (enabled, budget) => ReasoningRequest {
            field: if budget.is_some() { "thinking_budget" } else { "enable_thinking" },
            enabled: enabled.or(effort.enabled),
            budget: budget.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
            ..effort
        },
    })
}

/// No effort is no reasoning; other efforts are the template's to understand.
pub(crate) fn effort(
    field: &'static str,
    asked: Option<String>,
) -> Result<ReasoningRequest, ServerError> {
    let effort = match asked {
        None => return Ok(ReasoningRequest::default()),
        Some(none) if none == "none" => None,
        Some(effort) if EFFORTS.contains(&effort.as_str()) => Some(effort),
        Some(other) => {
            let (other, known) = (crate::app::shortened(&other), EFFORTS.join(", "));
            let message = format!("`{field}` is {other}; give none, {known}");
            return Err(ServerError::invalid(field, message));
        }
    };
    Ok(ReasoningRequest {
        field,
        enabled: Some(effort.is_some()),
        effort: effort.map(|word| Effort { word, field }),
        budget: None,
    })
}

/// What an answer is to be held to.
#[derive(Default)]
pub(super) struct AskedFormat {
    pub(super) source: Option<GrammarSource>,
    /// Whether a schema may be loosened as far as it has to be.
    pub(super) lenient: bool,
}

/// Takes `response_format` and `structured_outputs`: at most one of them may ask for something.
pub(super) fn format(fields: &mut RequestFields) -> Result<AskedFormat, ServerError> {
    let AskedFormat { source: response, lenient } = response_format(fields)?;
    let structured = structured_outputs(fields)?;
    let guided = guided(fields)?;
    if structured.is_some() && guided.is_some() {
        let message = "give `structured_outputs` or a field of its older form, not both";
        return Err(ServerError::invalid("structured_outputs", message));
    }
    let structured = structured.or(guided);
    if response.is_some() && structured.is_some() {
        let message = "give `response_format` or `structured_outputs`, not both";
        return Err(ServerError::invalid("structured_outputs", message));
    }
    Ok(AskedFormat { source: response.or(structured), lenient })
}

fn response_format(fields: &mut RequestFields) -> Result<AskedFormat, ServerError> {
    const NAME: &str = "response_format";
    let Some(mut format) = fields.inside(NAME)? else { return Ok(AskedFormat::default()) };
    let mut lenient = false;
    let kind: String = format.need("type")?;
    let source = match kind.as_str() {
        "text" => None,
        "json_object" => Some(GrammarSource::JsonObject),
        "json_schema" => {
            let mut described = format.inside("json_schema")?.ok_or_else(|| {
                let place = format!("{NAME}.json_schema");
                ServerError::invalid(&place, format!("`{place}` is missing"))
            })?;
            described.take::<String>("name")?;
            described.take::<String>("description")?;
            // Answers follow the schema; who says that it is not strict gets as much of it as can be done.
            lenient = described.take("strict")? == Some(false);
            let schema = described.take("schema")?.unwrap_or(Value::Bool(true));
            described.finish()?;
            Some(GrammarSource::JsonSchema(schema))
        }
        _ => {
            let why = "give text, json_object or json_schema";
            return Err(ServerError::unsupported(&format!("{NAME}.type"), why));
        }
    };
    format.finish()?;
    Ok(AskedFormat { source, lenient })
}

/// The names that other servers had for it.
fn guided(fields: &mut RequestFields) -> Result<Option<GrammarSource>, ServerError> {
    let mut sources = sources(fields, "guided_")?.into_iter().flatten();
    match (sources.next(), sources.next()) {
        (source, None) => Ok(source),
        _ => {
            let message =
                "give one of `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`";
            Err(ServerError::invalid("guided_json", message))
        }
    }
}

/// Takes what an answer may be held to, by names with this beginning.
fn sources(
    fields: &mut RequestFields,
    beginning: &str,
) -> Result<[Option<GrammarSource>; 4], ServerError> {
    let name = |end: &str| format!("{beginning}{end}");
    let json = fields.take(&name("json"))?;
    let json = json.map(|given| schema(&name("json"), given)).transpose()?;
    Ok([
        json.map(GrammarSource::JsonSchema),
        fields.take(&name("regex"))?.map(GrammarSource::Regex),
        fields.take(&name("choice"))?.map(GrammarSource::Choice),
        fields.take(&name("grammar"))?.map(GrammarSource::Lark),
    ])
}

/// A schema; some clients send its text.
fn schema(name: &str, given: Value) -> Result<Value, ServerError> {
    let Value::String(text) = &given else { return Ok(given) };
    serde_json::from_str(text).map_err(|error| {
        ServerError::invalid(name, format!("`{name}` is the text of no schema: {error}"))
    })
}

fn structured_outputs(fields: &mut RequestFields) -> Result<Option<GrammarSource>, ServerError> {
    const NAME: &str = "structured_outputs";
    let Some(mut asked) = fields.inside(NAME)? else { return Ok(None) };
    let sources = sources(&mut asked, "")?;
    asked.finish()?;
    let mut sources = sources.into_iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(source), None) => Ok(Some(source)),
        _ => {
            let message = format!("`{NAME}` has one of json, regex, choice and grammar");
            Err(ServerError::invalid(NAME, message))
        }
    }
}

/// Takes the tools.
pub(crate) fn tools(fields: &mut RequestFields) -> Result<Vec<Value>, ServerError> {
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    Ok(tools.into_iter().map(Value::Object).collect())
}
