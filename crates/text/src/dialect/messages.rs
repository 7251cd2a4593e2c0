//! Messages as clients send them, brought to the form templates are written for.
//!
//! Clients send the chat API's form: arguments of calls as JSON text, content as a string, a list
//! of parts or null. Templates want arguments as objects and content as a string. What a text
//! model cannot take, such as an image, is refused by its path. Further keys of a message are
//! given to the template as they are.

use super::Dialect;
use super::tool::refused;
use crate::error::TextError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Names of the tools called so far, by the id of the call.
type CalledTools = HashMap<String, String>;

/// Keys of an answer that clients send back; they say nothing when empty.
const EMPTY_KEYS: [&str; 5] = ["refusal", "audio", "function_call", "annotations", "tool_calls"];

impl Dialect {
    /// Brings the messages of a chat request to the form the template wants.
    pub fn normalise_messages(&self, messages: &[Value]) -> Result<Vec<Value>, TextError> {
        let mut called = CalledTools::new();
        let message = |(index, message): (usize, &Value)| {
            let path = format!("messages[{index}]");
            let Value::Object(message) = message else {
                return Err(refused(path, "must be an object"));
            };
            self.message(&path, message.clone(), &mut called).map(Value::Object)
        };
        messages.iter().enumerate().map(message).collect()
    }

    fn message(
        &self,
        path: &str,
        mut message: Map<String, Value>,
        called: &mut CalledTools,
    ) -> Result<Map<String, Value>, TextError> {
        let role = self.role(path, message.get("role"))?;
        message.insert("role".to_owned(), role.into());
        message.remove("cache_control");
        for key in EMPTY_KEYS {
            let empty = |value: &Value| match value {
                Value::Null => true,
                Value::Array(items) => items.is_empty(),
                _ => false,
            };
            if message.get(key).is_some_and(empty) {
                message.remove(key);
            } else if message.contains_key(key) && key != "tool_calls" {
                return Err(refused(format!("{path}.{key}"), "is not supported; remove it"));
            }
        }
        let mut broken = String::new();
        let calls = match message.get_mut("tool_calls") {
            None => false,
            Some(calls) if role == "assistant" => {
                broken = self.calls(&format!("{path}.tool_calls"), calls, called)?;
                if calls.as_array().is_some_and(Vec::is_empty) {
                    message.remove("tool_calls");
                }
                true
            }
            Some(_) => {
                let problem = "only an assistant message has calls";
                return Err(refused(format!("{path}.tool_calls"), problem));
            }
        };
        // Not all clients name reasoning alike.
        if let Some(reasoning) = message.remove("reasoning") {
            text_or_none(&format!("{path}.reasoning"), Some(&reasoning))?;
            message.entry("reasoning_content").or_insert(reasoning);
        }
        for key in ["name", "reasoning_content", "tool_call_id"] {
            if text_or_none(&format!("{path}.{key}"), message.get(key))?.is_none() {
                message.remove(key);
            }
        }
        let may_be_empty = calls || message.contains_key("reasoning_content");
        let content = message.remove("content").unwrap_or_default();
        let mut content = self.content(&format!("{path}.content"), content, may_be_empty)?;
        match &mut content {
            Value::String(text) => {
                let gap = if text.is_empty() || broken.is_empty() { "" } else { "\n" };
                *text += &format!("{gap}{broken}");
            }
            Value::Array(parts) if !broken.is_empty() => {
                parts.push(serde_json::json!({"type": "text", "text": broken}));
            }
            _ => {}
        }
        message.insert("content".to_owned(), content);
        if role == "tool" {
            name_of_result(&mut message, called);
        }
        Ok(message)
    }

