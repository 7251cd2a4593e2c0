//! Messages made of blocks to messages as chat templates want them.
//!
//! A result of a tool is a block of the user's here and a message of its own for templates; a call is a block of
//! the assistant's here and a field there.

use crate::api::{Ignored, fields};
use crate::error::ServerError;
use crate::wire::anthropic::{Message, MessageRole, RequestBlock};
use serde_json::{Map, Value, json};

/// Most messages of a conversation.
const MESSAGES: usize = 10_000;

/// The conversation, with the system's words first.
pub(super) fn messages(
    system: Option<Value>,
    messages: Vec<Message>,
    ignored: &Ignored,
) -> Result<(Vec<Value>, Option<String>), ServerError> {
    if messages.is_empty() || messages.len() > MESSAGES {
        let message = format!("`messages` has {}; give 1 to {MESSAGES}", messages.len());
        return Err(ServerError::invalid("messages", message));
    }
    let continued = messages.len() > 1
        && messages.last().is_some_and(|last| last.role == MessageRole::Assistant);
    let mut out = Vec::new();
    if let Some(system) = system {
        let blocks = without_billing(blocks("system", system)?, ignored)?;
        let marked = blocks.iter().any(is_marked);
        out.push(json!({"role": "system", "content": texts("system", blocks)?}));
        mark(&mut out, marked);
    }
    for (i, message) in messages.into_iter().enumerate() {
        let place = format!("messages[{i}].content");
        let blocks = blocks(&place, message.content)?;
        if blocks.is_empty() {
            return Err(ServerError::invalid(&place, format!("`{place}` has no blocks")));
        }
        let marked = blocks.iter().any(is_marked);
        match message.role {
            MessageRole::System => {
                out.push(json!({"role": "system", "content": texts(&place, blocks)?}));
            }
            MessageRole::User => user(&place, blocks, &mut out)?,
            MessageRole::Assistant => out.push(assistant(&place, blocks)?),
        }
        mark(&mut out, marked);
    }
    let beginning = if continued { Some(beginning(&mut out)?) } else { None };
    Ok((out, beginning))
}

/// Takes the last message out, of which the answer is the rest. It must be text alone.
fn beginning(messages: &mut Vec<Value>) -> Result<String, ServerError> {
    let last = messages.pop().unwrap_or_default();
    let text = last["content"].as_str().filter(|_| last.get("tool_calls").is_none());
    text.map(str::to_owned).ok_or_else(|| {
        let message = "the last of `messages` is the assistant's and calls tools; give their results behind it";
        ServerError::invalid("messages", message)
    })
}

/// The system's words without a label for billing, which Claude Code puts first and which is another one in every
/// session: with it, no session would find what the one before it left in the prefix cache.
fn without_billing(
    mut blocks: Vec<RequestBlock>,
    ignored: &Ignored,
) -> Result<Vec<RequestBlock>, ServerError> {
    const LABEL: &str = "x-anthropic-billing-header:";
    let label = |block: &RequestBlock| match block {
        RequestBlock::Text { text, .. } => {
            text.starts_with(LABEL) && !text.trim_end().contains('\n')
        }
        _ => false,
    };
    if blocks.first().is_some_and(label) && ignored.field("system[0]")? {
        blocks.remove(0);
    }
    Ok(blocks)
}

/// Whether the prompt is worth keeping up to here.
fn is_marked(block: &RequestBlock) -> bool {
    match block {
        RequestBlock::Text { cache_control, .. }
        | RequestBlock::ToolUse { cache_control, .. }
        | RequestBlock::ToolResult { cache_control, .. } => cache_control.is_some(),
        RequestBlock::Thinking { .. } | RequestBlock::RedactedThinking { .. } => false,
    }
}

/// Marks the last message; where in it the mark stood is lost, as templates write messages whole.
fn mark(messages: &mut [Value], marked: bool) {
    if let (Some(last), true) = (messages.last_mut(), marked) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
}

