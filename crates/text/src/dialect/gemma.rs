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
use super::piece::{Fed, Pieces};
use super::tool::MAX_NAME_CHARS;
use super::xml::is_number;

const PREFIX: &str = "call:";
const MAX_DEPTH: usize = 64;
/// Bare words and keys; longer ones are not what the form is for.
const MAX_BARE_BYTES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct GemmaCall {
    at: At,
    text: String,
    /// What is open: true for an object, false for a list.
    open: Vec<bool>,
    /// Whether the innermost open one has an item already.
    filled: bool,
    certain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
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
            at: At::Prefix,
            text: String::new(),
            open: Vec::new(),
            filled: false,
            certain: false,
        }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.certain
    }

    pub(super) fn take(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        match self.at {
            At::Prefix => self.prefix(c),
            At::Name => self.name(c, out),
            At::Key => self.key(c, out),
            At::InKey(mark) => self.quoted_key(c, mark, out),
            At::Value => self.value(c, out),
            At::InString(mark) => self.string(c, mark, out),
            _ if c.is_ascii_whitespace() => Fed::More,
            At::Colon if c == ':' => {
                self.at = At::Value;
                Fed::More
            }
            At::Colon => Fed::Wrong,
            At::AfterValue => self.after_value(c, out),
        }
    }

    fn prefix(&mut self, c: char) -> Fed {
        if self.text.is_empty() && c.is_ascii_whitespace() {
            return Fed::More;
        }
        self.text.push(c);
        if self.text == PREFIX {
            self.text.clear();
            self.at = At::Name;
        } else if !PREFIX.starts_with(&self.text) {
            return Fed::Wrong;
        }
        Fed::More
    }

    fn name(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        let name = self.text.trim();
        match c {
            '{' if !name.is_empty() => {
                out.call(name);
                self.certain = true;
                self.text.clear();
                self.opens(true, out)
            }
            '{' | '}' | '<' | '\n' => Fed::Wrong,
            _ if self.text.len() >= 4 * MAX_NAME_CHARS => Fed::Wrong,
            _ => {
                self.text.push(c);
                Fed::More
            }
        }
    }

    fn opens(&mut self, object: bool, out: &mut Pieces<'_>) -> Fed {
        if self.open.len() >= MAX_DEPTH {
            return Fed::Wrong;
        }
        out.arguments(if object { "{" } else { "[" });
        self.open.push(object);
        self.filled = false;
        self.at = if object { At::Key } else { At::Value };
        Fed::More
    }

    fn closes(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        if self.open.pop() != Some(c == '}') {
            return Fed::Wrong;
        }
        out.arguments(if c == '}' { "}" } else { "]" });
        self.filled = true;
        self.at = At::AfterValue;
        if self.open.is_empty() {
            out.end();
            return Fed::Done;
        }
        Fed::More
    }

    /// The separator before an item of the innermost object or list.
    fn separate(&mut self, out: &mut Pieces<'_>) {
        if std::mem::replace(&mut self.filled, true) {
            out.arguments(", ");
        }
    }

    fn key(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        if self.text.is_empty() {
            match c {
                '}' => return self.closes(c, out),
                '"' => {
                    self.at = At::InKey("\"");
                    return Fed::More;
                }
                c if c.is_ascii_whitespace() => return Fed::More,
                _ => {}
            }
        }
        if c == ':' {
            let key = std::mem::take(&mut self.text);
            let key = key.trim();
            if key.is_empty() {
                return Fed::Wrong;
            }
            self.separate(out);
            out.string(key);
            out.arguments(": ");
            self.at = At::Value;
            return Fed::More;
        }
        self.text.push(c);
        if self.text == GEMMA_QUOTE {
            self.text.clear();
            self.at = At::InKey(GEMMA_QUOTE);
        } else if !GEMMA_QUOTE.starts_with(&self.text)
            && (",{}[]<".contains(c) || self.text.len() > MAX_BARE_BYTES)
        {
            self.text.pop();
            return Fed::Wrong;
        }
        Fed::More
    }

    fn quoted_key(&mut self, c: char, mark: &str, out: &mut Pieces<'_>) -> Fed {
        self.text.push(c);
        if self.text.ends_with(mark) {
            let key = std::mem::take(&mut self.text);
            self.separate(out);
            out.string(&key[..key.len() - mark.len()]);
            out.arguments(": ");
            self.at = At::Colon;
        } else if self.text.len() > MAX_BARE_BYTES {
            self.text.pop();
            return Fed::Wrong;
        }
        Fed::More
    }

    fn value(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        let in_list = self.open.last() == Some(&false);
        if self.text.is_empty() {
            match c {
                c if c.is_ascii_whitespace() => return Fed::More,
                ']' if in_list => return self.closes(c, out),
                '{' | '[' => {
                    self.before_item(in_list, out);
                    return self.opens(c == '{', out);
                }
                '"' => return self.string_opens("\"", in_list, out),
                ',' | '}' | ']' | ':' => return Fed::Wrong,
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
            self.at = At::AfterValue;
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
            return Fed::Wrong;
        }
        Fed::More
    }

    fn before_item(&mut self, in_list: bool, out: &mut Pieces<'_>) {
        if in_list {
            self.separate(out);
        }
    }

    fn string_opens(&mut self, mark: &'static str, in_list: bool, out: &mut Pieces<'_>) -> Fed {
        self.before_item(in_list, out);
        out.arguments("\"");
        self.at = At::InString(mark);
        Fed::More
    }

    fn string(&mut self, c: char, mark: &str, out: &mut Pieces<'_>) -> Fed {
        self.text.push(c);
        while !mark.starts_with(&self.text) {
            out.string_char(self.text.remove(0));
        }
        if self.text == mark {
            self.text.clear();
            out.arguments("\"");
            self.at = At::AfterValue;
        }
        Fed::More
    }

    fn after_value(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        match c {
            '}' | ']' => self.closes(c, out),
            ',' => {
                self.at = if self.open.last() == Some(&true) { At::Key } else { At::Value };
                Fed::More
            }
            c if c.is_ascii_whitespace() => Fed::More,
            _ => Fed::Wrong,
        }
    }

    /// What was taken of a broken call without being passed on.
    pub(super) fn loose(&mut self) -> String {
        let opener = if let At::InKey(mark) = self.at { mark } else { "" };
        opener.to_owned() + &std::mem::take(&mut self.text)
    }

    /// The answer ended inside the call: what waited of a value is given as far as it goes.
    pub(super) fn cut(&mut self, out: &mut Pieces<'_>) {
        let text = std::mem::take(&mut self.text);
        match self.at {
            // What waits in a string may be the mark that ends it.
            At::Value if !text.is_empty() && !text.starts_with('<') => {
                self.before_item(self.open.last() == Some(&false), out);
                out.arguments(&text);
            }
            _ => {}
        }
    }
}
