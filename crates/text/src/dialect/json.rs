//! Reads one call written as a JSON object with a name and arguments, character by character.
//!
//! Nothing is said before it is certain that this is a call: the name is known and the arguments
//! have begun, or the object is complete. From there the text of the arguments is passed on as it
//! comes. The order of the keys does not matter; further keys are read over.

use super::piece::{Fed, Pieces};
use super::tool::MAX_NAME_CHARS;

/// Room for a name or key in JSON's longest spelling.
const MAX_STRING_CHARS: usize = 6 * MAX_NAME_CHARS + 2;

#[derive(Clone, Debug)]
pub(super) struct JsonCall {
    at: At,
    key: String,
    name: Option<String>,
    /// Arguments that came before the name, or as a string with JSON inside.
    waiting: String,
    value: Value,
    said: Said,
    /// What came after the arguments: not part of the call if that goes wrong.
    loose: String,
}

/// How much of the call was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    /// The name, and arguments as they come.
    Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
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
            at: At::Open,
            key: String::new(),
            name: None,
            waiting: String::new(),
            value: Value::default(),
            said: Said::Nothing,
            loose: String::new(),
        }
    }

    /// Whether the reader may still turn out to be wrong about this being a call.
    pub(super) fn is_certain(&self) -> bool {
        self.said != Said::Nothing
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
        out: &mut Pieces<'_>,
    ) -> Fed {
        let was_inside = self.at == At::InArguments;
        let fed = self.step(c, known, out);
        let inside = was_inside || self.at == At::InArguments;
        if fed == Fed::More && self.is_certain() && !inside {
            self.loose.push(c);
        }
        fed
    }

    fn step(&mut self, c: char, known: &dyn Fn(&str) -> bool, out: &mut Pieces<'_>) -> Fed {
        match &mut self.at {
            At::InKey(text) | At::InName(text) => {
                text.push(c);
                return match self.value.take(c) {
                    _ if text.len() > MAX_STRING_CHARS => Fed::Wrong,
                    Step::Last => self.string_ended(known),
                    _ => Fed::More,
                };
            }
            At::InArguments | At::InText | At::InOther => return self.inside(c, out),
            _ if c.is_ascii_whitespace() => return Fed::More,
            _ => {}
        }
        self.at = match (&self.at, c) {
            (At::Open, '{') => At::KeyOrEnd,
            (At::KeyOrEnd | At::Key, '"') => {
                self.value.start(c);
                At::InKey(c.to_string())
            }
            (At::Colon, ':') => At::Value,
            (At::Value, c) => return self.value_begins(c, out),
            (At::AfterValue, ',') => At::Key,
            (At::AfterValue | At::KeyOrEnd, '}') => return self.closed(out),
            _ => return Fed::Wrong,
        };
        Fed::More
    }

    fn string_ended(&mut self, known: &dyn Fn(&str) -> bool) -> Fed {
        let (At::InKey(text) | At::InName(text)) = &self.at else {
            unreachable!("called from those two states only")
        };
        let Ok(text) = serde_json::from_str::<String>(text) else { return Fed::Wrong };
        if matches!(self.at, At::InKey(_)) {
            self.key = text;
            self.at = At::Colon;
            return Fed::More;
        }
        let fits = !text.is_empty() && text.chars().count() <= MAX_NAME_CHARS && known(&text);
        if !fits || self.name.is_some() {
            return Fed::Wrong;
        }
        self.name = Some(text);
        self.at = At::AfterValue;
        Fed::More
    }

    fn value_begins(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        let arguments = matches!(self.key.as_str(), "arguments" | "parameters");
        let first = self.waiting.is_empty() && self.said == Said::Nothing;
        self.at = match (self.key.as_str(), c) {
            ("name", '"') => At::InName(c.to_string()),
            ("name", _) => return Fed::Wrong,
            (_, '{') if arguments && first => At::InArguments,
            (_, '"') if arguments && first => At::InText,
            _ if arguments => return Fed::Wrong,
            _ => At::InOther,
        };
        if matches!(self.at, At::InName(_)) {
            self.value.start(c);
            return Fed::More;
        }
        if !self.value.start(c) {
            return Fed::Wrong;
        }
        if matches!(self.at, At::InArguments) {
            self.say_name(out);
        }
        self.pass_on(c, out);
        Fed::More
    }

    fn inside(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        match self.value.take(c) {
            Step::Wrong => Fed::Wrong,
            // Only a bare word ends before a character, and it is never an argument.
            Step::Before => {
                self.at = At::AfterValue;
                self.step(c, &|_| true, out)
            }
            Step::Inside => {
                self.pass_on(c, out);
                Fed::More
            }
            Step::Last => {
                self.pass_on(c, out);
                if self.at == At::InText {
                    let Ok(text) = serde_json::from_str(&self.waiting) else { return Fed::Wrong };
                    self.waiting = text;
                }
                self.at = At::AfterValue;
                Fed::More
            }
        }
    }

    fn pass_on(&mut self, c: char, out: &mut Pieces<'_>) {
        match self.at {
            At::InArguments if self.is_certain() => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
            }
            At::InArguments | At::InText => self.waiting.push(c),
            _ => {}
        }
    }

    fn say_name(&mut self, out: &mut Pieces<'_>) {
        if let (Some(name), Said::Nothing) = (&self.name, self.said) {
            out.call(name);
            self.said = Said::Name;
        }
    }

    fn closed(&mut self, out: &mut Pieces<'_>) -> Fed {
        if self.name.is_none() {
            return Fed::Wrong;
        }
        if self.said == Said::Nothing {
            self.say_name(out);
            let empty = self.waiting.trim().is_empty();
            out.arguments(if empty { "{}" } else { &self.waiting });
        }
        out.end();
        Fed::Done
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

enum Step {
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

    fn take(&mut self, c: char) -> Step {
        if self.escaped {
            self.escaped = false;
            return Step::Inside;
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
            return Step::Inside;
        }
        if self.word {
            let goes_on = c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
            return if goes_on { Step::Inside } else { Step::Before };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => {
                self.depth -= 1;
                return self.ended();
            }
            // No JSON has it outside a string; most likely the mark that ends the call.
            '<' => return Step::Wrong,
            _ => {}
        }
        Step::Inside
    }

    fn ended(&self) -> Step {
        if self.depth == 0 { Step::Last } else { Step::Inside }
    }
}
