//! Tries a template out: what it does with messages it may or may not have been written for.

use crate::template::{ChatInput, ChatTemplate};
use serde_json::{Map, Value, json};

/// What a template wants messages to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TemplateTraits {
    /// Reads content given as a list of parts.
    pub(super) parts: bool,
    /// Wants the arguments of earlier calls as JSON text, not as an object.
    pub(super) text_arguments: bool,
    /// Has a word for the role `developer`.
    pub(super) developer: bool,
}

/// Words no template contains.
const WORD: &str = "qzvpart";
const KEY: &str = "qzvkey";

impl TemplateTraits {
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let says = |mark: &str| template.sources().any(|source| source.contains(mark));
        Self {
            parts: reads_parts(template),
            text_arguments: !shows_call(template, &json!({KEY: WORD}))
                && shows_call(template, &json!({KEY: WORD}).to_string().into()),
            developer: says("developer"),
        }
    }
}

fn reads_parts(template: &ChatTemplate) -> bool {
    let messages = [json!({"role": "user", "content": [{"type": "text", "text": WORD}]})];
    // A template that knows no parts prints the list itself, key names and all.
    let printed = |text: &str| text.contains("'type'") || text.contains("\"type\"");
    render(template, &messages).is_some_and(|text| text.contains(WORD) && !printed(&text))
}

fn shows_call(template: &ChatTemplate, arguments: &Value) -> bool {
    let function = json!({"name": "f", "arguments": arguments});
    let messages = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": "",
               "tool_calls": [{"id": "1", "type": "function", "function": function}]}),
        json!({"role": "tool", "content": "b", "tool_call_id": "1", "name": "f"}),
    ];
    render(template, &messages).is_some_and(|text| text.contains(KEY) && text.contains(WORD))
}

fn render(template: &ChatTemplate, messages: &[Value]) -> Option<String> {
    let extra = Map::new();
    let input = ChatInput { messages, tools: &[], add_generation_prompt: true, extra: &extra };
    template.render(&input).ok()
}
