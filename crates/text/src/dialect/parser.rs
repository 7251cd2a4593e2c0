//! Reads an answer as it comes: what is reasoning, what is content, what is a call.
//!
//! The text goes through character by character, so the result does not depend on how it was cut
//! into pieces. A piece is given out as soon as it is recognized; no mark is ever shown in part.
//! White space next to a mark belongs to the mark. What looks like a call and is none comes out
//! as content, word for word.
//!
//! Memory is bounded by one call's text, time by a constant per character.

use super::gemma::GemmaCall;
use super::json::JsonCall;
use super::piece::{CallStep, Piece, PieceList};
use super::python::PythonCalls;
use super::tool::Tool;
use super::xml::XmlCall;
use super::{CALL_CLOSE, CALL_OPEN, CallForm, Dialect, FUNCTION_OPEN, GEMMA_CLOSE, GEMMA_OPEN};
use super::{PYTHON_CLOSE, PYTHON_OPEN, PYTHON_TAG, Thinking};

/// White space held back because a mark may follow. More of it than this is text.
const MAX_HELD_SPACE: usize = 64;
/// A call that has not become recognized by then is none.
const MAX_UNCERTAIN_BYTES: usize = 1 << 20;

/// Reads one answer: finds reasoning and tool calls in it, in the dialect of the model.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    thinking: Option<Thinking>,
    calls: Option<CallForm>,
    tools: Vec<Tool>,
    mode: ParserMode,
    place: Preceding,
    /// White space and the beginning of a mark.
    held: String,
    /// The text of a call that is not recognized yet.
    raw: String,
}

#[derive(Clone, Debug)]
enum ParserMode {
    Content,
    Reasoning,
    Call(PendingCall),
}

#[derive(Clone, Debug)]
enum PendingCall {
    Json(JsonCall),
    Xml(XmlCall),
    Gemma(GemmaCall),
    Python(PythonCalls),
}

/// What came right before, white space apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preceding {
    /// Nothing at all.
    Start,
    /// A mark: white space after it is dropped.
    Mark,
    /// A complete call whose closing mark has not come.
    Call,
    /// A complete call with its closing mark.
    CallMark,
    Text,
}

impl AnswerParser {
    /// A parser for one answer. Without tools nothing is a call.
    pub fn new(dialect: &Dialect, starts_in_reasoning: bool, tools: &[Tool]) -> Self {
        let reasoning = starts_in_reasoning && dialect.thinking.is_some();
        Self {
            thinking: dialect.thinking,
            calls: dialect.calls.filter(|_| !tools.is_empty()),
            tools: tools.iter().map(Tool::flattened).collect(),
            mode: if reasoning { ParserMode::Reasoning } else { ParserMode::Content },
            place: if reasoning { Preceding::Mark } else { Preceding::Start },
            held: String::new(),
            raw: String::new(),
        }
    }

