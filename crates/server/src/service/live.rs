//! An answer in the making, on the engine's thread.

use super::{AnswerPiece, End, Job, Place, Said, Sink, SubmittedJob, Times};
use crate::auth::Owner;
use crate::cache_traces::CacheTraces;
use crate::metrics::Metrics;
use forerun::{AnswerText, Ending, Error, Token};
use forerun_engine::{CacheReport, FinishReason, Receipt, Request, TokenLogprobs};
use forerun_text::{TextError, Tokenizer};
use std::sync::Arc;
use std::time::Instant;

/// One answer: where its pieces go and what they are made of.
pub(super) struct Live {
    choice: usize,
    sink: Sink,
    text: AnswerText,
    end_tokens: Vec<Token>,
    tell_end: bool,
    request_id: Arc<str>,
    owner: Option<Owner>,
    /// The prompt, until it is known what the cache had of it.
    prompt: Vec<Token>,
    prompt_tokens: usize,
    completion_tokens: usize,
    /// Tokens decided since the last piece.
    fresh: Vec<Said>,
    arrived: Instant,
    started: Option<Instant>,
    cached: CacheReport,
    first_token: Option<Instant>,
    /// When tokens last came, or the request.
    last_token: Instant,
    metrics: Arc<Metrics>,
    /// Held until the answer is over.
    place: Place,
}

impl Live {
    /// An answer and the request that makes it.
    pub(super) fn new(
        submission: SubmittedJob,
        tokenizer: &Tokenizer,
        metrics: &Arc<Metrics>,
    ) -> Result<(Self, Request), TextError> {
        let SubmittedJob { job, choice, sink, place, arrived } = submission;
        let Job { generation, tell_end, request_id, owner } = job;
        let (prompt, end_tokens) = (generation.prompt.clone(), generation.end_tokens.clone());
        let (text, request) = AnswerText::begin(generation, Some(tokenizer))?;
        let live = Self {
            choice,
            sink,
            text,
            end_tokens,
            tell_end,
            prompt_tokens: prompt.len(),
            prompt,
            completion_tokens: 0,
            fresh: Vec::new(),
            arrived,
            started: None,
            cached: CacheReport::default(),
            request_id,
            owner,
            first_token: None,
            last_token: arrived,
            metrics: Arc::clone(metrics),
            place,
        };
        Ok((live, request))
    }

    /// Whether nobody listens any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.sink.is_closed()
    }

    /// Tells a piece. A receiver that is gone is noticed before the next step.
    pub(super) fn tell(&self, piece: AnswerPiece) {
        let _ = self.sink.send((self.choice, piece));
    }

    /// Takes what the cache had of its prompt. It got its room when the step began.
    pub(super) fn start(
        &mut self,
        began: Instant,
        cached: CacheReport,
        traces: &CacheTraces,
        tokenizer: &Tokenizer,
    ) {
        traces.note(
            (self.owner, &self.request_id),
            &cached,
            &std::mem::take(&mut self.prompt),
            tokenizer,
        );
        self.started = Some(began);
        self.metrics.queued.observe((began - self.arrived).as_secs_f64());
        self.cached = cached.clone();
        self.tell(AnswerPiece::Started(Box::new(cached)));
    }

    /// Takes a token that was decided; its text went through the watch already.
    pub(super) fn token(&mut self, token: Token, logprobs: Option<Box<TokenLogprobs>>) {
        self.completion_tokens += 1;
        let text = self.text.next_token();
        let logprobs = logprobs.filter(|_| self.tell_end || !self.end_tokens.contains(&token));
        self.fresh.push(Said { token, text, logprobs });
    }

    /// Tells what the tokens of a step came to.
    pub(super) fn flush(&mut self) {
        if !self.fresh.is_empty() {
            self.note_times();
            let tokens = std::mem::take(&mut self.fresh);
            self.tell(AnswerPiece::Tokens(tokens));
        }
    }

    fn note_times(&mut self) {
        let now = Instant::now();
        let waited = now - self.last_token;
        if self.first_token.is_some() {
            self.metrics.note_tokens(waited, self.fresh.len());
        } else {
            self.first_token = Some(now);
            self.metrics.first_token.observe(waited.as_secs_f64());
        }
        self.last_token = now;
    }

    /// Tells the rest and the end.
    pub(super) fn finish(mut self, reason: FinishReason, receipt: Receipt) {
        self.flush();
        let (text, ending) = match self.text.finish(reason) {
            Ok((_, Ending::Cancelled)) => return self.metrics.note_end("abort"),
            Ok(finished) => finished,
            Err(Error::Refused(why)) => return self.refuse(why),
            Err(Error::Failed(why)) => return self.fail(why),
            Err(error) => return self.fail(error.to_string()),
        };
        if !text.is_empty() {
            self.tell(AnswerPiece::Rest(text));
        }
        let now = Instant::now();
        self.metrics.whole.observe((now - self.arrived).as_secs_f64());
        self.metrics.note_end(if ending == Ending::Length { "length" } else { "stop" });
        let times = Times {
            started: self.started.unwrap_or(now) - self.arrived,
            first_token: self.first_token.unwrap_or(now) - self.arrived,
            end: now - self.arrived,
        };
        let cached = std::mem::take(&mut self.cached);
        tracing::info!(
            request_id = %self.request_id,
            ending = ?ending,
            prompt_tokens = self.prompt_tokens,
            cached_tokens = cached.cached_tokens,
            completion_tokens = self.completion_tokens,
            ms = times.end.as_millis() as u64,
            "answer"
        );
        let (prompt_tokens, completion_tokens) = (self.prompt_tokens, self.completion_tokens);
        let end = End { ending, prompt_tokens, cached, completion_tokens, times, receipt };
        self.last(AnswerPiece::Finished(Box::new(end)));
    }

    fn refuse(self, why: String) {
        self.metrics.note_end("refused");
        self.last(AnswerPiece::Refused(why));
    }

    pub(super) fn fail(self, why: String) {
        self.metrics.note_end("error");
        self.last(AnswerPiece::Failed(why));
    }

    /// Tells the last piece. The place is free before: who hears of the end may ask again at once.
    fn last(self, piece: AnswerPiece) {
        let Self { choice, sink, place, .. } = self;
        drop(place);
        // Nobody may be left to hear it.
        let _ = sink.send((choice, piece));
    }
}
