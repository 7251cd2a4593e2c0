//! The answer to a question, whatever API tells it.

use crate::error::ServerError;
use crate::ids;
use crate::service::{AnswerPiece, End, Said};
use forerun::{Ending, Token};
use forerun_engine::TokenLogprobs;
use forerun_text::{AnswerParser, Piece as Part};
use std::collections::VecDeque;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What becomes known of one answer, in order, and at last how it ended.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// It got its room: this much of the prompt was known, and the rest is being read.
    Started(TokenUsage),
    /// Tokens that a step decided, before their text; so many of them were reasoning.
    Tokens { ids: Vec<Token>, reasoning: usize },
    /// What the model says to itself.
    Reasoning(String),
    /// Text of the answer, with what the model thought of its tokens where that was requested. Tokens may be known
    /// before their text is, so either may be empty.
    Content { text: String, logprobs: Vec<TokenLogprobs> },
    /// A call begins; calls are numbered from 0.
    ToolCall { index: usize, id: String, name: String },
    /// A fragment of the JSON text of a call's arguments.
    ToolArguments { index: usize, delta: String },
    /// The call is whole. One without this was cut short or went wrong.
    ToolEnd,
    /// It is over.
    Finished(Box<AnswerFinish>),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct AnswerFinish {
    pub(crate) end: End,
    pub(crate) usage: TokenUsage,
    /// Calls in the answer.
    pub(crate) calls: usize,
}

/// Tokens of one answer, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Prompt tokens that were not read anew.
    pub(crate) cached_tokens: usize,
    /// Tokens of the answer that were reasoning.
    pub(crate) reasoning_tokens: usize,
}

impl TokenUsage {
    /// Counts another answer to the same prompt.
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens += other.cached_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

impl AnswerFinish {
    /// As OpenAI's `finish_reason` has it.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.end.ending {
            Ending::EndToken | Ending::StopString(_) if self.calls > 0 => "tool_calls",
            ending => ending.reason(),
        }
    }
}

/// Reads one answer as it comes.
pub(crate) struct Reader {
    /// What tells reasoning and calls apart; without it everything is content.
    parser: Option<AnswerParser>,
    parts: Vec<Part>,
    logprobs: Vec<TokenLogprobs>,
    calls: usize,
    reasoning_tokens: usize,
    /// Whether the stop string that ends the answer is part of it.
    include_stop: bool,
}

impl Reader {
    /// A reader; without a parser everything is content.
    pub(crate) fn new(parser: Option<AnswerParser>, include_stop: bool) -> Self {
        let (parts, logprobs) = (Vec::new(), Vec::new());
        Self { parser, parts, logprobs, calls: 0, reasoning_tokens: 0, include_stop }
    }

    fn tokens(&mut self, tokens: Vec<Said>, out: &mut Vec<AnswerEvent>) {
        let (mut ids, before) = (Vec::with_capacity(tokens.len()), self.reasoning_tokens);
        for Said { token, text, logprobs } in tokens {
            ids.push(token);
            let reasons = self.parser.as_ref().is_some_and(AnswerParser::is_reasoning);
            self.reasoning_tokens += usize::from(reasons);
            self.logprobs.extend(logprobs.filter(|_| !reasons).map(|boxed| *boxed));
            self.push(&text);
        }
        out.push(AnswerEvent::Tokens { ids, reasoning: self.reasoning_tokens - before });
        self.tell(out);
    }

    fn push(&mut self, text: &str) {
        match (&mut self.parser, self.parts.last_mut()) {
            (Some(parser), _) => parser.push(text, &mut self.parts),
            (None, Some(Part::Content(last))) => last.push_str(text),
            (None, _) if text.is_empty() => {}
            (None, _) => self.parts.push(Part::Content(text.to_owned())),
        }
    }

    /// The answer is over; `cut` where a limit on its length ended it.
    fn end(&mut self, cut: bool, out: &mut Vec<AnswerEvent>) {
        match &mut self.parser {
            Some(parser) if cut => parser.cut(&mut self.parts),
            Some(parser) => parser.finish(&mut self.parts),
            None => {}
        }
        self.tell(out);
    }

    /// Turns parts into events. Log-probabilities go with the first text; without any, by themselves.
    fn tell(&mut self, out: &mut Vec<AnswerEvent>) {
        for part in self.parts.drain(..) {
            let index = self.calls.saturating_sub(1);
            out.push(match part {
                Part::Reasoning(text) => AnswerEvent::Reasoning(text),
                Part::Content(text) => {
                    AnswerEvent::Content { text, logprobs: std::mem::take(&mut self.logprobs) }
                }
                Part::ToolCall { name } => {
                    self.calls += 1;
                    let id = ids::fresh("call_");
                    AnswerEvent::ToolCall { index: self.calls - 1, id, name }
                }
                Part::ToolArguments(delta) => AnswerEvent::ToolArguments { index, delta },
                Part::ToolEnd => AnswerEvent::ToolEnd,
            });
        }
        if !self.logprobs.is_empty() {
            let (text, logprobs) = (String::new(), std::mem::take(&mut self.logprobs));
            out.push(AnswerEvent::Content { text, logprobs });
        }
    }
}

