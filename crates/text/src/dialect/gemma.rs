//! Reads one call as Gemma writes it, character by character:
//!
//! ```text
//! call:NAME{key:<|"|>text<|"|>,other:[1,true,{inner:null}]}
//! ```
//!
//! The arguments come out as JSON. Keys are bare or quoted, strings stand between quote marks and
//! hold any text, everything else is written as in JSON. A bare word that is no JSON is taken as
//! a string.

use super::GEMMA_QUOTE;
use super::piece::{CallStep, PieceList};
use super::tool::MAX_NAME_CHARS;
use super::xml::is_number;

const PREFIX: &str = "call:";
const MAX_DEPTH: usize = 64;
/// Bare words and keys; longer ones are not what the form is for.
const MAX_BARE_BYTES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct GemmaCall {
    at: GemmaState,
    text: String,
    /// What is open: true for an object, false for a list.
    open: Vec<bool>,
    /// Whether the innermost open one has an item already.
    filled: bool,
    recognized: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GemmaState {
    Prefix,
    Name,
    /// A key or the end of the object.
    Key,
    /// A key in quote marks, with the mark that ends it.
    InKey(&'static str),
    Colon,
    Value,
    InString(&'static str),
    AfterValue,
}

impl GemmaCall {
    pub(super) fn new() -> Self {
        Self {
            at: GemmaState::Prefix,
            text: String::new(),
            open: Vec::new(),
            filled: false,
            recognized: false,
        }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.recognized
    }

    pub(super) fn take(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match self.at {
            GemmaState::Prefix => self.prefix(c),
            GemmaState::Name => self.name(c, out),
            GemmaState::Key => self.key(c, out),
            GemmaState::InKey(mark) => self.quoted_key(c, mark, out),
            GemmaState::Value => self.value(c, out),
            GemmaState::InString(mark) => self.string(c, mark, out),
            _ if c.is_ascii_whitespace() => CallStep::More,
            GemmaState::Colon if c == ':' => {
                self.at = GemmaState::Value;
                CallStep::More
            }
            GemmaState::Colon => CallStep::Wrong,
            GemmaState::AfterValue => self.after_value(c, out),
        }
    }

    fn prefix(&mut self, c: char) -> CallStep {
        if self.text.is_empty() && c.is_ascii_whitespace() {
            return CallStep::More;
        }
        self.text.push(c);
        if self.text == PREFIX {
            self.text.clear();
            self.at = GemmaState::Name;
        } else if !PREFIX.starts_with(&self.text) {
            return CallStep::Wrong;
        }
        CallStep::More
    }

    fn name(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        let name = self.text.trim();
        match c {
            '{' if !name.is_empty() => {
                out.call(name);
                self.recognized = true;
                self.text.clear();
                self.opens(true, out)
            }
            '{' | '}' | '<' | '\n' => CallStep::Wrong,
            _ if self.text.len() >= 4 * MAX_NAME_CHARS => CallStep::Wrong,
            _ => {
                self.text.push(c);
                CallStep::More
            }
        }
    }

    fn opens(&mut self, object: bool, out: &mut PieceList<'_>) -> CallStep {
        if self.open.len() >= MAX_DEPTH {
            return CallStep::Wrong;
        }
        out.arguments(if object { "{" } else { "[" });
        self.open.push(object);
        self.filled = false;
        self.at = if object { GemmaState::Key } else { GemmaState::Value };
        CallStep::More
    }

    fn closes(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        if self.open.pop() != Some(c == '}') {
            return CallStep::Wrong;
        }
        out.arguments(if c == '}' { "}" } else { "]" });
        self.filled = true;
        self.at = GemmaState::AfterValue;
        if self.open.is_empty() {
            out.end();
            return CallStep::Done;
        }
        CallStep::More
    }

    /// The separator before an item of the innermost object or list.
    fn separate(&mut self, out: &mut PieceList<'_>) {
        if std::mem::replace(&mut self.filled, true) {
            out.arguments(", ");
        }
    }

    fn key(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        if self.text.is_empty() {
            match c {
                '}' => return self.closes(c, out),
                '"' => {
                    self.at = GemmaState::InKey("\"");
                    return CallStep::More;
                }
                c if c.is_ascii_whitespace() => return CallStep::More,
                _ => {}
            }
        }
        if c == ':' {
            let key = std::mem::take(&mut self.text);
            let key = key.trim();
            if key.is_empty() {
                return CallStep::Wrong;
            }
            self.separate(out);
            out.string(key);
            out.arguments(": ");
            self.at = GemmaState::Value;
            return CallStep::More;
        }
        self.text.push(c);
        if self.text == GEMMA_QUOTE {
            self.text.clear();
            self.at = GemmaState::InKey(GEMMA_QUOTE);
        } else if !GEMMA_QUOTE.starts_with(&self.text)
            && (",{}[]<".contains(c) || self.text.len() > MAX_BARE_BYTES)
        {
            self.text.pop();
            return CallStep::Wrong;
        }
        CallStep::More
    }

    fn quoted_key(&mut self, c: char, mark: &str, out: &mut PieceList<'_>) -> CallStep {
        self.text.push(c);
        if self.text.ends_with(mark) {
            let key = std::mem::take(&mut self.text);
            self.separate(out);
            out.string(&key[..key.len() - mark.len()]);
            out.arguments(": ");
            self.at = GemmaState::Colon;
        } else if self.text.len() > MAX_BARE_BYTES {
            self.text.pop();
            return CallStep::Wrong;
        }
        CallStep::More
    }

    fn value(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        let in_list = self.open.last() == Some(&false);
        if self.text.is_empty() {
            match c {
                c if c.is_ascii_whitespace() => return CallStep::More,
                ']' if in_list => return self.closes(c, out),
                '{' | '[' => {
                    self.before_item(in_list, out);
                    return self.opens(c == '{', out);
                }
                '"' => return self.string_opens("\"", in_list, out),
                ',' | '}' | ']' | ':' => return CallStep::Wrong,
                _ => {}
            }
        }
        if ",}]".contains(c) {
            self.before_item(in_list, out);
            let word = std::mem::take(&mut self.text);
            let word = word.trim();
            if is_number(word) || serde_json::from_str::<serde_json::Value>(word).is_ok() {
                out.arguments(word);
            } else {
                out.string(word);
            }
            self.at = GemmaState::AfterValue;
            return self.after_value(c, out);
        }
        self.text.push(c);
        if self.text == GEMMA_QUOTE {
            self.text.clear();
            return self.string_opens(GEMMA_QUOTE, in_list, out);
        }
        let opening = GEMMA_QUOTE.starts_with(&self.text);
        if !opening && (c == '<' || self.text.len() > MAX_BARE_BYTES) {
            self.text.pop();
            return CallStep::Wrong;
        }
        CallStep::More
    }

    fn before_item(&mut self, in_list: bool, out: &mut PieceList<'_>) {
        if in_list {
            self.separate(out);
        }
    }

    fn string_opens(
        &mut self,
        mark: &'static str,
        in_list: bool,
        out: &mut PieceList<'_>,
    ) -> CallStep {
        self.before_item(in_list, out);
        out.arguments("\"");
        self.at = GemmaState::InString(mark);
        CallStep::More
    }

    fn string(&mut self, c: char, mark: &str, out: &mut PieceList<'_>) -> CallStep {
        self.text.push(c);
        while !mark.starts_with(&self.text) {
            out.string_char(self.text.remove(0));
        }
        if self.text == mark {
            self.text.clear();
            out.arguments("\"");
            self.at = GemmaState::AfterValue;
        }
        CallStep::More
    }

    fn after_value(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match c {
            '}' | ']' => self.closes(c, out),
            ',' => {
                self.at = if self.open.last() == Some(&true) {
                    GemmaState::Key
                } else {
                    GemmaState::Value
                };
                CallStep::More
            }
            c if c.is_ascii_whitespace() => CallStep::More,
            _ => CallStep::Wrong,
        }
    }

    /// What was taken of a broken call without being passed on.
    pub(super) fn loose(&mut self) -> String {
        let opener = if let GemmaState::InKey(mark) = self.at { mark } else { "" };
        opener.to_owned() + &std::mem::take(&mut self.text)
    }

    /// The answer ended inside the call: what waited of a value is given as far as it goes.
    pub(super) fn cut(&mut self, out: &mut PieceList<'_>) {
        let text = std::mem::take(&mut self.text);
        match self.at {
            // What waits in a string may be the mark that ends it.
            GemmaState::Value if !text.is_empty() && !text.starts_with('<') => {
                self.before_item(self.open.last() == Some(&false), out);
                out.arguments(&text);
            }
            _ => {}
        }
    }
}