    /// Takes the next text and adds what it settles to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        let mut out = PieceList(out);
        for c in text.chars() {
            self.take(c, &mut out);
        }
    }

    /// The answer ended: what was held back comes out.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let mut out = PieceList(out);
        let held = std::mem::take(&mut self.held);
        let raw = std::mem::take(&mut self.raw);
        match &mut self.mode {
            ParserMode::Content => out.content(&held),
            ParserMode::Reasoning => out.reasoning(&held),
            ParserMode::Call(call) if call.is_certain() => call.cut(&mut out),
            ParserMode::Call(_) => out.content(&raw),
        }
        self.mode = ParserMode::Content;
        self.place = Preceding::Start;
    }

    /// The answer was cut off, by a limit on its length: what was to become a mark or a call comes to nothing, so that
    /// no markup is taken for content. A call whose name is known is told as far as it came.
    pub fn cut(&mut self, out: &mut Vec<Piece>) {
        let mut pieces = PieceList(out);
        match &mut self.mode {
            ParserMode::Content | ParserMode::Reasoning => {
                let begun = self.held.trim_start();
                // One character may well be the reader's own; a mark that is half there is not.
                let markup = begun.chars().nth(1).is_some();
                let marks = self.marks();
                if markup && marks.iter().flatten().any(|mark| mark.starts_with(begun)) {
                    self.held.clear();
                }
            }
            ParserMode::Call(call) if call.is_certain() => {}
            ParserMode::Call(call) => {
                let bare = self.calls == Some(CallForm::Bare);
                match call.name() {
                    Some(name) if !bare || self.tools.iter().any(|tool| tool.name == name) => {
                        pieces.call(name);
                        self.raw.clear();
                    }
                    // Without its marks around it an object may be the answer that was requested.
                    _ if bare => {}
                    _ => self.raw.clear(),
                }
            }
        }
        self.finish(out);
    }

    /// Whether the answer is inside its reasoning now.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.mode, ParserMode::Reasoning)
    }

    fn take(&mut self, c: char, out: &mut PieceList<'_>) {
        if matches!(self.mode, ParserMode::Call(_)) {
            self.take_in_call(c, out);
        } else {
            self.take_text(c, out);
        }
    }

    fn take_text(&mut self, c: char, out: &mut PieceList<'_>) {
        let after_mark =
            matches!(self.place, Preceding::Mark | Preceding::Call | Preceding::CallMark);
        if self.held.is_empty() && after_mark && c.is_whitespace() {
            return;
        }
        self.held.push(c);
        // Let go of the front until the rest may still become white space and a mark.
        while !self.held.is_empty() {
            let candidate = self.held.trim_start();
            let space = self.held.len() - candidate.len();
            let marks = self.marks();
            if let Some(mark) = marks.iter().flatten().find(|mark| **mark == candidate) {
                return self.marked(mark, out);
            }
            let open = marks.iter().flatten().any(|mark| mark.starts_with(candidate));
            if open && space <= MAX_HELD_SPACE {
                return;
            }
            self.let_go(out);
        }
    }

    /// Gives out the first held character.
    fn let_go(&mut self, out: &mut PieceList<'_>) {
        let first = self.held.remove(0);
        if !first.is_whitespace() {
            self.place = Preceding::Text;
        }
        let mut buffer = [0; 4];
        let text = first.encode_utf8(&mut buffer);
        match self.mode {
            ParserMode::Reasoning => out.reasoning(text),
            _ => out.content(text),
        }
    }

    /// The marks that mean something here.
    fn marks(&self) -> [Option<&'static str>; 4] {
        if let (ParserMode::Reasoning, Some(thinking)) = (&self.mode, self.thinking) {
            return [Some(thinking.close), None, None, None];
        }
        let fresh = self.place != Preceding::Text;
        let may_think = |t: &Thinking| t.anywhere || (fresh && self.place != Preceding::Mark);
        let think = self.thinking.filter(may_think).map(|t| t.open);
        let after_call = self.place == Preceding::Call;
        match self.calls {
            None => [think, None, None, None],
            Some(CallForm::Marked) => {
                [think, Some(CALL_OPEN), after_call.then_some(CALL_CLOSE), None]
            }
            Some(CallForm::Xml) => {
                let close = after_call.then_some(CALL_CLOSE);
                [think, Some(CALL_OPEN), Some(FUNCTION_OPEN), close]
            }
            Some(CallForm::Gemma) => {
                [think, Some(GEMMA_OPEN), after_call.then_some(GEMMA_CLOSE), None]
            }
            Some(CallForm::Python) => {
                [think, Some(PYTHON_OPEN), after_call.then_some(PYTHON_CLOSE), None]
            }
            Some(CallForm::Bare) => {
                let open = fresh.then_some("{");
                [think, open, fresh.then_some(PYTHON_TAG), after_call.then_some(";")]
            }
        }
    }

    fn marked(&mut self, mark: &str, out: &mut PieceList<'_>) {
        let held = std::mem::take(&mut self.held);
        if let Some(thinking) = self.thinking
            && [thinking.open, thinking.close].contains(&mark)
        {
            let opens = mark == thinking.open;
            self.mode = if opens { ParserMode::Reasoning } else { ParserMode::Content };
            self.place = Preceding::Mark;
            return;
        }
        if matches!(mark, CALL_CLOSE | GEMMA_CLOSE | PYTHON_CLOSE | ";") {
            self.place = Preceding::CallMark;
            return;
        }
        self.raw = held;
        let call = match self.calls {
            Some(CallForm::Xml) => PendingCall::Xml(XmlCall::new(mark)),
            Some(CallForm::Gemma) => PendingCall::Gemma(GemmaCall::new()),
            Some(CallForm::Python) => PendingCall::Python(PythonCalls::new()),
            _ => PendingCall::Json(JsonCall::new()),
        };
        self.mode = ParserMode::Call(call);
        if mark == "{" {
            self.raw.pop();
            self.take_in_call('{', out);
        }
    }

    fn take_in_call(&mut self, c: char, out: &mut PieceList<'_>) {
        let ParserMode::Call(call) = &mut self.mode else { return };
        let any_name = self.calls != Some(CallForm::Bare);
        let tools = &self.tools;
        let known = |name: &str| any_name || tools.iter().any(|tool| tool.name == name);
        let mut fed = match call {
            PendingCall::Json(call) => call.take(c, &known, out),
            PendingCall::Xml(call) => call.take(c, tools, out),
            PendingCall::Gemma(call) => call.take(c, out),
            PendingCall::Python(call) => call.take(c, out),
        };
        if call.is_certain() {
            self.raw.clear();
        } else if fed == CallStep::More {
            self.raw.push(c);
            if self.raw.len() > MAX_UNCERTAIN_BYTES {
                self.raw.pop();
                fed = CallStep::Wrong;
            }
        }
        match fed {
            CallStep::More => {}
            CallStep::Done => {
                self.mode = ParserMode::Content;
                self.place = Preceding::Call;
            }
            CallStep::Wrong => {
                // Of a call that was begun, the closing mark may still follow.
                let (text, place) = match call.is_certain() {
                    true => (call.loose(), Preceding::Call),
                    false => (std::mem::take(&mut self.raw), Preceding::Text),
                };
                self.place = if text.trim().is_empty() { place } else { Preceding::Text };
                self.mode = ParserMode::Content;
                out.content(&text);
                self.take_text(c, out);
            }
        }
    }
}

impl PendingCall {
    fn is_certain(&self) -> bool {
        match self {
            Self::Json(call) => call.is_certain(),
            Self::Xml(call) => call.is_certain(),
            Self::Gemma(call) => call.is_certain(),
            Self::Python(call) => call.is_certain(),
        }
    }

    /// The name of the tool, once it is whole.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Json(call) => call.name(),
            Self::Xml(call) => call.name(),
            // These are recognized with their names.
            Self::Gemma(_) | Self::Python(_) => None,
        }
    }

    /// What was taken of a recognized call that went wrong, without being passed on.
    fn loose(&mut self) -> String {
        match self {
            Self::Json(call) => call.loose(),
            Self::Xml(call) => call.loose(),
            Self::Gemma(call) => call.loose(),
            Self::Python(call) => call.loose(),
        }
    }

    /// The answer ended inside a recognized call: what waited of a value comes out.
    fn cut(&mut self, out: &mut PieceList<'_>) {
        match self {
            Self::Json(_) | Self::Python(_) => {}
            Self::Xml(call) => call.cut(out),
            Self::Gemma(call) => call.cut(out),
        }
    }
}
