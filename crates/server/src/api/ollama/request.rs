//! Requests of Ollama's API in neutral form.

use super::options;
use crate::api::RequestFields;
use crate::api::openai::tools;
use crate::chat::{AnswerOptions, ChatRequest, ReasoningRequest};
use crate::error::ServerError;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Most messages of a conversation.
const MESSAGES: usize = 10_000;

/// What `/api/chat` and `/api/generate` have in common.
pub(super) struct Asked {
    pub(super) stream: bool,
    pub(super) keep_alive: Option<Option<Duration>>,
    pub(super) prompt: AskedPrompt,
}

/// What is to be continued.
pub(super) enum AskedPrompt {
    /// Nothing: only the model is to be loaded, or to go.
    Nothing,
    /// A text as it stands.
    Raw(String, Box<AnswerOptions>),
    Chat(Box<ChatRequest>),
}

/// Reads a request to `/api/chat`.
pub(super) fn chat(fields: &mut RequestFields) -> Result<Asked, ServerError> {
    let messages: Vec<Map<String, Value>> = fields.take("messages")?.unwrap_or_default();
    if messages.len() > MESSAGES {
        let message = format!("`messages` has {}; give at most {MESSAGES}", messages.len());
        return Err(ServerError::invalid("messages", message));
    }
    let tools = tools(fields)?;
    let (stream, keep_alive, generation, reasoning) = common(fields)?;
    fields.finish()?;
    if messages.is_empty() {
        return Ok(Asked { stream, keep_alive, prompt: AskedPrompt::Nothing });
    }
    let messages = conversation(messages)?;
    let (ignored, plain) = (fields.ignored.clone(), ChatRequest::new(messages));
    let request = ChatRequest { tools, reasoning, generation, ignored, ..plain };
    Ok(Asked { stream, keep_alive, prompt: AskedPrompt::Chat(Box::new(request)) })
}

/// Reads a request to `/api/generate`. Without `raw` it is one message of the user.
pub(super) fn generate(fields: &mut RequestFields) -> Result<Asked, ServerError> {
    let prompt = fields.take::<String>("prompt")?.unwrap_or_default();
    let system: Option<String> = fields.take("system")?;
    let raw = fields.take("raw")?.unwrap_or(false);
    no_images("images", fields.take("images")?)?;
    fields.only("suffix", &[json!("")])?;
    fields.only("template", &[json!("")])?;
    fields.only("context", &[json!([])])?;
    let (stream, keep_alive, generation, reasoning) = common(fields)?;
    fields.finish()?;
    let prompt = if prompt.is_empty() {
        AskedPrompt::Nothing
    } else if raw {
        if system.is_some() {
            let message = "`system` has no place in a raw prompt; write it there";
            return Err(ServerError::invalid("system", message));
        }
        AskedPrompt::Raw(prompt, Box::new(generation))
    } else {
        let system = system.filter(|text| !text.is_empty());
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let user = json!({"role": "user", "content": prompt});
        let plain = ChatRequest::new(system.into_iter().chain([user]).collect());
        let ignored = fields.ignored.clone();
        AskedPrompt::Chat(Box::new(ChatRequest { reasoning, generation, ignored, ..plain }))
    };
    Ok(Asked { stream, keep_alive, prompt })
}

type Common = (bool, Option<Option<Duration>>, AnswerOptions, ReasoningRequest);

fn common(fields: &mut RequestFields) -> Result<Common, ServerError> {
    let stream = fields.take("stream")?.unwrap_or(true);
    let keep_alive = options::keep_alive(fields)?;
    let generation = options::take(fields)?;
    let reasoning = options::think(fields)?;
    // A prompt that is too long is refused, never cut.
    for name in ["truncate", "shift"] {
        if fields.take::<bool>(name)? == Some(true) {
            fields.ignored(name)?;
        }
    }
    Ok((stream, keep_alive, generation, reasoning))
}

fn no_images(place: &str, images: Option<Value>) -> Result<(), ServerError> {
    match images {
        Some(images) if images != json!([]) => {
            Err(ServerError::unsupported(place, "models here read text alone"))
        }
        _ => Ok(()),
    }
}

/// Messages in OpenAI's form: calls get ids, results those of the calls they answer.
fn conversation(messages: Vec<Map<String, Value>>) -> Result<Vec<Value>, ServerError> {
    let mut calls: Vec<(String, String)> = Vec::new();
    let one = |(i, mut message): (usize, Map<String, Value>)| {
        no_images(&format!("messages[{i}].images"), message.shift_remove("images"))?;
        if let Some(thinking) = message.shift_remove("thinking") {
            message.insert("reasoning_content".to_owned(), thinking);
        }
        if let Some(made) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            for (number, call) in made.iter_mut().enumerate() {
                calls.push(openai_call(&format!("call_{i}_{number}"), call));
            }
        }
        if message.get("role").and_then(Value::as_str) == Some("tool") {
            let name = message.shift_remove("tool_name");
            let name = name.as_ref().and_then(Value::as_str);
            let at = calls.iter().position(|(_, of)| name.is_none_or(|name| name == of));
            let id = at.map(|at| calls.remove(at).0);
            message.entry("tool_call_id").or_insert_with(|| id.unwrap_or_default().into());
        }
        const KEYS: [&str; 5] =
            ["role", "content", "reasoning_content", "tool_calls", "tool_call_id"];
        if let Some(key) = message.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let field = format!("messages[{i}].{}", crate::app::shortened(key));
            return Err(ServerError::Unsupported { field, why: None });
        }
        Ok(Value::Object(message))
    };
    messages.into_iter().enumerate().map(one).collect()
}

/// Arguments are an object here and its text there. The call's id and name.
fn openai_call(fresh: &str, call: &mut Value) -> (String, String) {
    let id = call.get("id").and_then(Value::as_str).unwrap_or(fresh).to_owned();
    let mut function = call.get("function").cloned().unwrap_or_default();
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(fields) = function.as_object_mut() {
        fields.shift_remove("index");
        if let Some(arguments) = fields.get_mut("arguments").filter(|it| it.is_object()) {
            *arguments = arguments.to_string().into();
        }
    }
    *call = json!({"id": id, "type": "function", "function": function});
    (id, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_answer_the_calls_of_their_tools_in_order() {
        let given = json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"function": {"name": "a", "arguments": {"x": 1}}},
                {"function": {"name": "b", "arguments": {}}},
            ]},
            {"role": "tool", "tool_name": "b", "content": "2"},
            {"role": "tool", "content": "1"},
        ]);
        let messages = conversation(serde_json::from_value(given).unwrap()).unwrap();
        assert_eq!(messages[1]["reasoning_content"], "hm");
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
        assert_eq!(messages[2]["tool_call_id"], messages[1]["tool_calls"][1]["id"]);
        assert_eq!(messages[3]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
    }
}
