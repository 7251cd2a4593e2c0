//! An answer as it comes, and as a whole.

use crate::{Ending, Error, Model};
use forerun_base::{SeqId, Token};
use forerun_engine::{CacheReport, Receipt, Sampling, TokenLogprobs};
use forerun_text::{AnswerParser, Piece};
use std::time::Duration;

/// What becomes known of an answer, in order: one `Started`, `Reading` while a prompt takes more than one step, tokens,
/// perhaps a `Rest`, one `Finished`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The prompt is about to be read; what the prefix cache had of it.
    Started(Box<CacheReport>),
    /// So much of the prompt is read.
    Reading(Progress),
    /// A token.
    Token(TokenEvent),
    /// Text that was held back until the end, where a stop string might have come.
    Rest(String),
    /// The answer is over.
    Finished(Box<Finish>),
}

/// How much of a prompt is read. Where a chat goes on, both numbers leave out what it has read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens that are read.
    pub read: usize,
    /// Tokens that are to be read.
    pub of: usize,
}

/// A token of an answer.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Its id.
    pub token: Token,
    /// The text that it settled: often its own, none where a character or a stop string may go on.
    pub text: String,
    /// How likely it was, where the options ask for that.
    pub logprobs: Option<Box<TokenLogprobs>>,
}

/// How an answer ended and what it took: the receipt.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why it ended.
    pub ending: Ending,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were read: less than the prompt where a chat goes on, or where the answer was ended before its first
    /// token.
    pub read_tokens: usize,
    /// Tokens of the answer, an end token included.
    pub completion_tokens: usize,
    /// What the prefix cache had of the prompt, and why not more.
    pub cached: CacheReport,
    /// What drafting did.
    pub receipt: Receipt,
    /// Until the request got its place on the device.
    pub queued: Duration,
    /// Until the first token, queue included.
    pub prompt_time: Duration,
    /// From the first token to the end.
    pub decode_time: Duration,
}

impl Default for Finish {
    fn default() -> Self {
        Self {
            ending: Ending::Cancelled,
            prompt_tokens: 0,
            read_tokens: 0,
            completion_tokens: 0,
            cached: CacheReport::default(),
            receipt: Receipt::default(),
            queued: Duration::ZERO,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
        }
    }
}

impl StreamEvent {
    /// The text that it adds to the answer, often none.
    pub fn text(&self) -> &str {
        match self {
            Self::Token(token) => &token.text,
            Self::Rest(text) => text,
            Self::Started(_) | Self::Reading(_) | Self::Finished(_) => "",
        }
    }

    /// The id of the token that it is.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Token(token) => Some(token.token),
            _ => None,
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The text as it was generated.
    pub text: String,
    /// The part of it that is for the reader: all but reasoning and tool calls.
    pub content: String,
    /// What the model said to itself before.
    pub reasoning: String,
    /// The tokens, an end token included.
    pub token_ids: Vec<Token>,
    /// How likely each of them was, where the options ask for that.
    pub logprobs: Vec<TokenLogprobs>,
    /// How it ended and what it took.
    pub finish: Finish,
}

/// Puts an answer together from its events.
#[derive(Default)]
pub(crate) struct Collector {
    answer: Answer,
    parser: Option<AnswerParser>,
    pieces: Vec<Piece>,
    to_read: usize,
}

impl Collector {
    pub(crate) fn new(parser: Option<AnswerParser>, to_read: usize) -> Self {
        Self { parser, to_read, ..Self::default() }
    }

    fn take(&mut self, event: &StreamEvent) {
        let answer = &mut self.answer;
        answer.text.push_str(event.text());
        match event {
            StreamEvent::Token(token) => {
                answer.token_ids.push(token.token);
                answer.logprobs.extend(token.logprobs.as_deref().cloned());
            }
            StreamEvent::Finished(finish) => answer.finish = Finish::clone(finish),
            StreamEvent::Started(_) | StreamEvent::Reading(_) | StreamEvent::Rest(_) => {}
        }
        match &mut self.parser {
            Some(parser) => parser.push(event.text(), &mut self.pieces),
            None => answer.content.push_str(event.text()),
        }
        match event {
            StreamEvent::Finished(_) => self.end(),
            _ => self.sort(),
        }
    }

    /// What the parser held back is settled by the end of the answer.
    fn end(&mut self) {
        if let Some(mut parser) = self.parser.take() {
            match self.answer.finish.ending {
                Ending::EndToken | Ending::StopString(_) => parser.finish(&mut self.pieces),
                Ending::Length | Ending::Cancelled => parser.cut(&mut self.pieces),
            }
        }
        self.sort();
    }

    fn sort(&mut self) {
        for piece in self.pieces.drain(..) {
            match piece {
                Piece::Content(text) => self.answer.content.push_str(&text),
                Piece::Reasoning(text) => self.answer.reasoning.push_str(&text),
                Piece::ToolCall { .. } | Piece::ToolArguments(_) | Piece::ToolEnd => {}
            }
        }
    }

    fn answer(mut self) -> Answer {
        self.end();
        self.answer
    }
}

/// An answer as it comes: an iterator of events. Dropping it ends the answer.
///
/// Any number of streams of one model can be open; whoever reads one steps the engine for all of them, so they share
/// the device and each answer is the one it would be alone.
pub struct AnswerStream {
    pub(crate) model: Model,
    pub(crate) seq: SeqId,
    sampling: Sampling,
    collector: Collector,
}

impl AnswerStream {
    pub(crate) fn new(model: Model, seq: SeqId, sampling: Sampling, collector: Collector) -> Self {
        Self { model, seq, sampling, collector }
    }

    /// How tokens are sampled, the seed included.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Reads reasoning apart from content. To be set before the first event.
    #[must_use]
    pub fn with_parser(mut self, parser: Option<AnswerParser>) -> Self {
        self.collector.parser = parser;
        self
    }

    /// Tokens of the prompt that are to be read: less than the prompt where a chat goes on.
    pub fn to_read(&self) -> usize {
        self.collector.to_read
    }

    /// What has come of the answer so far.
    pub fn so_far(&self) -> &Answer {
        &self.collector.answer
    }

    /// The whole answer, what was read of it included.
    pub fn answer(mut self) -> Result<Answer, Error> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self.take_answer())
    }

    /// The answer as far as it was read.
    pub(crate) fn take_answer(&mut self) -> Answer {
        std::mem::take(&mut self.collector).answer()
    }
}

impl Iterator for AnswerStream {
    type Item = Result<StreamEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.model.driver().next(self.seq);
        if let Some(Ok(event)) = &event {
            self.collector.take(event);
        }
        event
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        self.model.driver().release(self.seq);
    }
}