/// Content as blocks; a text is one.
fn blocks(place: &str, content: Value) -> Result<Vec<RequestBlock>, ServerError> {
    if let Value::String(text) = content {
        return Ok(vec![RequestBlock::Text { text, cache_control: None, _citations: None }]);
    }
    let blocks: Vec<Value> = fields::read(place, content)?;
    let block = |(i, block)| read_block(&format!("{place}[{i}]"), block);
    blocks.into_iter().enumerate().map(block).collect()
}

fn read_block(place: &str, block: Value) -> Result<RequestBlock, ServerError> {
    const KNOWN: [&str; 5] = ["text", "thinking", "redacted_thinking", "tool_use", "tool_result"];
    match block.get("type").and_then(Value::as_str) {
        Some(kind) if !KNOWN.contains(&kind) => Err(ServerError::invalid(
            &format!("{place}.type"),
            format!("`{place}.type`: {} is not supported; send text", crate::app::shortened(kind)),
        )),
        _ => fields::read(place, block),
    }
}

fn misplaced(place: &str, i: usize, what: &str) -> ServerError {
    let place = format!("{place}[{i}]");
    ServerError::invalid(&place, format!("`{place}`: a block of type {what} does not belong here"))
}

/// The text of blocks that may be nothing else.
fn texts(place: &str, blocks: Vec<RequestBlock>) -> Result<String, ServerError> {
    let text = |(i, block)| match block {
        RequestBlock::Text { text, .. } => Ok(text),
        other => Err(misplaced(place, i, kind(&other))),
    };
    let texts: Vec<String> = blocks.into_iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

fn kind(block: &RequestBlock) -> &'static str {
    match block {
        RequestBlock::Text { .. } => "text",
        RequestBlock::Thinking { .. } => "thinking",
        RequestBlock::RedactedThinking { .. } => "redacted_thinking",
        RequestBlock::ToolUse { .. } => "tool_use",
        RequestBlock::ToolResult { .. } => "tool_result",
    }
}

/// Texts and results in their order.
fn user(place: &str, blocks: Vec<RequestBlock>, out: &mut Vec<Value>) -> Result<(), ServerError> {
    let mut texts: Vec<String> = Vec::new();
    let say = |texts: &mut Vec<String>, out: &mut Vec<Value>| {
        if !texts.is_empty() {
            out.push(json!({"role": "user", "content": std::mem::take(texts).join("\n")}));
        }
    };
    for (i, block) in blocks.into_iter().enumerate() {
        match block {
            RequestBlock::Text { text, .. } => texts.push(text),
            RequestBlock::ToolResult { tool_use_id, content, is_error, .. } => {
                say(&mut texts, out);
                let place = format!("{place}[{i}].content");
                let text = match content {
                    None => String::new(),
                    Some(content) => self::texts(&place, self::blocks(&place, content)?)?,
                };
                // Templates have no other word for it.
                let text = if is_error == Some(true) { format!("Error: {text}") } else { text };
                out.push(json!({"role": "tool", "tool_call_id": tool_use_id, "content": text}));
            }
            other => return Err(misplaced(place, i, kind(&other))),
        }
    }
    say(&mut texts, out);
    Ok(())
}

fn assistant(place: &str, blocks: Vec<RequestBlock>) -> Result<Value, ServerError> {
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        match block {
            RequestBlock::Text { text, .. } => texts.push(text),
            RequestBlock::Thinking { thinking, .. } => thoughts.push(thinking),
            RequestBlock::RedactedThinking { .. } => {}
            RequestBlock::ToolUse { id, name, input, .. } => calls.push(json!({
                "id": id, "type": "function", "function": {"name": name, "arguments": input},
            })),
            other => return Err(misplaced(place, i, kind(&other))),
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), texts.join("\n").into());
    if !thoughts.is_empty() {
        message.insert("reasoning_content".to_owned(), thoughts.join("\n").into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(message.into())
}
