//! Input items to messages as chat templates want them.
//!
//! What an assistant thought, said and called are items of their own here and one message for templates.

use super::tools::{arguments_of, function_name};
use crate::api::fields;
use crate::error::ServerError;
use crate::wire::responses::{InputItem, InputRole, ReasoningText, SummaryText, TextPart};
use serde_json::{Map, Value, json};

/// Most items of a conversation.
const ITEMS: usize = 10_000;

/// The conversation, with the instructions first.
pub(super) fn messages(
    instructions: Option<&str>,
    input: Value,
) -> Result<Vec<Value>, ServerError> {
    let mut conversation = InputConversation::default();
    if let Some(text) = instructions {
        conversation.say("system", text.to_owned());
    }
    match input {
        Value::String(text) => conversation.say("user", text),
        items => {
            let items: Vec<Value> = fields::read("input", items)?;
            if items.is_empty() || items.len() > ITEMS {
                let message = format!("`input` has {} items; give 1 to {ITEMS}", items.len());
                return Err(ServerError::invalid("input", message));
            }
            for (i, item) in items.into_iter().enumerate() {
                conversation.take(&format!("input[{i}]"), item)?;
            }
        }
    }
    conversation.flush();
    Ok(conversation.messages)
}

#[derive(Default)]
struct InputConversation {
    messages: Vec<Value>,
    /// The assistant's message that is being put together.
    turn: Turn,
}

#[derive(Default)]
struct Turn {
    reasoning: String,
    content: Option<String>,
    calls: Vec<Value>,
}

impl InputConversation {
    fn say(&mut self, role: &str, text: String) {
        self.flush();
        self.messages.push(json!({"role": role, "content": text}));
    }

    fn take(&mut self, place: &str, item: Value) -> Result<(), ServerError> {
        match read_item(place, item)? {
            InputItem::Message { role: InputRole::Assistant, content, .. } => {
                let text = text(&format!("{place}.content"), content)?;
                if self.turn.content.is_some() || !self.turn.calls.is_empty() {
                    self.flush();
                }
                self.turn.content = Some(text);
            }
            InputItem::Message { role, content, .. } => {
                let text = text(&format!("{place}.content"), content)?;
                let role = match role {
                    InputRole::System => "system",
                    InputRole::Developer => "developer",
                    InputRole::User | InputRole::Assistant => "user",
                };
                self.say(role, text);
            }
            InputItem::FunctionCall { call_id, namespace, name, arguments, .. } => {
                self.call(&call_id, &function_name(namespace.as_deref(), &name), arguments);
            }
            InputItem::CustomToolCall { call_id, namespace, name, input, .. } => {
                let name = function_name(namespace.as_deref(), &name);
                self.call(&call_id, &name, arguments_of(&input));
            }
            InputItem::FunctionCallOutput { call_id, output, .. } => {
                let text = text(&format!("{place}.output"), output)?;
                self.flush();
                self.messages
                    .push(json!({"role": "tool", "tool_call_id": call_id, "content": text}));
            }
            InputItem::Reasoning { content, summary, .. } => {
                if self.turn.content.is_some() || !self.turn.calls.is_empty() {
                    self.flush();
                }
                self.turn.reasoning.push_str(&thoughts(content, summary));
            }
        }
        Ok(())
    }

    fn call(&mut self, id: &str, name: &str, arguments: String) {
        let function = json!({"name": name, "arguments": arguments});
        self.turn.calls.push(json!({"id": id, "type": "function", "function": function}));
    }

    /// Ends the assistant's message.
    fn flush(&mut self) {
        let Turn { reasoning, content, calls } = std::mem::take(&mut self.turn);
        if reasoning.is_empty() && content.is_none() && calls.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), content.unwrap_or_default().into());
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        self.messages.push(message.into());
    }
}

/// The reasoning itself, or the summary where that is all there is.
fn thoughts(content: Option<Vec<ReasoningText>>, summary: Option<Vec<SummaryText>>) -> String {
    let whole = content.unwrap_or_default();
    let texts: Vec<String> = if whole.is_empty() {
        let summary = summary.unwrap_or_default().into_iter();
        summary.map(|SummaryText::SummaryText { text }| text).collect()
    } else {
        whole.into_iter().map(|ReasoningText::ReasoningText { text }| text).collect()
    };
    texts.join("\n")
}

fn read_item(place: &str, mut item: Value) -> Result<InputItem, ServerError> {
    const KNOWN: [&str; 6] = [
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
    ];
    if let Some(fields) = item.as_object_mut() {
        // A message may leave its type out.
        if fields.contains_key("role") {
            fields.entry("type").or_insert("message".into());
        }
    }
    match item.get("type").and_then(Value::as_str) {
        Some(kind) if !KNOWN.contains(&kind) => Err(unsupported(place, kind)),
        _ => fields::read(place, item),
    }
}

/// One text, or text in parts.
fn text(place: &str, content: Value) -> Result<String, ServerError> {
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts: Vec<Value> = fields::read(place, content)?;
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{i}]");
        match part.get("type").and_then(Value::as_str) {
            Some(kind) if !["input_text", "output_text"].contains(&kind) => {
                return Err(unsupported(&place, kind));
            }
            _ => {}
        }
        let (TextPart::InputText { text } | TextPart::OutputText { text, .. }) =
            fields::read(&place, part)?;
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

fn unsupported(place: &str, kind: &str) -> ServerError {
    let message = format!("`{place}.type`: {} is not supported", crate::app::shortened(kind));
    ServerError::invalid(&format!("{place}.type"), message)
}
