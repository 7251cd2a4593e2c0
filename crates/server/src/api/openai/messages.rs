//! The messages of a request.

use super::super::fields::{RequestFields, read};
use crate::app::shortened;
use crate::error::ServerError;
use crate::wire::anthropic::CacheControl;
use serde_json::{Map, Value};

/// Most messages of a conversation.
const MESSAGES: usize = 10_000;
/// What a message may have; what clients send back from an answer is known, too.
const KEYS: [&str; 12] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "refusal",
    "annotations",
    "audio",
    "function_call",
    "cache_control",
];

/// What clients send back of an answer and what no template reads.
const FROM_ANSWERS: [&str; 3] = ["id", "reasoning_details", "provider_specific_fields"];

/// Takes `continue_final_message`: whether the last message is the beginning of the answer.
pub(crate) fn continued(fields: &mut RequestFields) -> Result<bool, ServerError> {
    let continued = fields.take("continue_final_message")?.unwrap_or(false);
    let opened: Option<bool> = fields.take("add_generation_prompt")?;
    match (continued, opened) {
        (true, Some(true)) => {
            let message =
                "`continue_final_message` and `add_generation_prompt` contradict each other";
            Err(ServerError::invalid("add_generation_prompt", message))
        }
        (false, Some(false)) => {
            let message = "`add_generation_prompt` is false; give `continue_final_message` with it";
            Err(ServerError::invalid("add_generation_prompt", message))
        }
        _ => Ok(continued),
    }
}

/// Takes the last message, which must be words of the assistant, out of a conversation.
pub(crate) fn beginning(messages: &mut Vec<Value>) -> Result<String, ServerError> {
    let text = |message: &Value| {
        let words =
            message["role"] == "assistant" && message.get("tool_calls").is_none_or(Value::is_null);
        message["content"].as_str().filter(|_| words).map(str::to_owned)
    };
    match messages.last().and_then(text) {
        Some(text) if messages.len() > 1 => {
            messages.pop();
            Ok(text)
        }
        _ => Err(ServerError::invalid(
            "continue_final_message",
            "`continue_final_message` needs a last message of the assistant with a text, behind others",
        )),
    }
}

/// Takes `messages`, if there are any. The model's dialect looks into them.
pub(crate) fn messages(fields: &mut RequestFields) -> Result<Option<Vec<Value>>, ServerError> {
    let Some(messages) = fields.take::<Vec<Map<String, Value>>>("messages")? else {
        return Ok(None);
    };
    if messages.is_empty() || messages.len() > MESSAGES {
        let message = format!("`messages` has {}; give 1 to {MESSAGES}", messages.len());
        return Err(ServerError::invalid("messages", message));
    }
    let mut messages = messages;
    for (i, message) in messages.iter_mut().enumerate() {
        for key in FROM_ANSWERS {
            // What an answer of another server had beside its words says nothing to a template.
            if message.shift_remove(key).is_some_and(|value| !value.is_null()) {
                fields.ignored(&format!("messages[{i}].{key}"))?;
            }
        }
        if let Some(key) = message.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let field = format!("messages[{i}].{}", shortened(key));
            return Err(ServerError::Unsupported { field, why: None });
        }
        check_marks(&format!("messages[{i}]"), message)?;
    }
    Ok(Some(messages.into_iter().map(Value::Object).collect()))
}

/// Marks for the cache may stand at a message and at the parts of its content.
fn check_marks(place: &str, message: &Map<String, Value>) -> Result<(), ServerError> {
    let check = |place: &str, mark: Option<&Value>| {
        let place = format!("{place}.cache_control");
        mark.map_or(Ok(None), |mark| read::<Option<CacheControl>>(&place, mark.clone())).map(drop)
    };
    check(place, message.get("cache_control"))?;
    let parts = message.get("content").and_then(Value::as_array);
    for (i, part) in parts.into_iter().flatten().enumerate() {
        check(&format!("{place}.content[{i}]"), part.get("cache_control"))?;
    }
    Ok(())
}
