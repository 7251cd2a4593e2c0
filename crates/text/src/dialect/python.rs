//! Reads calls written as a list in Python, character by character:
//!
//! ```text
//! [name(key='text', other=[1, True]), second()]
//! ```
//!
//! The arguments come out as JSON, each as it comes: strings in either quote, `True`, `False` and `None` by JSON's
//! names. A word that is no value of JSON is taken as a string.

use super::piece::{CallStep, PieceList};
use super::tool::MAX_NAME_CHARS;
use super::xml::is_number;

/// Brackets inside each other.
const MAX_DEPTH: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct PythonCalls {
    at: PythonState,
    /// A name, key or word that is not complete.
    text: String,
    /// Closing brackets that are waited for.
    open: Vec<char>,
    /// The quote that ends a string, and whether a backslash came right before.
    quote: char,
    escaped: bool,
    parameters: usize,
    recognized: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PythonState {
    List,
    Name,
    Key,
    Value,
    String,
    Word,
    AfterValue,
    AfterCall,
}

impl PythonCalls {
    pub(super) fn new() -> Self {
        Self {
            at: PythonState::List,
            text: String::new(),
            open: Vec::new(),
            quote: '"',
            escaped: false,
            parameters: 0,
            recognized: false,
        }
    }

    pub(super) fn is_certain(&self) -> bool {
        self.recognized
    }

    /// What was taken of a broken call without being passed on.
    pub(super) fn loose(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    pub(super) fn take(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match self.at {
            PythonState::String => {
                self.string(c, out);
                return CallStep::More;
            }
            PythonState::Word if is_of_word(c) => {
                self.text.push(c);
                let long = self.text.len() > MAX_NAME_CHARS;
                return if long { CallStep::Wrong } else { CallStep::More };
            }
            PythonState::Word => {
                self.word(out);
                self.at = PythonState::AfterValue;
            }
            _ => {}
        }
        match self.at {
            PythonState::Name | PythonState::Key => self.named(c, out),
            _ if c.is_ascii_whitespace() => CallStep::More,
            PythonState::Value => self.value(c, out),
            PythonState::AfterValue => self.after_value(c, out),
            PythonState::List if c == '[' => self.goes_on(PythonState::Name),
            PythonState::AfterCall if c == ',' => self.goes_on(PythonState::Name),
            PythonState::AfterCall if c == ']' => CallStep::Done,
            _ => CallStep::Wrong,
        }
    }

    fn goes_on(&mut self, at: PythonState) -> CallStep {
        self.at = at;
        CallStep::More
    }

    /// A name up to its bracket, or a key up to its sign.
    fn named(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        let name = self.at == PythonState::Name;
        match c {
            c if c.is_ascii_whitespace() && (self.text.is_empty() || !name) => CallStep::More,
            '(' if name && !self.text.is_empty() => {
                out.call(&std::mem::take(&mut self.text));
                self.recognized = true;
                self.parameters = 0;
                self.goes_on(PythonState::Key)
            }
            ')' if !name && self.text.is_empty() => self.closed(out),
            '=' if !name && !self.text.is_empty() => {
                out.arguments(if self.parameters == 0 { "{" } else { ", " });
                self.parameters += 1;
                out.string(&std::mem::take(&mut self.text));
                out.arguments(": ");
                self.goes_on(PythonState::Value)
            }
            c if is_of_word(c) && self.text.len() < 4 * MAX_NAME_CHARS => {
                self.text.push(c);
                CallStep::More
            }
            _ => CallStep::Wrong,
        }
    }

    fn closed(&mut self, out: &mut PieceList<'_>) -> CallStep {
        out.arguments(if self.parameters == 0 { "{}" } else { "}" });
        out.end();
        self.goes_on(PythonState::AfterCall)
    }

    /// The first character of a value, or the end of what holds none.
    fn value(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match c {
            '\'' | '"' => {
                out.arguments("\"");
                self.quote = c;
                self.goes_on(PythonState::String)
            }
            '[' | '{' if self.open.len() < MAX_DEPTH => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
                self.open.push(if c == '[' { ']' } else { '}' });
                CallStep::More
            }
            c if self.open.last() == Some(&c) => self.bracket(c, out),
            c if is_of_word(c) => {
                self.text.push(c);
                self.goes_on(PythonState::Word)
            }
            _ => CallStep::Wrong,
        }
    }

    fn bracket(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        self.open.pop();
        out.arguments(c.encode_utf8(&mut [0; 4]));
        self.goes_on(PythonState::AfterValue)
    }

    fn after_value(&mut self, c: char, out: &mut PieceList<'_>) -> CallStep {
        match (c, self.open.last()) {
            (',', None) => self.goes_on(PythonState::Key),
            (')', None) => self.closed(out),
            (',', Some(_)) => {
                out.arguments(", ");
                self.goes_on(PythonState::Value)
            }
            (':', Some('}')) => {
                out.arguments(": ");
                self.goes_on(PythonState::Value)
            }
            (c, Some(close)) if c == *close => self.bracket(c, out),
            _ => CallStep::Wrong,
        }
    }

    fn string(&mut self, c: char, out: &mut PieceList<'_>) {
        if std::mem::take(&mut self.escaped) {
            match c {
                'n' => out.string_char('\n'),
                't' => out.string_char('\t'),
                'r' => out.string_char('\r'),
                '\\' | '\'' | '"' => out.string_char(c),
                other => {
                    out.string_char('\\');
                    out.string_char(other);
                }
            }
        } else if c == '\\' {
            self.escaped = true;
        } else if c == self.quote {
            out.arguments("\"");
            self.at = PythonState::AfterValue;
        } else {
            out.string_char(c);
        }
    }

    fn word(&mut self, out: &mut PieceList<'_>) {
        let word = std::mem::take(&mut self.text);
        match word.as_str() {
            "True" | "true" => out.arguments("true"),
            "False" | "false" => out.arguments("false"),
            "None" | "null" => out.arguments("null"),
            word if is_number(word) => out.arguments(word),
            word => out.string(word),
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.')
}
