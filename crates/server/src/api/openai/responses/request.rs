//! A request of the Responses API in neutral form.

use super::input;
use super::tools::{ResponsesTools, ToolNames};
use crate::api::openai::{generation, tools};
use crate::api::{Ignored, RequestFields, fields};
use crate::app::shortened;
use crate::auth::Owner;
use crate::chat::{ChatRequest, ReasoningRequest};
use crate::error::ServerError;
use crate::responses_store::ResponsesStore;
use crate::wire::responses::{Echo, ResponsesNamedTool, TextFormat, TextSettings};
use forerun_grammar::GrammarSource;
use forerun_text::ToolChoice;
use serde_json::{Value, json};
use std::sync::Arc;

/// A request, read.
pub(super) struct ParsedRequest {
    pub(super) streaming: bool,
    /// What the response repeats.
    pub(super) echo: Echo,
    /// How the client calls its tools.
    pub(super) names: ToolNames,
    /// What a later request would go on from, and the response that this one goes on from.
    pub(super) kept: KeptConversation,
    pub(super) chat: ChatRequest,
}

/// A conversation that may be kept.
pub(super) struct KeptConversation {
    /// The response it goes on from.
    pub(super) previous: Option<String>,
    /// All of its input; none where it is not kept.
    pub(super) items: Option<Vec<Value>>,
}

/// Reads a request; `store` has what its owner said before.
pub(super) fn read(
    fields: &mut RequestFields,
    store: Option<(&ResponsesStore, Option<Owner>)>,
) -> Result<ParsedRequest, ServerError> {
    let streaming = generation::streaming(fields)?.on;
    let keeps = keeps(fields, store.is_some())?;
    let previous = previous(fields, store)?;
    nothing_else(fields)?;
    let instructions: Option<String> = fields.take("instructions")?;
    let input = joined(previous.as_ref().map(|(_, items)| &items[..]), fields.need("input")?)?;
    let items = keeps.then(|| items_of(&input));
    let kept = KeptConversation { previous: previous.map(|(id, _)| id), items };
    let messages = input::messages(instructions.as_deref(), input)?;
    let shown = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tools = ResponsesTools::read(&shown, &fields.ignored)?;
    let tool_choice = fields.take::<Value>("tool_choice")?.unwrap_or_else(|| json!("auto"));
    let choice = choice(tool_choice.clone())?;
    let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    let text = fields.take::<Value>("text")?.unwrap_or_else(|| json!({}));
    let (format, lenient) = format(text.clone(), &fields.ignored)?;
    let reasoning = fields.take::<Value>("reasoning")?.unwrap_or_else(|| json!({}));
    let thinking = thinking(reasoning.clone(), &fields.ignored)?;
    let most = max_tokens(fields)?;
    let mut generation = generation::common(fields)?;
    generation.options.max_tokens = most;
    generation.options.constraint = format;
    generation.lenient = lenient;
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
    Ok(ParsedRequest { streaming, echo, names: tools.names, kept, chat })
}

/// Takes what may only say that nothing special is wanted.
fn nothing_else(fields: &mut RequestFields) -> Result<(), ServerError> {
    fields.only("background", &[json!(false)])?;
    fields.only("truncation", &[json!("disabled")])?;
    fields.word("service_tier", generation::SERVICE_TIERS)?;
    fields.only("top_logprobs", &[json!(0)])?;
    include(fields)
}

/// Takes `store`. Where conversations are kept, they are unless a request says no.
fn keeps(fields: &mut RequestFields, can: bool) -> Result<bool, ServerError> {
    if !can {
        generation::store(fields)?;
        return Ok(false);
    }
    Ok(fields.take::<bool>("store")?.unwrap_or(true))
}

/// A response, and all that was said up to its end.
type Previous = (String, Arc<[Value]>);

/// Takes `previous_response_id`: the response, and what was said up to its end.
fn previous(
    fields: &mut RequestFields,
    store: Option<(&ResponsesStore, Option<Owner>)>,
) -> Result<Option<Previous>, ServerError> {
    const NAME: &str = "previous_response_id";
    if fields.take::<Value>("conversation")?.is_some() {
        let why = "conversations are not kept here; send the whole of it as `input`";
        return Err(ServerError::unsupported("conversation", why));
    }
    let Some(id) = fields.take::<String>(NAME)? else { return Ok(None) };
    let Some((store, owner)) = store else {
        let why = "nothing is stored here; send the whole conversation as `input`, or start the server with --store-responses";
        return Err(ServerError::unsupported(NAME, why));
    };
    match store.get(owner, &id) {
        Some(items) => Ok(Some((id, items))),
        None => {
            let id = shortened(&id);
            let message = format!(
                "`{NAME}`: {id} is not kept, or not any more; send the whole conversation as `input`"
            );
            Err(ServerError::invalid(NAME, message))
        }
    }
}

/// New input behind what was said before.
fn joined(before: Option<&[Value]>, input: Value) -> Result<Value, ServerError> {
    let Some(before) = before else { return Ok(input) };
    let new = match input {
        text @ Value::String(_) => items_of(&text),
        items => fields::read("input", items)?,
    };
    Ok(before.iter().cloned().chain(new).collect())
}

/// Input as items: a text is a message.
fn items_of(input: &Value) -> Vec<Value> {
    match input {
        Value::Array(items) => items.clone(),
        text => vec![json!({"role": "user", "content": text})],
    }
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

/// What the answer is held to, and whether a schema of it may be loosened.
fn format(text: Value, ignored: &Ignored) -> Result<(Option<GrammarSource>, bool), ServerError> {
    let text: TextSettings = fields::read("text", without_ignored("text", text, ignored)?)?;
    Ok(match text.format {
        None | Some(TextFormat::Text {}) => (None, false),
        Some(TextFormat::JsonObject {}) => (Some(GrammarSource::JsonObject), false),
        Some(TextFormat::JsonSchema { schema, strict, .. }) => {
            (Some(GrammarSource::JsonSchema(schema)), strict == Some(false))
        }
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
