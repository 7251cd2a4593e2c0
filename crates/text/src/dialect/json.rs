//! Reads one call written as a JSON object with a name and arguments, character by character.
//!
//! Nothing is said before it is recognized that this is a call: the name is known and the arguments
//! have begun, or the object is complete. From there the text of the arguments is passed on as it
//! comes. The order of the keys does not matter; further keys are read over.

use super::piece::{CallStep, PieceList};
use super::tool::MAX_NAME_CHARS;

/// Room for a name or key in JSON's longest spelling.
const MAX_STRING_CHARS: usize = 6 * MAX_NAME_CHARS + 2;

#[derive(Clone, Debug)]
pub(super) struct JsonCall {
    at: JsonState,
    key: String,
    name: Option<String>,
    /// Arguments that came before the name, or as a string with JSON inside.
    waiting: String,
    value: Value,
    said: ReportedCall,
    /// What came after the arguments: not part of the call if that goes wrong.
    loose: String,
}

/// How much of the call was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedCall {
    Nothing,
    /// The name, and arguments as they come.
    Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum JsonState {
    Open,
    KeyOrEnd,
    Key,
    InKey(String),
    Colon,
    Value,
    InName(String),
    InArguments,
    InText,
    InOther,
    AfterValue,
}

impl JsonCall {
    pub(super) fn new() -> Self {
        Self {
            at: JsonState::Open,
            key: String::new(),
            name: None,
            waiting: String::new(),
            value: Value::default(),
            said: ReportedCall::Nothing,
            loose: String::new(),
        }
    }

    /// Whether the reader may still turn out to be wrong about this being a call.
    pub(super) fn is_certain(&self) -> bool {
        self.said != ReportedCall::Nothing
    }

    /// The name, once it is whole.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What was taken of a broken call without being passed on.
    pub(super) fn loose(&mut self) -> String {
        std::mem::take(&mut self.loose)
    }

    /// Takes a character. `known` says whether a tool of this name may be called.
    pub(super) fn take(
        &mut self,
        c: char,
        known: &dyn Fn(&str) -> bool,
        out: &mut PieceList<'_>,
    ) -> CallStep {
        let was_inside = self.at == JsonState::InArguments;
        let fed = self.step(c, known, out);
        let inside = was_inside || self.at == JsonState::InArguments;
        if fed == CallStep::More && self.is_certain() && !inside {
            self.loose.push(c);
        }
        fed
    }

    fn step(&mut self, c: char, known: &dyn Fn(&str) -> bool, out: &mut PieceList<'_>) -> CallStep {
        match &mut self.at {
            JsonState::InKey(text) | JsonState::InName(text) => {
                text.push(c);
                return match self.value.take(c) {
                    _ if text.len() > MAX_STRING_CHARS => CallStep::Wrong,
                    ValueStep::Last => self.string_ended(known),
                    _ => CallStep::More,
                };
            }
            JsonState::InArguments | JsonState::InText | JsonState::InOther => {
                return self.inside(c, out);
            }
            _ if c.is_ascii_whitespace() => return CallStep::More,
            _ => {}
        }
        self.at = match (&self.at, c) {
            (JsonState::Open, '{') => JsonState::KeyOrEnd,
            (JsonState::KeyOrEnd | JsonState::Key, '"') => {
                self.value.start(c);
                JsonState::InKey(c.to_string())
            }
            (JsonState::Colon, ':') => JsonState::Value,
            (JsonState::Value, c) => return self.value_begins(c, out),
            (JsonState::AfterValue, ',') => JsonState::Key,
            (JsonState::AfterValue | JsonState::KeyOrEnd, '}') => return self.closed(out),
            _ => return CallStep::Wrong,
        };
        CallStep::More
    }

    fn string_ended(&mut self, known: &dyn Fn(&str) -> bool) -> CallStep {
        let (JsonState::InKey(text) | JsonState::InName(text)) = &self.at else {
            unreachable!("called from those two states only")
        };
        let Ok(text) = serde_json::from_str::<String>(text) else { return CallStep::Wrong };
        if matches!(self.at, JsonState::InKey(_)) {
            self.key = text;
            self.at = JsonState::Colon;
            return CallStep::More;
        }
        let fits = !text.is_empty() && text.chars().count() <= MAX_NAME_CHARS && known(&text);
        if !fits || self.name.is_some() {
            return CallStep::Wrong;
        }
        self.name = Some(text);
        self.at = JsonState::AfterValue;
        CallStep::More
    }

