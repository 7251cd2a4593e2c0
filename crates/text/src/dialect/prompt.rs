//! A conversation to a prompt, for whatever template: with a form for tools where it has none, in an order it accepts,
//! and with special tokens of its own only.

use super::Dialect;
use crate::error::TextError;
use crate::literal::Literals;
use crate::template::{ChatInput, ChatTemplate};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// A template that took longer to refuse a conversation is not asked again.
const PATIENCE: Duration = Duration::from_secs(1);

/// A conversation as a client has it.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Messages of the chat API.
    pub messages: &'a [Value],
    /// Definitions of the tools the model hears of.
    pub tools: &'a [Value],
    /// Further variables for the template.
    pub variables: &'a Map<String, Value>,
    /// Whether special tokens that messages spell are special tokens; otherwise they are text.
    pub parse_special: bool,
}

/// A rendered conversation.
#[derive(Clone, Debug)]
pub struct RenderedPrompt {
    /// What the template wrote, for [`Tokenizer::encode_chat`].
    pub text: String,
    /// The messages as the template got them.
    pub messages: Vec<Value>,
    /// The tools as the template got them.
    pub tools: Vec<Value>,
    /// The variables as the template got them.
    pub variables: Map<String, Value>,
    /// What was taken out of them, because it spells special tokens.
    pub literals: Literals,
    /// What the conversation had to be changed in for the template to accept it.
    pub notes: Vec<&'static str>,
    /// For each of `messages` the last of the client's that it holds.
    last: Vec<usize>,
}

impl RenderedPrompt {
    /// How many of `messages` hold nothing that comes after message `index` of the client.
    pub fn end_of(&self, index: usize) -> usize {
        self.last.iter().take_while(|&&last| last <= index).count()
    }
}

/// A message and the last of the client's messages in it.
#[derive(Clone, Debug, PartialEq)]
struct TracedMessage {
    last: usize,
    message: Value,
}

impl TracedMessage {
    fn is(&self, role: &str) -> bool {
        self.message["role"] == role
    }

    fn is_system(&self) -> bool {
        self.is("system") || self.is("developer")
    }

    /// Adds to the content.
    fn append(&mut self, content: &Value) {
        let parts = |text: &str| vec![json!({"type": "text", "text": text})];
        let joined = match (&self.message["content"], content) {
            (Value::String(a), Value::String(b)) if a.is_empty() => b.as_str().into(),
            (Value::String(a), Value::String(b)) => format!("{a}\n\n{b}").into(),
            (Value::Array(a), Value::Array(b)) => [&a[..], b].concat().into(),
            (Value::Array(a), Value::String(b)) => [&a[..], &parts(b)].concat().into(),
            (Value::String(a), Value::Array(b)) => [&parts(a), &b[..]].concat().into(),
            (_, content) => content.clone(),
        };
        self.message["content"] = joined;
    }
}

impl Dialect {
    /// Renders a conversation up to the opening of the answer. One that the template refuses is rendered in another
    /// order if that helps: system messages in the first one, the system's words in the user's first message,
    /// neighbours of the same role in one.
    pub fn prompt(
        &self,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        conversation: &Conversation<'_>,
    ) -> Result<RenderedPrompt, TextError> {
        let mut messages = self.normalise_messages(conversation.messages)?;
        let mut tools = conversation.tools.to_vec();
        let mut variables = conversation.variables.clone();
        let mut literals = Literals::default();
        if !conversation.parse_special {
            literals.hide_messages(tokenizer, &mut messages, &self.own_marks());
            tools.iter_mut().for_each(|tool| literals.hide(tokenizer, tool, &[]));
            literals.hide_fields(tokenizer, &mut variables, &[]);
        }
        let turns = messages.into_iter().enumerate();
        let mut turns: Vec<TracedMessage> =
            turns.map(|(last, message)| TracedMessage { last, message }).collect();
        if self.generic {
            turns = plain_turns(turns);
            offer(&mut turns, &std::mem::take(&mut tools));
        }
        let render = |turns: &[TracedMessage]| {
            let messages: Vec<Value> = turns.iter().map(|turn| turn.message.clone()).collect();
            let input = ChatInput {
                messages: &messages,
                tools: &tools,
                add_generation_prompt: true,
                extra: &variables,
            };
            template.render(&input).map(|text| (text, messages))
        };
        let (turns, (text, messages), notes) = accepted(turns, &render)?;
        let last = turns.iter().map(|turn| turn.last).collect();
        Ok(RenderedPrompt { text, messages, tools, variables, literals, notes, last })
    }

    /// Marks that mean something in what the assistant said.
    pub fn own_marks(&self) -> Vec<&'static str> {
        self.special.iter().map(|&(mark, _)| mark).collect()
    }
}

type Rearrangement = fn(Vec<TracedMessage>) -> Vec<TracedMessage>;

