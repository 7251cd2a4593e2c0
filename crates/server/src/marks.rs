//! Positions of a prompt that later prompts are likely to share: ends of messages.
//!
//! A boundary is found by rendering the conversation as it would be with another message there, or with none, and
//! taking what both renderings have in common. So it holds whatever a template does.

use crate::models::LiveModel;
use forerun::{RenderedChat, Token};
use forerun_text::{ChatInput, ChatTemplate};
use serde_json::{Value, json};

/// Marks of a client that are looked for.
const CLIENT_MARKS: usize = 4;
/// Fewer tokens are sooner read than looked up.
const SHORT: usize = 64;

/// A conversation as its template got it.
pub(crate) struct Rendered<'a> {
    pub(crate) template: &'a ChatTemplate,
    /// With the opening of the answer.
    pub(crate) chat: &'a RenderedChat,
}

impl Rendered<'_> {
    /// Positions in `tokens`, ascending. `asked` are the numbers of messages after which the client set a mark.
    pub(crate) fn marks(&self, model: &LiveModel, tokens: &[Token], asked: &[usize]) -> Vec<u32> {
        if tokens.len() < SHORT {
            return Vec::new();
        }
        let messages = &self.chat.prompt.messages;
        let count = messages.len();
        let is_system = |message: &&Value| message["role"] == "system";
        let system = messages.iter().take_while(is_system).count();
        let mut ends = vec![system, count];
        ends.extend(asked.iter().rev().take(CLIENT_MARKS).copied());
        ends.sort_unstable();
        ends.dedup();
        let mut marks: Vec<u32> =
            ends.into_iter().filter_map(|end| self.mark(model, tokens, end)).collect();
        // The last message may be asked anew, or be one of several that follow the same beginning; if it is long.
        let before_last = self.mark(model, tokens, count - 1);
        let apart = |at: &u32| marks.iter().all(|mark| mark.abs_diff(*at) >= SHORT as u32);
        marks.extend(before_last.filter(apart));
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    /// The position after the first `end` messages.
    fn mark(&self, model: &LiveModel, tokens: &[Token], end: usize) -> Option<u32> {
        let prompt = &self.chat.prompt;
        let mut messages = prompt.messages[..end].to_vec();
        if let Some(next) = prompt.messages.get(end) {
            messages.push(json!({"role": next["role"], "content": "~"}));
        }
        let rendered = self.template.render(&ChatInput {
            messages: &messages,
            tools: &prompt.tools,
            add_generation_prompt: false,
            extra: &prompt.variables,
        });
        // A template may refuse what is no whole conversation; then there is no boundary to be had.
        let common = common_text(&prompt.text, &rendered.ok()?).to_owned();
        let begun = model.tokenizer.encode_chat(&common, &prompt.literals).ok()?;
        let same = begun.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        u32::try_from(same).ok().filter(|&at| at > 0 && (at as usize) < tokens.len())
    }
}

/// Messages that a client marked, in one of the ways that are in use.
pub(crate) fn asked(messages: &[Value]) -> Vec<usize> {
    let marked = |value: &Value| value.get("cache_control").is_some_and(|mark| !mark.is_null());
    let has_mark = |message: &Value| {
        let parts = message.get("content").and_then(Value::as_array);
        marked(message) || parts.is_some_and(|parts| parts.iter().any(marked))
    };
    messages.iter().enumerate().filter(|(_, message)| has_mark(message)).map(|(i, _)| i).collect()
}

/// What two texts begin with alike.
fn common_text<'a>(a: &'a str, b: &str) -> &'a str {
    let differs = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    let end = differs.map_or(a.len().min(b.len()), |((at, _), _)| at);
    &a[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_beginning_in_common() {
        for (a, b, common) in [
            ("", "", ""),
            ("a", "", ""),
            ("äb", "äc", "ä"),
            ("abc", "ab", "ab"),
            ("ab", "abc", "ab"),
        ] {
            assert_eq!(common_text(a, b), common);
        }
    }

    #[test]
    fn marks_are_seen_on_messages_and_on_parts() {
        let mark = json!({"type": "ephemeral"});
        let messages = [
            json!({"role": "system", "content": "a", "cache_control": mark}),
            json!({"role": "user", "content": [{"type": "text", "text": "b"}]}),
            json!({"role": "user", "content": [{"type": "text", "text": "b", "cache_control": mark}]}),
            json!({"role": "user", "content": "c", "cache_control": null}),
        ];
        assert_eq!(asked(&messages), [0, 2]);
    }
}
