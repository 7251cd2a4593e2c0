//! The answer to a question, whatever API tells it.

use crate::error::ServerError;
use crate::service::{End, Ending, Piece};
use std::collections::VecDeque;
use tokio::sync::mpsc::UnboundedReceiver;

/// What becomes known of one answer, in order: text, then how it ended.
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    /// Text of the answer.
    Content(String),
    /// It is over.
    Finished(Box<Finish>),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    pub(crate) end: End,
    pub(crate) usage: Usage,
}

/// Tokens of one answer, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Prompt tokens that were not read anew.
    pub(crate) cached_tokens: usize,
    /// Tokens of the answer that were reasoning.
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    /// Counts another answer to the same prompt.
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cached_tokens += other.cached_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

impl Finish {
    /// As OpenAI's `finish_reason` has it.
    pub(crate) fn reason(&self) -> &'static str {
        match self.end.ending {
            Ending::EndToken | Ending::Stop(_) => "stop",
            Ending::Length => "length",
        }
    }
}

/// The answers to one request as they come. Dropping them cancels what is not over.
pub(crate) struct Answers {
    pieces: UnboundedReceiver<(usize, Piece)>,
    /// Answers that are not over.
    open: usize,
    ready: VecDeque<(usize, AnswerEvent)>,
}

impl Answers {
    /// Waits until the engine has taken every request, so that a refusal comes before the first byte of a
    /// response.
    pub(crate) async fn accepted(
        mut pieces: UnboundedReceiver<(usize, Piece)>,
        choices: usize,
    ) -> Result<Self, ServerError> {
        let mut waiting = choices;
        // Text of one answer may come before the next is taken.
        let mut early = Vec::new();
        while waiting > 0 {
            match pieces.recv().await {
                None => return Err(gone()),
                Some((_, Piece::Accepted)) => waiting -= 1,
                Some((_, Piece::Rejected(error))) => return Err(error.into()),
                Some((_, Piece::Failed(why))) => return Err(ServerError::Failed(why)),
                Some(piece) => early.push(piece),
            }
        }
        let mut this = Self { pieces, open: choices, ready: VecDeque::new() };
        for (choice, piece) in early {
            this.take(choice, piece)?;
        }
        Ok(this)
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

    fn take(&mut self, choice: usize, piece: Piece) -> Result<(), ServerError> {
        match piece {
            Piece::Accepted => {}
            Piece::Rejected(error) => return Err(error.into()),
            Piece::Failed(why) => return Err(ServerError::Failed(why)),
            Piece::Text(text) if text.is_empty() => {}
            Piece::Text(text) => self.ready.push_back((choice, AnswerEvent::Content(text))),
            Piece::Finished(end) => {
                self.open -= 1;
                let usage = Usage {
                    prompt_tokens: end.prompt_tokens,
                    completion_tokens: end.completion_tokens,
                    ..Usage::default()
                };
                let finish = Box::new(Finish { end: *end, usage });
                self.ready.push_back((choice, AnswerEvent::Finished(finish)));
            }
        }
        Ok(())
    }
}

fn gone() -> ServerError {
    ServerError::Unavailable("the engine stopped before the answer was over")
}
