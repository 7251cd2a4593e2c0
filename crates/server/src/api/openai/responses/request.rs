//! A request of the Responses API in neutral form.

use super::input;
use super::tools::{ResponsesTools, ToolNames};
use crate::api::openai::{generation, tools};
use crate::api::{Ignored, RequestFields, fields};
use crate::app::shortened;
use crate::chat::{ChatRequest, ReasoningRequest};
use crate::error::ServerError;
use crate::wire::responses::{Echo, ResponsesNamedTool, TextFormat, TextSettings};
use forerun_grammar::GrammarSource;
use forerun_text::ToolChoice;
use serde_json::{Value, json};

/// A request, read.
pub(super) struct ParsedRequest {
    pub(super) streaming: bool,
    /// What the response repeats.
    pub(super) echo: Echo,
    /// How the client calls its tools.
    pub(super) names: ToolNames,
    pub(super) chat: ChatRequest,
}

pub(super) fn read(fields: &mut RequestFields) -> Result<ParsedRequest, ServerError> {
    let streaming = generation::streaming(fields)?.on;
    nothing_else(fields)?;
    let instructions: Option<String> = fields.take("instructions")?;
    let messages = input::messages(instructions.as_deref(), fields.need("input")?)?;
    let shown = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tools = ResponsesTools::read(&shown, &fields.ignored)?;
    let tool_choice = fields.take::<Value>("tool_choice")?.unwrap_or_else(|| json!("auto"));
    let choice = choice(tool_choice.clone())?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let text = fields.take::<Value>("text")?.unwrap_or_else(|| json!({}));
    let format = format(text.clone(), &fields.ignored)?;
    let reasoning = fields.take::<Value>("reasoning")?.unwrap_or_else(|| json!({}));
    let thinking = thinking(reasoning.clone(), &fields.ignored)?;
    let most = max_tokens(fields)?;
    let mut generation = generation::common(fields)?;
    generation.options.max_tokens = most;
    generation.options.constraint = format;
    let metadata = fields.take("metadata")?.unwrap_or_default();
    let template_arguments = fields.take("chat_template_kwargs")?.unwrap_or_default();
    fields.finish()?;
    let echo = Echo {
        instructions,
        max_output_tokens: generation.options.max_tokens,
        metadata,
        parallel_tool_calls: parallel,
        reasoning: over(json!({"effort": null, "summary": null}), reasoning),
        temperature: generation.options.sampling.temperature,
        text: over(json!({"format": {"type": "text"}}), text),
        tool_choice,
        tools: shown,
        top_p: generation.options.sampling.top_p,
    };
    let chat = ChatRequest {
        tools: tools.functions,
        tool_places: tools.places,
        tool_choice: choice,
        parallel_tool_calls: parallel,
        reasoning: thinking,
        template_arguments,
        generation,
        ignored: fields.ignored.clone(),
        ..ChatRequest::new(messages)
    };
    Ok(ParsedRequest { streaming, echo, names: tools.names, chat })
}

/// Takes what may only say that nothing special is wanted.
fn nothing_else(fields: &mut RequestFields) -> Result<(), ServerError> {
    generation::store(fields)?;
    stored(fields)?;
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.word("service_tier", generation::SERVICE_TIERS)?;
    fields.only("top_logprobs", &[json!(0)])?;
    include(fields)
}

/// Refuses to go on from what would have to be stored.
fn stored(fields: &mut RequestFields) -> Result<(), ServerError> {
    for name in ["previous_response_id", "conversation"] {
        if fields.take::<Value>(name)?.is_some() {
            let why = "nothing is stored here; send the whole conversation as `input`";
            return Err(ServerError::unsupported(name, why));
        }
    }
    Ok(())
}

/// Takes what a response should have besides.
fn include(fields: &mut RequestFields) -> Result<(), ServerError> {
    /// Tools that are not run here have no results.
    const OF_TOOLS: [&str; 5] = [
        "web_search_call.results",
        "web_search_call.action.sources",
        "file_search_call.results",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
    ];
    for (i, part) in fields.take::<Vec<String>>("include")?.into_iter().flatten().enumerate() {
        let place = format!("include[{i}]");
        match part.as_str() {
            // Reasoning is sent in the open, so there is nothing to encrypt.
            "reasoning.encrypted_content" => {}
            part if OF_TOOLS.contains(&part) => drop(fields.ignored.field(&place)?),
            other => {
                let message = format!("`{place}`: {} is not supported", shortened(other));
                return Err(ServerError::invalid(&place, message));
            }
        }
    }
    Ok(())
}

fn max_tokens(fields: &mut RequestFields) -> Result<Option<usize>, ServerError> {
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
            let ResponsesNamedTool::Function { name } = fields::read("tool_choice", choice)?;
            Ok(Some(ToolChoice::Named(name)))
        }
    }
}

fn format(text: Value, ignored: &Ignored) -> Result<Option<GrammarSource>, ServerError> {
    let text: TextSettings = fields::read("text", without_ignored("text", text, ignored)?)?;
    Ok(match text.format {
        None | Some(TextFormat::Text {}) => None,
        Some(TextFormat::JsonObject {}) => Some(GrammarSource::JsonObject),
        Some(TextFormat::JsonSchema { schema, .. }) => Some(GrammarSource::JsonSchema(schema)),
    })
}

/// What a request says about reasoning.
fn thinking(reasoning: Value, ignored: &Ignored) -> Result<ReasoningRequest, ServerError> {
    let mut asked = RequestFields::new("reasoning", fields::read("reasoning", reasoning)?, ignored);
    let thinking = tools::effort("reasoning.effort", asked.take("effort")?)?;
    // Reasoning is told in full; the best summary of it that there is, is none.
    asked.word("summary", &["auto", "none"])?;
    asked.finish()?;
    Ok(thinking)
}

fn without_ignored(place: &str, value: Value, ignored: &Ignored) -> Result<Value, ServerError> {
    match value {
        Value::Object(object) => RequestFields::new(place, object, ignored).rest(),
        other => Ok(other),
    }
}
