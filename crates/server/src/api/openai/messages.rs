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

/// Takes `messages`, if there are any. The model's dialect looks into them.
pub(crate) fn messages(fields: &mut RequestFields) -> Result<Option<Vec<Value>>, ServerError> {
    let Some(messages) = fields.take::<Vec<Map<String, Value>>>("messages")? else {
        return Ok(None);
    };
    if messages.is_empty() || messages.len() > MESSAGES {
        let message = format!("`messages` has {}; give 1 to {MESSAGES}", messages.len());
        return Err(ServerError::invalid("messages", message));
    }
    for (i, message) in messages.iter().enumerate() {
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
