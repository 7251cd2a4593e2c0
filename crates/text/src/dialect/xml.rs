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
use super::piece::{CallStep, PieceList};
use super::schema::{Kinds, TEXT_ONLY, kinds_of_argument};
use super::tool::{MAX_NAME_CHARS, Tool};
use serde_json::Value;

const PARAMETER_OPEN: &str = "<parameter=";
const FUNCTION_CLOSE: &str = "</function>";
/// A line break before the tag is the template's, not the value's.
const VALUE_ENDS: [&str; 2] = ["\n</parameter>", "</parameter>"];

#[derive(Clone, Debug)]
pub(super) struct XmlCall {
    at: XmlState,
    /// A tag, name or value that is not complete.
    text: String,
    name: String,
    kinds: Kinds,
    /// The end of a value that may be its closing tag.
    tail: String,
    parameters: usize,
    recognized: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XmlState {
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
        let at = if opener == FUNCTION_OPEN { XmlState::Name } else { XmlState::Open };
        let (text, name, tail) = Default::default();
        Self { at, text, name, kinds: TEXT_ONLY, tail, parameters: 0, recognized: false }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.recognized
    }

    /// The name, once it is whole.
    pub(super) fn name(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|name| !name.is_empty())
    }

    pub(super) fn take(&mut self, c: char, tools: &[Tool], out: &mut PieceList<'_>) -> CallStep {
        match self.at {
            XmlState::Open => self.tag(c, &[FUNCTION_OPEN], out),
            XmlState::Between => self.tag(c, &[PARAMETER_OPEN, FUNCTION_CLOSE], out),
            XmlState::Name | XmlState::Key => self.named(c, tools, out),
            XmlState::ValueStart => {
                self.at = XmlState::Value;
                if c == '\n' { CallStep::More } else { self.value(c, out) }
            }
            XmlState::Value => self.value(c, out),
        }
    }

    fn tag(&mut self, c: char, tags: &[&str], out: &mut PieceList<'_>) -> CallStep {
        if self.text.is_empty() && c.is_ascii_whitespace() {
            return CallStep::More;
        }
        self.text.push(c);
        if !tags.iter().any(|tag| tag.starts_with(&self.text)) {
            self.text.pop();
            return CallStep::Wrong;
        }
        if !tags.contains(&self.text.as_str()) {
            return CallStep::More;
        }
        let tag = std::mem::take(&mut self.text);
        if tag == FUNCTION_OPEN {
            self.at = XmlState::Name;
            return CallStep::More;
        }
        if !self.recognized {
            self.recognized = true;
            out.call(&self.name);
        }
        if tag == PARAMETER_OPEN {
            self.at = XmlState::Key;
            return CallStep::More;
        }
        out.arguments(if self.parameters == 0 { "{}" } else { "}" });
        out.end();
        CallStep::Done
    }

    fn named(&mut self, c: char, tools: &[Tool], out: &mut PieceList<'_>) -> CallStep {
        if c != '>' {
            let broken = c == '<' || c == '\n' || self.text.len() >= 4 * MAX_NAME_CHARS;
            if broken {
                return CallStep::Wrong;
            }
            self.text.push(c);
            return CallStep::More;
        }
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        if text.is_empty() {
            return CallStep::Wrong;
        }
        if self.at == XmlState::Name {
            text.clone_into(&mut self.name);
            self.at = XmlState::Between;
            return CallStep::More;
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
        self.at = XmlState::ValueStart;
        CallStep::More
    }

    fn value(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
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
            self.at = XmlState::Between;
        }
        CallStep::More
    }

    fn value_ended(&mut self, out: &mut PieceList<'_>) {
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
        let opener = if self.at == XmlState::Key { PARAMETER_OPEN } else { "" };
        opener.to_owned() + &std::mem::take(&mut self.text)
    }

    /// The answer ended inside the call: what waited is given as far as it goes.
    pub(super) fn cut(&mut self, out: &mut PieceList<'_>) {
        if !matches!(self.at, XmlState::Value) {
            return;
        }
        // What may be the closing tag is no part of the value.
        self.tail.clear();
        if !self.kinds.only_text() {
            out.arguments(&std::mem::take(&mut self.text));
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
    let admitted = match serde_json::from_str::<Value>(json) {
        Ok(value) => !value.is_string() && kinds.admits(&value),
        Err(_) => kinds.number && is_number(json),
    };
    admitted.then_some(json)
}

/// Whether a text is a number of JSON, also where no machine number is as large. Its reader decides what that means; a
/// string it is not.
pub(super) fn is_number(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let text = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text.starts_with('0')) {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let places = digits(fraction);
        rest = &fraction[places..];
        if places == 0 {
            return false;
        }
    }
    match rest.strip_prefix(['e', 'E']) {
        None => rest.is_empty(),
        Some(exponent) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            !exponent.is_empty() && digits(exponent) == exponent.len()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_number;

    #[test]
    fn numbers_of_json_are_told_from_other_text() {
        for text in [
            "0",
            "-0",
            "10",
            "1.5",
            "-2.50e+10",
            "54e54822",
            "1E-999999",
            "123456789012345678901234567890",
        ] {
            assert!(is_number(text), "{text}");
        }
        for text in ["", "-", "01", "1.", ".5", "1e", "1e+", "+1", "1 ", "0x1", "1e5.0", "NaN"] {
            assert!(!is_number(text), "{text}");
        }
    }
}