    fn role(&self, path: &str, role: Option<&Value>) -> Result<&'static str, TextError> {
        let path = format!("{path}.role");
        match role.and_then(Value::as_str) {
            Some("system") => Ok("system"),
            Some("developer") if self.habits.developer => Ok("developer"),
            Some("developer") => Ok("system"),
            Some("user") => Ok("user"),
            Some("assistant") => Ok("assistant"),
            Some("tool") => Ok("tool"),
            Some(other) => {
                let problem = format!(
                    "{other} is not supported; use system, developer, user, assistant or tool"
                );
                Err(refused(path, problem))
            }
            None => Err(refused(path, "must be given")),
        }
    }

    fn content(&self, path: &str, content: Value, may_be_empty: bool) -> Result<Value, TextError> {
        match content {
            Value::String(_) => Ok(content),
            Value::Null if may_be_empty => Ok("".into()),
            Value::Null => Err(refused(path, "must be given")),
            Value::Array(parts) => {
                let text = |(index, part)| part_text(&format!("{path}[{index}]"), part);
                let texts = parts.iter().enumerate().map(text);
                let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
                if self.habits.parts {
                    let part = |text| serde_json::json!({"type": "text", "text": text});
                    return Ok(texts.into_iter().map(part).collect::<Vec<_>>().into());
                }
                Ok(texts.join("\n").into())
            }
            _ => Err(refused(path, "must be a string or a list of parts")),
        }
    }

    /// Brings calls to the form of templates. Those whose arguments are no JSON object, as a call that was cut off
    /// leaves behind, are taken out and returned as text.
    fn calls(
        &self,
        path: &str,
        calls: &mut Value,
        called: &mut CalledTools,
    ) -> Result<String, TextError> {
        let calls = calls.as_array_mut().ok_or_else(|| refused(path, "must be a list"))?;
        let mut broken: Vec<String> = Vec::new();
        for (index, mut call) in std::mem::take(calls).into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            if let Some(kind) = call.get("type").filter(|kind| *kind != "function") {
                let problem = format!("{} is not supported; only function is", shown(kind));
                return Err(refused(format!("{path}.type"), problem));
            }
            let id = text_or_none(&format!("{path}.id"), call.get("id"))?.map(str::to_owned);
            let function = call.get_mut("function").and_then(Value::as_object_mut);
            let path = format!("{path}.function");
            let function = function.ok_or_else(|| refused(&path, "must be an object"))?;
            let name = function.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| refused(format!("{path}.name"), "must be a string"))?;
            let name = name.to_owned();
            if let Some(id) = id {
                called.insert(id, name.clone());
            }
            let arguments = function.remove("arguments").unwrap_or_default();
            match self.arguments(&format!("{path}.arguments"), arguments)? {
                Ok(arguments) => {
                    function.insert("arguments".to_owned(), arguments);
                    calls.push(call);
                }
                Err(text) => broken.push(format!("{name} {text}")),
            }
        }
        Ok(broken.join("\n"))
    }

    /// Arguments as an object, or the text that is none.
    fn arguments(&self, path: &str, arguments: Value) -> Result<Result<Value, String>, TextError> {
        let object = match arguments {
            Value::Object(_) => arguments,
            Value::Null => Map::new().into(),
            Value::String(text) if text.trim().is_empty() => Map::new().into(),
            Value::String(text) => match serde_json::from_str(&text) {
                Ok(object @ Value::Object(_)) => object,
                _ => return Ok(Err(text)),
            },
            _ => return Err(refused(path, "must be the text of a JSON object")),
        };
        Ok(Ok(if self.habits.text_arguments { object.to_string().into() } else { object }))
    }
}

/// Templates write whose result it is; clients give the id of the call only.
fn name_of_result(message: &mut Map<String, Value>, called: &CalledTools) {
    let id = message.get("tool_call_id").and_then(Value::as_str);
    if let (Some(name), false) = (id.and_then(|id| called.get(id)), message.contains_key("name")) {
        message.insert("name".to_owned(), name.as_str().into());
    }
}

/// A text that may be left out or be null.
fn text_or_none<'a>(path: &str, value: Option<&'a Value>) -> Result<Option<&'a str>, TextError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(refused(path, "must be a string")),
    }
}

fn part_text<'a>(path: &str, part: &'a Value) -> Result<&'a str, TextError> {
    match part.get("type") {
        Some(Value::String(kind)) if kind == "text" => {
            let text = part.get("text").and_then(Value::as_str);
            text.ok_or_else(|| refused(format!("{path}.text"), "must be a string"))
        }
        Some(kind) => {
            let problem = format!("{} is not supported; send text parts", shown(kind));
            Err(refused(format!("{path}.type"), problem))
        }
        None => Err(refused(format!("{path}.type"), "must be \"text\"")),
    }
}

/// A value of a client in an error: short.
fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.chars().take(40).collect()
}