    fn value_begins(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        let arguments = matches!(self.key.as_str(), "arguments" | "parameters");
        let first = self.waiting.is_empty() && self.said == ReportedCall::Nothing;
        self.at = match (self.key.as_str(), c) {
            ("name", '"') => JsonState::InName(c.to_string()),
            ("name", _) => return CallStep::Wrong,
            (_, '{') if arguments && first => JsonState::InArguments,
            (_, '"') if arguments && first => JsonState::InText,
            _ if arguments => return CallStep::Wrong,
            _ => JsonState::InOther,
        };
        if matches!(self.at, JsonState::InName(_)) {
            self.value.start(c);
            return CallStep::More;
        }
        if !self.value.start(c) {
            return CallStep::Wrong;
        }
        if matches!(self.at, JsonState::InArguments) {
            self.say_name(out);
        }
        self.pass_on(c, out);
        CallStep::More
    }

    fn inside(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match self.value.take(c) {
            ValueStep::Wrong => CallStep::Wrong,
            // Only a bare word ends before a character, and it is never an argument.
            ValueStep::Before => {
                self.at = JsonState::AfterValue;
                self.step(c, &|_| true, out)
            }
            ValueStep::Inside => {
                self.pass_on(c, out);
                CallStep::More
            }
            ValueStep::Last => {
                self.pass_on(c, out);
                if self.at == JsonState::InText {
                    let Ok(text) = serde_json::from_str(&self.waiting) else {
                        return CallStep::Wrong;
                    };
                    self.waiting = text;
                }
                self.at = JsonState::AfterValue;
                CallStep::More
            }
        }
    }

    fn pass_on(&mut self, c: char, out: &mut PieceList<'_>) {
        match self.at {
            JsonState::InArguments if self.is_certain() => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
            }
            JsonState::InArguments | JsonState::InText => self.waiting.push(c),
            _ => {}
        }
    }

    fn say_name(&mut self, out: &mut PieceList<'_>) {
        if let (Some(name), ReportedCall::Nothing) = (&self.name, self.said) {
            out.call(name);
            self.said = ReportedCall::Name;
        }
    }

    fn closed(&mut self, out: &mut PieceList<'_>) -> CallStep {
        if self.name.is_none() {
            return CallStep::Wrong;
        }
        if self.said == ReportedCall::Nothing {
            self.say_name(out);
            let empty = self.waiting.trim().is_empty();
            out.arguments(if empty { "{}" } else { &self.waiting });
        }
        out.end();
        CallStep::Done
    }
}

/// Finds the end of a JSON value. Brackets are counted, not matched: what is inside is for the
/// client to judge.
#[derive(Clone, Debug, Default)]
struct Value {
    depth: u32,
    in_string: bool,
    escaped: bool,
    word: bool,
}

enum ValueStep {
    Inside,
    /// This character is the last of the value.
    Last,
    /// The value ended before this character.
    Before,
    Wrong,
}

impl Value {
    /// Begins with the first character; false when no value begins so.
    fn start(&mut self, c: char) -> bool {
        *self = Self::default();
        match c {
            '{' | '[' => self.depth = 1,
            '"' => self.in_string = true,
            c if c == '-' || c.is_ascii_alphanumeric() => self.word = true,
            _ => return false,
        }
        true
    }

    fn take(&mut self, c: char) -> ValueStep {
        if self.escaped {
            self.escaped = false;
            return ValueStep::Inside;
        }
        if self.in_string {
            match c {
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return self.ended();
                }
                _ => {}
            }
            return ValueStep::Inside;
        }
        if self.word {
            let goes_on = c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
            return if goes_on { ValueStep::Inside } else { ValueStep::Before };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => {
                self.depth -= 1;
                return self.ended();
            }
            // No JSON has it outside a string; most likely the mark that ends the call.
            '<' => return ValueStep::Wrong,
            _ => {}
        }
        ValueStep::Inside
    }

    fn ended(&self) -> ValueStep {
        if self.depth == 0 { ValueStep::Last } else { ValueStep::Inside }
    }
}
