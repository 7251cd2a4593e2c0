//! An answer in the making, on the engine's thread.

use super::{End, Ending, Piece, Place, Said, Sink, Submission, Times, lock};
use crate::auth::Owner;
use crate::cache_traces::CacheTraces;
use crate::metrics::Metrics;
use forerun_base::Token;
use forerun_engine::{CacheReport, FinishReason, Receipt, Request, TokenLogprobs};
use forerun_text::{TextError, Tokenizer, Transcript};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// One answer: where its pieces go and what they are made of.
pub(super) struct Live {
    choice: usize,
    sink: Sink,
    heard: Arc<Mutex<Heard>>,
    stops: Vec<String>,
    end_tokens: Vec<Token>,
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

/// The text so far, filled by the request's watch before the engine tells of the tokens.
struct Heard {
    transcript: Transcript,
    /// What each token settled that the engine has not told of yet.
    settled: VecDeque<String>,
}

impl Heard {
    fn take(&mut self, token: Token) -> bool {
        let ends = self.transcript.take(token);
        self.settled.push_back(self.transcript.fresh());
        ends
    }
}

impl Live {
    /// An answer and the request that makes it.
    pub(super) fn new(
        submission: Submission,
        tokenizer: &Tokenizer,
        metrics: &Arc<Metrics>,
    ) -> Result<(Self, Request), TextError> {
        let Submission { job, choice, sink, place, arrived } = submission;
        let transcript =
            Transcript::new(Some(tokenizer), job.stops.clone(), job.end_tokens.clone())?
                .showing(job.shown);
        let heard = Arc::new(Mutex::new(Heard { transcript, settled: VecDeque::new() }));
        let watched = Arc::clone(&heard);
        let live = Self {
            choice,
            sink,
            heard,
            stops: job.stops,
            end_tokens: job.end_tokens.clone(),
            prompt: job.prompt.clone(),
            prompt_tokens: job.prompt.len(),
            completion_tokens: 0,
            fresh: Vec::new(),
            arrived,
            started: None,
            cached: CacheReport::default(),
            request_id: job.request_id,
            owner: job.owner,
            first_token: None,
            last_token: arrived,
            metrics: Arc::clone(metrics),
            place,
        };
        let request = Request {
            sampling: job.sampling,
            end_tokens: job.end_tokens,
            watch: Some(Box::new(move |token| lock(&watched).take(token))),
            depth: job.depth,
            priority: job.priority,
            constraint: job.constraint,
            logprobs: job.logprobs,
            cache: job.cache,
            ..Request::greedy(job.prompt, job.max_tokens)
        };
        Ok((live, request))
    }

    /// Whether nobody listens any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.sink.is_closed()
    }

    /// Tells a piece. A receiver that is gone is noticed before the next step.
    pub(super) fn tell(&self, piece: Piece) {
        let _ = self.sink.send((self.choice, piece));
    }

    /// Takes what the cache had of its prompt. It got its room when the step began.
    pub(super) fn start(
        &mut self,
        began: Instant,
        cached: CacheReport,
        looks: &CacheTraces,
        tokenizer: &Tokenizer,
    ) {
        looks.note(
            (self.owner, &self.request_id),
            &cached,
            &std::mem::take(&mut self.prompt),
            tokenizer,
        );
        self.started = Some(began);
        self.metrics.queued.observe((began - self.arrived).as_secs_f64());
        self.cached = cached.clone();
        self.tell(Piece::Started(Box::new(cached)));
    }

    /// Takes a token that was decided; its text went through the watch already.
    pub(super) fn token(&mut self, token: Token, logprobs: Option<Box<TokenLogprobs>>) {
        self.completion_tokens += 1;
        let text = lock(&self.heard).settled.pop_front().unwrap_or_default();
        let logprobs = logprobs.filter(|_| !self.end_tokens.contains(&token));
        self.fresh.push(Said { text, logprobs });
    }

    /// Tells what the tokens of a step came to.
    pub(super) fn flush(&mut self) {
        if !self.fresh.is_empty() {
            self.note_times();
            let tokens = std::mem::take(&mut self.fresh);
            self.tell(Piece::Tokens(tokens));
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
        let mut heard = lock(&self.heard);
        let rest = heard.transcript.finish();
        let text = heard.transcript.fresh();
        let stopped = heard.transcript.hit().map(|i| Ending::Stop(self.stops[i].clone()));
        drop(heard);
        let ending = match (rest, reason, stopped) {
            (Err(error), ..) => return self.fail(error.to_string()),
            (_, FinishReason::Failed(why), _) => return self.fail(why),
            (_, FinishReason::Refused(why), _) => return self.refuse(why),
            (_, FinishReason::Cancelled, _) => return self.metrics.note_end("abort"),
            (_, _, Some(stop)) => stop,
            (_, FinishReason::Length, _) => Ending::Length,
            (_, FinishReason::EndToken | FinishReason::Complete | FinishReason::Watched, _) => {
                Ending::EndToken
            }
        };
        if !text.is_empty() {
            self.tell(Piece::Rest(text));
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
        self.last(Piece::Finished(Box::new(end)));
    }

    fn refuse(self, why: String) {
        self.metrics.note_end("refused");
        self.last(Piece::Refused(why));
    }

    pub(super) fn fail(self, why: String) {
        self.metrics.note_end("error");
        self.last(Piece::Failed(why));
    }

    /// Tells the last piece. The place is free before: who hears of the end may ask again at once.
    fn last(self, piece: Piece) {
        let Self { choice, sink, place, .. } = self;
        drop(place);
        // Nobody may be left to hear it.
        let _ = sink.send((choice, piece));
    }
}
