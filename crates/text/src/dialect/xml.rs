//! Reads one call written with tags, character by character:
//!
//! ```text
//! <function=NAME>
//! <parameter=KEY>
//! value
//! </parameter>
//! </function>
//! ```
//!
//! The arguments come out as JSON. Values are typed by the tool's schema: what must be a string
//! is passed on as it comes, anything else waits for its end and is taken as JSON if it is JSON
//! the schema admits, as a string otherwise.

use super::FUNCTION_OPEN;
use super::piece::{Fed, Pieces};
use super::schema::{Kinds, TEXT_ONLY, kinds_of_argument};
use super::tool::{MAX_NAME_CHARS, Tool};
use serde_json::Value;

const PARAMETER_OPEN: &str = "<parameter=";
const FUNCTION_CLOSE: &str = "</function>";
/// A line break before the tag is the template's, not the value's.
const VALUE_ENDS: [&str; 2] = ["\n</parameter>", "</parameter>"];

#[derive(Clone, Debug)]
pub(super) struct XmlCall {
    at: At,
    /// A tag, name or value that is not complete.
    text: String,
    name: String,
    kinds: Kinds,
    /// The end of a value that may be its closing tag.
    tail: String,
    parameters: usize,
    certain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Open,
    Name,
    Between,
    Key,
    /// A line break here is the template's.
    ValueStart,
    Value,
}

impl XmlCall {
    /// Begins after `<tool_call>`, or after `<function=` where a model leaves the first mark out.
    pub(super) fn new(opener: &str) -> Self {
        let at = if opener == FUNCTION_OPEN { At::Name } else { At::Open };
        let (text, name, tail) = Default::default();
        Self { at, text, name, kinds: TEXT_ONLY, tail, parameters: 0, certain: false }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.certain
    }

    pub(super) fn take(&mut self, c: char, tools: &[Tool], out: &mut Pieces<'_>) -> Fed {
        match self.at {
            At::Open => self.tag(c, &[FUNCTION_OPEN], out),
            At::Between => self.tag(c, &[PARAMETER_OPEN, FUNCTION_CLOSE], out),
            At::Name | At::Key => self.named(c, tools, out),
            At::ValueStart => {
                self.at = At::Value;
                if c == '\n' { Fed::More } else { self.value(c, out) }
            }
            At::Value => self.value(c, out),
        }
    }

    fn tag(&mut self, c: char, tags: &[&str], out: &mut Pieces<'_>) -> Fed {
        if self.text.is_empty() && c.is_ascii_whitespace() {
            return Fed::More;
        }
        self.text.push(c);
        if !tags.iter().any(|tag| tag.starts_with(&self.text)) {
            self.text.pop();
            return Fed::Wrong;
        }
        if !tags.contains(&self.text.as_str()) {
            return Fed::More;
        }
        let tag = std::mem::take(&mut self.text);
        if tag == FUNCTION_OPEN {
            self.at = At::Name;
            return Fed::More;
        }
        if !self.certain {
            self.certain = true;
            out.call(&self.name);
        }
        if tag == PARAMETER_OPEN {
            self.at = At::Key;
            return Fed::More;
        }
        out.arguments(if self.parameters == 0 { "{}" } else { "}" });
        out.end();
        Fed::Done
    }

    fn named(&mut self, c: char, tools: &[Tool], out: &mut Pieces<'_>) -> Fed {
        if c != '>' {
            let broken = c == '<' || c == '\n' || self.text.len() >= 4 * MAX_NAME_CHARS;
            if broken {
                return Fed::Wrong;
            }
            self.text.push(c);
            return Fed::More;
        }
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        if text.is_empty() {
            return Fed::Wrong;
        }
        if self.at == At::Name {
            text.clone_into(&mut self.name);
            self.at = At::Between;
            return Fed::More;
        }
        out.arguments(if self.parameters == 0 { "{" } else { ", " });
        self.parameters += 1;
        out.string(text);
        out.arguments(": ");
        let nothing = serde_json::Map::new();
        let tool = tools.iter().find(|tool| tool.name == self.name);
        self.kinds = kinds_of_argument(tool.map_or(&nothing, |tool| &tool.parameters), text);
        if self.kinds.only_text() {
            out.arguments("\"");
        }
        self.at = At::ValueStart;
        Fed::More
    }

    fn value(&mut self, c: char, out: &mut Pieces<'_>) -> Fed {
        self.tail.push(c);
        while !VALUE_ENDS.iter().any(|end| end.starts_with(&self.tail)) {
            let first = self.tail.remove(0);
            if self.kinds.only_text() {
                out.string_char(first);
            } else {
                self.text.push(first);
            }
        }
        if VALUE_ENDS.contains(&self.tail.as_str()) {
            self.tail.clear();
            self.value_ended(out);
            self.at = At::Between;
        }
        Fed::More
    }

    fn value_ended(&mut self, out: &mut Pieces<'_>) {
        if self.kinds.only_text() {
            out.arguments("\"");
            return;
        }
        let text = std::mem::take(&mut self.text);
        match json_of(&text, self.kinds) {
            Some(json) => out.arguments(json),
            None => out.string(&text),
        }
    }

    /// What was taken of a broken call without being passed on.
    pub(super) fn loose(&mut self) -> String {
        let opener = if self.at == At::Key { PARAMETER_OPEN } else { "" };
        opener.to_owned() + &std::mem::take(&mut self.text)
    }

    /// The answer ended inside the call: what waited is given as far as it goes.
    pub(super) fn cut(&mut self, out: &mut Pieces<'_>) {
        if !matches!(self.at, At::Value) {
            return;
        }
        let tail = std::mem::take(&mut self.tail);
        if self.kinds.only_text() {
            tail.chars().for_each(|c| out.string_char(c));
        } else {
            out.arguments(&std::mem::take(&mut self.text));
            out.arguments(&tail);
        }
    }
}

/// The JSON that the text of a value is read as; `None` where it is a string of an argument of these kinds.
pub(super) fn json_of(text: &str, kinds: Kinds) -> Option<&str> {
    let json = match text.trim() {
        // Some models write these as Python does.
        "True" => "true",
        "False" => "false",
        "None" => "null",
        json => json,
    };
    let parsed = serde_json::from_str(json);
    let other = parsed.is_ok_and(|value: Value| !value.is_string() && kinds.admits(&value));
    other.then_some(json)
}
