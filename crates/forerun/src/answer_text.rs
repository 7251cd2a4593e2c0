//! The text of an answer while its tokens come in, and how it ended.

use crate::{CancelToken, Error, Generation};
use forerun_base::Token;
use forerun_engine::{FinishReason, Request};
use forerun_text::{TextError, Tokenizer, Transcript};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// An end token, or a constraint that is fulfilled.
    EndToken,
    /// The text would have gone on with this stop string.
    StopString(String),
    /// The longest answer, or the end of the context.
    Length,
    /// Somebody ended it.
    Cancelled,
}

impl Ending {
    /// The reason as `finish_reason` has it: `stop`, `length` or `cancelled`.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::EndToken | Self::StopString(_) => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }

    /// The stop string that ended it.
    pub fn stop_string(&self) -> Option<&str> {
        match self {
            Self::StopString(text) => Some(text),
            _ => None,
        }
    }
}

/// The text of one answer, shared with the engine, which asks after every token whether the answer ends with it.
///
/// Text is settled when no stop string can claim it any more and no half of a character is left over; it belongs to the
/// token that settled it, which [`Self::next_token`] returns in the order of the engine's events.
pub struct AnswerText {
    shared: Arc<Mutex<SharedTranscript>>,
    stops: Vec<String>,
}

struct SharedTranscript {
    transcript: Transcript,
    /// What each token settled whose event is not handled yet.
    settled: VecDeque<String>,
    cancel: Option<CancelToken>,
}

impl SharedTranscript {
    fn take(&mut self, token: Token) -> bool {
        let ends = self.transcript.take(token);
        self.settled.push_back(self.transcript.fresh());
        ends || self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }
}

impl AnswerText {
    /// The text of a generation, and the engine's request for it.
    pub fn begin(
        generation: Generation,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(Self, Request), TextError> {
        let Generation { stops, end_tokens, shown, cancel, .. } = generation;
        let transcript =
            Transcript::new(tokenizer, stops.clone(), end_tokens.clone())?.showing(shown);
        let shared = SharedTranscript { transcript, settled: VecDeque::new(), cancel };
        let text = Self { shared: Arc::new(Mutex::new(shared)), stops };
        let watched = Arc::clone(&text.shared);
        let request = Request {
            sampling: generation.sampling,
            end_tokens,
            watch: Some(Box::new(move |token| lock(&watched).take(token))),
            depth: generation.depth,
            retain: generation.retain,
            priority: generation.priority,
            constraint: generation.constraint,
            logprobs: generation.logprobs,
            cache: generation.cache,
            ..Request::greedy(generation.prompt, generation.max_tokens)
        };
        Ok((text, request))
    }

    /// The text that the next token settled, often its own, sometimes none.
    pub fn next_token(&self) -> String {
        lock(&self.shared).settled.pop_front().unwrap_or_default()
    }

    /// The text that was held back until the end, and why the answer ended.
    pub fn finish(&self, reason: FinishReason) -> Result<(String, Ending), Error> {
        let mut shared = lock(&self.shared);
        shared.transcript.finish().map_err(|error| Error::Failed(error.to_string()))?;
        let stopped = shared.transcript.hit().map(|i| Ending::StopString(self.stops[i].clone()));
        let ending = match (reason, stopped) {
            (FinishReason::Refused(why), _) => return Err(Error::Refused(why)),
            (FinishReason::Failed(why), _) => return Err(Error::Failed(why)),
            (FinishReason::Cancelled, _) => Ending::Cancelled,
            (_, Some(stopped)) => stopped,
            (FinishReason::EndToken | FinishReason::Complete, _) => Ending::EndToken,
            (FinishReason::Length, _) => Ending::Length,
            // The text ends an answer for a stop string, handled above, or because it is cancelled.
            (FinishReason::Watched, _) => Ending::Cancelled,
        };
        Ok((shared.transcript.fresh(), ending))
    }
}

fn lock(shared: &Mutex<SharedTranscript>) -> MutexGuard<'_, SharedTranscript> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
