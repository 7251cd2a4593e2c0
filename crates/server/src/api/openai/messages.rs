//! Messages as OpenAI has them to messages as chat templates want them.

use super::super::{Fields, fields};
use crate::error::ServerError;
use crate::wire::chat::{Message, Role};
use serde_json::{Map, Value};

/// Most messages of a conversation.
const MESSAGES: usize = 10_000;

/// Takes `messages`, if there are any.
pub(crate) fn messages(fields: &mut Fields) -> Result<Option<Vec<Value>>, ServerError> {
    let Some(messages) = fields.take::<Vec<Message>>("messages")? else { return Ok(None) };
    if messages.is_empty() || messages.len() > MESSAGES {
        let message = format!("`messages` has {}; give 1 to {MESSAGES}", messages.len());
        return Err(ServerError::invalid("messages", message));
    }
    let templated = |(i, message)| templated(&format!("messages[{i}]"), message);
    messages.into_iter().enumerate().map(templated).collect::<Result<_, _>>().map(Some)
}

fn templated(place: &str, message: Message) -> Result<Value, ServerError> {
    for (name, value) in [("audio", &message.audio), ("function_call", &message.function_call)] {
        if value.is_some() {
            let field = format!("{place}.{name}");
            return Err(ServerError::Unsupported { field, why: None });
        }
    }
    let role = match message.role {
        // Templates know one word for both.
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let needs_content = message.role != Role::Assistant;
    let content = match message.content {
        None | Some(Value::Null) if needs_content => {
            let place = format!("{place}.content");
            return Err(ServerError::invalid(&place, format!("`{place}` is missing")));
        }
        None | Some(Value::Null) => message.refusal.unwrap_or_default(),
        Some(content) => text(&format!("{place}.content"), content)?,
    };
    let mut out = Map::new();
    out.insert("role".to_owned(), role.into());
    out.insert("content".to_owned(), content.into());
    let optional = [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            out.insert(name.to_owned(), value.into());
        }
    }
    if let Some(calls) = message.tool_calls {
        let calls: Vec<Value> = calls.into_iter().map(call).collect();
        out.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(Value::Object(out))
}

/// A call with its arguments as the object they spell; templates write them in their own way.
fn call(mut call: Map<String, Value>) -> Value {
    let arguments = call.get_mut("function").and_then(|f| f.get_mut("arguments"));
    if let Some(arguments) = arguments
        && let Some(text) = arguments.as_str()
        // What a model once wrote may be no JSON; then it stays as it was written.
        && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
    {
        *arguments = object;
    }
    Value::Object(call)
}

/// Content that is one text, or text in parts.
fn text(place: &str, content: Value) -> Result<String, ServerError> {
    #[derive(serde::Deserialize)]
    struct Part {
        #[serde(rename = "type")]
        kind: String,
        text: Option<String>,
    }
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts: Vec<Part> = fields::read(place, content)?;
    let mut all = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        match (part.kind.as_str(), part.text) {
            ("text", Some(text)) => all.push_str(&text),
            ("text", None) => {
                let place = format!("{place}[{i}].text");
                return Err(ServerError::invalid(&place, format!("`{place}` is missing")));
            }
            _ => {
                let field = format!("{place}[{i}].type");
                return Err(ServerError::Unsupported {
                    field,
                    why: Some("this server reads parts of type `text` only"),
                });
            }
        }
    }
    Ok(all)
}
