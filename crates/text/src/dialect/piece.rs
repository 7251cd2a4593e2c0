//! What an answer is made of.

/// A part of an answer. A call is a `ToolCall`, fragments of its arguments, and a `ToolEnd`; a
/// call without its end was cut short or went wrong, and its arguments are not whole JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the model says to itself.
    Reasoning(String),
    /// What it says to the reader.
    Content(String),
    /// A call begins.
    ToolCall {
        /// The name of the tool.
        name: String,
    },
    /// A fragment of the JSON text of the arguments.
    ToolArguments(String),
    /// The call is complete.
    ToolEnd,
}

/// Where pieces are put. Neighbours of one kind are joined.
pub(super) struct PieceList<'a>(pub(super) &'a mut Vec<Piece>);

impl PieceList<'_> {
    pub(super) fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(Piece::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Content(last)) => last.push_str(text),
            _ => self.0.push(Piece::Content(text.to_owned())),
        }
    }

    pub(super) fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::ToolArguments(last)) => last.push_str(text),
            _ => self.0.push(Piece::ToolArguments(text.to_owned())),
        }
    }

    /// One character of a JSON string, escaped where it must be.
    pub(super) fn string_char(&mut self, c: char) {
        let mut buffer = [0; 4];
        match c {
            '"' => self.arguments("\\\""),
            '\\' => self.arguments("\\\\"),
            '\n' => self.arguments("\\n"),
            '\r' => self.arguments("\\r"),
            '\t' => self.arguments("\\t"),
            c if c < ' ' => self.arguments(&format!("\\u{:04x}", u32::from(c))),
            c => self.arguments(c.encode_utf8(&mut buffer)),
        }
    }

    /// A whole JSON string with its quotes.
    pub(super) fn string(&mut self, text: &str) {
        self.arguments("\"");
        text.chars().for_each(|c| self.string_char(c));
        self.arguments("\"");
    }

    pub(super) fn call(&mut self, name: &str) {
        self.0.push(Piece::ToolCall { name: name.to_owned() });
    }

    pub(super) fn end(&mut self) {
        self.0.push(Piece::ToolEnd);
    }
}

/// What a reader of one call made of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStep {
    /// Taken; the call goes on.
    More,
    /// Taken; the call is complete.
    Done,
    /// Not taken; this is no call, or it went wrong here.
    Wrong,
}