/// The answers to one request as they come. Dropping them cancels what is not over.
pub(crate) struct Answers {
    pieces: UnboundedReceiver<(usize, AnswerPiece)>,
    /// One for each answer.
    readers: Vec<Reader>,
    /// Answers that are not over.
    open: usize,
    ready: VecDeque<(usize, AnswerEvent)>,
    /// The tokens of each prompt, where they are told.
    pub(crate) prompts: Vec<Vec<Token>>,
}

impl Answers {
    /// Waits until the engine has taken every request, so that a refusal comes before the first byte of a
    /// response.
    pub(crate) async fn accepted(
        mut pieces: UnboundedReceiver<(usize, AnswerPiece)>,
        readers: Vec<Reader>,
    ) -> Result<Self, ServerError> {
        let mut waiting = readers.len();
        // Text of one answer may come before the next is taken.
        let mut early = Vec::new();
        while waiting > 0 {
            match pieces.recv().await {
                None => return Err(gone()),
                Some((_, AnswerPiece::Accepted)) => waiting -= 1,
                Some((_, AnswerPiece::Rejected(error))) => return Err(error.into()),
                Some((_, AnswerPiece::Refused(why))) => return Err(refused(&why)),
                Some((_, AnswerPiece::Failed(why))) => return Err(ServerError::Failed(why)),
                Some(piece) => early.push(piece),
            }
        }
        let open = readers.len();
        let (ready, prompts) = (VecDeque::new(), Vec::new());
        let mut this = Self { pieces, readers, open, ready, prompts };
        for (choice, piece) in early {
            this.take(choice, piece)?;
        }
        Ok(this)
    }

    /// No answers at all.
    pub(crate) fn none() -> Self {
        let (_, pieces) = unbounded_channel();
        let (readers, prompts) = (Vec::new(), Vec::new());
        Self { pieces, readers, open: 0, ready: VecDeque::new(), prompts }
    }

    /// The same with the tokens of their prompts.
    pub(crate) fn with_prompts(self, prompts: Vec<Vec<Token>>) -> Self {
        Self { prompts, ..self }
    }

    /// How many answers there are in all.
    pub(crate) fn count(&self) -> usize {
        self.readers.len()
    }

    /// The next event and the answer it belongs to; nothing when all are over.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, AnswerEvent), ServerError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.open == 0 {
                return None;
            }
            let taken = match self.pieces.recv().await {
                Some((choice, piece)) => self.take(choice, piece),
                None => Err(gone()),
            };
            if let Err(error) = taken {
                // One answer failed; the request as a whole did.
                self.open = 0;
                self.pieces.close();
                return Some(Err(error));
            }
        }
    }

    fn take(&mut self, choice: usize, piece: AnswerPiece) -> Result<(), ServerError> {
        let reader = &mut self.readers[choice];
        let mut events = Vec::new();
        match piece {
            AnswerPiece::Accepted => {}
            AnswerPiece::Started(report) => {
                events.push(AnswerEvent::Started(TokenUsage {
                    prompt_tokens: report.prompt_tokens,
                    cached_tokens: report.cached_tokens,
                    ..TokenUsage::default()
                }));
            }
            AnswerPiece::Rejected(error) => return Err(error.into()),
            AnswerPiece::Refused(why) => return Err(refused(&why)),
            AnswerPiece::Failed(why) => return Err(ServerError::Failed(why)),
            AnswerPiece::Tokens(tokens) => reader.tokens(tokens, &mut events),
            AnswerPiece::Rest(text) => reader.push(&text),
            AnswerPiece::Finished(end) => {
                self.open -= 1;
                if let (true, Ending::StopString(stop)) = (reader.include_stop, &end.ending) {
                    reader.push(stop);
                }
                reader.end(end.ending == Ending::Length, &mut events);
                let usage = TokenUsage {
                    prompt_tokens: end.prompt_tokens,
                    completion_tokens: end.completion_tokens,
                    reasoning_tokens: reader.reasoning_tokens,
                    cached_tokens: end.cached.cached_tokens,
                };
                let finish = AnswerFinish { end: *end, usage, calls: reader.calls };
                events.push(AnswerEvent::Finished(Box::new(finish)));
            }
        }
        self.ready.extend(events.into_iter().map(|event| (choice, event)));
        Ok(())
    }
}

/// What was requested cannot be had, however often it is asked.
fn refused(why: &str) -> ServerError {
    ServerError::invalid("response_format", format!("the answer cannot go on: {why}"))
}

fn gone() -> ServerError {
    ServerError::Unavailable("the engine stopped before the answer was over")
}