/// The conversation in the first order that the template accepts, what it rendered, and what was changed.
fn accepted<T>(
    mut turns: Vec<TracedMessage>,
    render: &dyn Fn(&[TracedMessage]) -> Result<T, TextError>,
) -> Result<(Vec<TracedMessage>, T, Vec<&'static str>), TextError> {
    const CHANGES: [(Rearrangement, &str); 3] = [
        (one_system, "system messages that are not first were joined to the first"),
        (no_system, "the system's words were put into the first message of the user"),
        (no_neighbours, "messages of the same role that follow each other were joined"),
    ];
    let began = Instant::now();
    let refusal = match render(&turns) {
        Ok(done) => return Ok((turns, done, Vec::new())),
        Err(refusal @ TextError::Template { .. }) => refusal,
        Err(error) => return Err(error),
    };
    let mut notes = Vec::new();
    for (change, note) in CHANGES {
        let changed = change(turns.clone());
        if changed == turns {
            continue;
        }
        if began.elapsed() > PATIENCE {
            break;
        }
        turns = changed;
        notes.push(note);
        if let Ok(done) = render(&turns) {
            return Ok((turns, done, notes));
        }
    }
    Err(refusal)
}

/// All system messages in one at the beginning.
fn one_system(turns: Vec<TracedMessage>) -> Vec<TracedMessage> {
    let (system, mut others): (Vec<TracedMessage>, Vec<TracedMessage>) =
        turns.into_iter().partition(TracedMessage::is_system);
    let mut system = system.into_iter();
    if let Some(mut first) = system.next() {
        system.for_each(|more| first.append(&more.message["content"]));
        first.last = 0;
        others.insert(0, first);
    }
    others
}

/// The first message, if it is the system's, before the user's first words.
fn no_system(mut turns: Vec<TracedMessage>) -> Vec<TracedMessage> {
    if !turns.first().is_some_and(TracedMessage::is_system) {
        return turns;
    }
    let mut first = turns.remove(0);
    first.message["role"] = "user".into();
    match turns.first_mut().filter(|next| next.is("user")) {
        Some(next) => {
            first.append(&next.message["content"]);
            next.message["content"] = first.message["content"].take();
        }
        None => turns.insert(0, first),
    }
    turns
}

/// Messages of the user, or of the assistant, that follow each other as one.
fn no_neighbours(turns: Vec<TracedMessage>) -> Vec<TracedMessage> {
    let mut joined: Vec<TracedMessage> = Vec::with_capacity(turns.len());
    for turn in turns {
        match joined.last_mut() {
            Some(before)
                if before.message["role"] == turn.message["role"]
                    && (turn.is("user") || turn.is("assistant"))
                    && before.message.get("tool_calls").is_none()
                    && turn.message.get("tool_calls").is_none() =>
            {
                before.append(&turn.message["content"]);
                before.last = turn.last;
            }
            _ => joined.push(turn),
        }
    }
    joined
}

/// Calls and results as text, for a template that knows neither.
fn plain_turns(turns: Vec<TracedMessage>) -> Vec<TracedMessage> {
    let mut plain: Vec<TracedMessage> = Vec::with_capacity(turns.len());
    let mut after_result = false;
    for mut turn in turns {
        let is_result = turn.is("tool");
        if let Some(Value::Array(calls)) =
            turn.message.as_object_mut().and_then(|message| message.shift_remove("tool_calls"))
        {
            for call in &calls {
                let function = &call["function"];
                let arguments = match &function["arguments"] {
                    Value::String(text) => text.clone(),
                    object => object.to_string(),
                };
                let name = &function["name"];
                let text = format!(
                    "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
                );
                turn.append(&text.into());
            }
        }
        if is_result {
            let text =
                format!("<tool_response>\n{}\n</tool_response>", text_of(&turn.message["content"]));
            turn.message = json!({"role": "user", "content": text});
        }
        match plain.last_mut() {
            // Results of one round are one message.
            Some(before) if is_result && after_result => {
                before.append(&turn.message["content"]);
                before.last = turn.last;
            }
            _ => plain.push(turn),
        }
        after_result = is_result;
    }
    plain
}

fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        content => content.as_str().unwrap_or_default().to_owned(),
    }
}

/// Tells of the tools in the system's words.
fn offer(turns: &mut Vec<TracedMessage>, tools: &[Value]) {
    if tools.is_empty() {
        return;
    }
    let mut text = "You can call tools. Each line between <tools> and </tools> describes one: its name, what it does, \
         and the JSON schema of its arguments.\n<tools>\n"
        .to_owned();
    for tool in tools {
        text.push_str(&tool["function"].to_string());
        text.push('\n');
    }
    text.push_str(
        "</tools>\n\nTo call a tool, write its name and its arguments as JSON between these marks, once for each call:\n\
         <tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>\n\n\
         The result comes back between <tool_response> and </tool_response>. Where no tool is needed, answer in words.",
    );
    match turns.first_mut().filter(|first| first.is_system()) {
        Some(first) => first.append(&text.into()),
        None => turns.insert(
            0,
            TracedMessage { last: 0, message: json!({"role": "system", "content": text}) },
        ),
    }
}
