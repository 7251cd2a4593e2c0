//! The engine behind a model, and the answers it works on. Whoever waits for an answer steps the engine for all of
//! them.

use crate::answer_text::AnswerText;
use crate::stream::{Finish, Progress, StreamEvent, TokenEvent};
use crate::{CancelToken, Error, Generation};
use forerun_base::{SeqId, Token};
use forerun_engine::{
    CacheReport, Engine, Event, FinishReason, ModelRunner, Receipt, TokenLogprobs,
};
use forerun_text::Tokenizer;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

pub(crate) struct EngineDriver {
    pub(crate) engine: Engine<ModelRunner>,
    tokenizer: Option<Tokenizer>,
    answers: HashMap<SeqId, LiveAnswer>,
    /// Sequences whose answer is over and whose state is retained, the oldest first.
    retained: VecDeque<SeqId>,
    /// Sequences that the device holds at a time.
    sequences: usize,
    events: Vec<Event>,
}

/// An answer that somebody reads.
struct LiveAnswer {
    text: AnswerText,
    cancel: Option<CancelToken>,
    ready: VecDeque<Result<StreamEvent, Error>>,
    over: bool,
    finish: Finish,
    /// Tokens of the prompt that are read, of those that are to be.
    read: usize,
    started: Instant,
    first_token: Option<Instant>,
}

impl EngineDriver {
    pub(crate) fn new(mut engine: Engine<ModelRunner>, tokenizer: Option<Tokenizer>) -> Self {
        let sequences = engine.runner().limits().sequences;
        let (answers, retained, events) = (HashMap::new(), VecDeque::new(), Vec::new());
        Self { engine, tokenizer, answers, retained, sequences, events }
    }

    /// Hands a generation to the engine. It goes on from a retained sequence where its prompt begins with that one's
    /// tokens, and is read anew where it does not, with the same answer either way. The number is that of the tokens
    /// that are to be read.
    pub(crate) fn submit(
        &mut self,
        generation: Generation,
        retained: Option<SeqId>,
    ) -> Result<(SeqId, usize), Error> {
        let cancel = generation.cancel.clone();
        let prompt_tokens = generation.prompt.len();
        let (text, mut request) = AnswerText::begin(generation, self.tokenizer.as_ref())?;
        let kept = retained.and_then(|seq| Some((seq, self.engine.tokens(seq)?.0)));
        let rest = kept.and_then(|(seq, tokens)| Some((seq, request.prompt.strip_prefix(tokens)?)));
        let (seq, read_tokens) = match rest {
            Some((seq, rest)) => {
                let rest = rest.to_vec();
                // The last token that a sequence holds was sampled and never read.
                let read = rest.len() + 1;
                request.prompt = rest;
                self.engine.resume(seq, request)?;
                self.retained.retain(|&kept| kept != seq);
                (seq, read)
            }
            None => {
                retained.into_iter().for_each(|seq| self.forget(seq));
                (self.engine.submit(request)?, prompt_tokens)
            }
        };
        let finish = Finish { prompt_tokens, read_tokens, ..Finish::default() };
        let answer = LiveAnswer {
            text,
            cancel,
            ready: VecDeque::new(),
            over: false,
            finish,
            read: 0,
            started: Instant::now(),
            first_token: None,
        };
        self.answers.insert(seq, answer);
        self.make_room();
        Ok((seq, read_tokens))
    }

    /// Forgets retained sequences, the oldest first, until every answer that is not over can have its place on the
    /// device.
    fn make_room(&mut self) {
        let running = self.answers.values().filter(|answer| !answer.over).count();
        while running + self.retained.len() > self.sequences
            && let Some(oldest) = self.retained.front().copied()
        {
            self.forget(oldest);
        }
    }

    /// Forgets a retained sequence.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        self.retained.retain(|&kept| kept != seq);
        self.engine.cancel(seq, &mut Vec::new());
    }

    /// Forgets all of them.
    pub(crate) fn forget_all(&mut self) {
        while let Some(seq) = self.retained.front().copied() {
            self.forget(seq);
        }
    }

    /// The next event of an answer; `None` after its last. Steps the engine until there is one.
    pub(crate) fn next(&mut self, seq: SeqId) -> Option<Result<StreamEvent, Error>> {
        loop {
            let answer = self.answers.get_mut(&seq)?;
            if let Some(event) = answer.ready.pop_front() {
                return Some(event);
            }
            if answer.over {
                self.answers.remove(&seq);
                return None;
            }
            self.step();
        }
    }

    fn step(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        // A prompt is read without asking the text whether to end.
        let cancelled = |answer: &LiveAnswer| {
            !answer.over && answer.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
        };
        for (&seq, _) in self.answers.iter().filter(|(_, answer)| cancelled(answer)) {
            self.engine.cancel(seq, &mut events);
        }
        if events.is_empty() {
            self.engine.step(&mut events);
        }
        for event in events.drain(..) {
            self.take(event);
        }
        self.events = events;
        for (&seq, answer) in &mut self.answers {
            answer.note_progress(self.engine.committed(seq));
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { seq, cached } => {
                if let Some(answer) = self.answers.get_mut(&seq) {
                    answer.start(*cached);
                }
            }
            Event::Token { seq, token, logprobs } => {
                if let Some(answer) = self.answers.get_mut(&seq) {
                    answer.token(token, logprobs);
                }
            }
            Event::Finished { seq, reason, receipt } => {
                if self.engine.tokens(seq).is_some() {
                    self.retained.push_back(seq);
                }
                if let Some(answer) = self.answers.get_mut(&seq) {
                    answer.finish(reason, *receipt);
                }
                self.make_room();
            }
        }
    }

    /// Ends an answer that nobody reads any more. The sequence, if its state is retained.
    pub(crate) fn release(&mut self, seq: SeqId) -> Option<SeqId> {
        if let Some(answer) = self.answers.remove(&seq)
            && !answer.over
        {
            self.engine.cancel(seq, &mut Vec::new());
        }
        self.retained.contains(&seq).then_some(seq)
    }
}

impl LiveAnswer {
    fn start(&mut self, cached: CacheReport) {
        self.finish.queued = self.started.elapsed();
        self.finish.cached = cached.clone();
        self.ready.push_back(Ok(StreamEvent::Started(Box::new(cached))));
    }

    /// Tells how much of the prompt is read, until its answer begins.
    fn note_progress(&mut self, committed: usize) {
        let of = self.finish.read_tokens;
        let read = (committed + of).saturating_sub(self.finish.prompt_tokens);
        if self.over || self.first_token.is_some() || read <= self.read {
            return;
        }
        self.read = read;
        // Whoever reads slowly wants the newest only.
        self.ready.retain(|event| !matches!(event, Ok(StreamEvent::Reading(_))));
        self.ready.push_back(Ok(StreamEvent::Reading(Progress { read, of })));
    }

    fn token(&mut self, token: Token, logprobs: Option<Box<TokenLogprobs>>) {
        self.first_token.get_or_insert_with(Instant::now);
        self.finish.completion_tokens += 1;
        let text = self.text.next_token();
        self.ready.push_back(Ok(StreamEvent::Token(TokenEvent { token, text, logprobs })));
    }

    fn finish(&mut self, reason: FinishReason, receipt: Receipt) {
        self.over = true;
        let (rest, ending) = match self.text.finish(reason) {
            Ok(done) => done,
            Err(error) => return self.ready.push_back(Err(error)),
        };
        if !rest.is_empty() {
            self.ready.push_back(Ok(StreamEvent::Rest(rest)));
        }
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let mut finish = std::mem::take(&mut self.finish);
        if self.first_token.is_none() {
            finish.read_tokens = self.read;
        }
        finish.ending = ending;
        finish.receipt = receipt;
        finish.prompt_time = first - self.started;
        finish.decode_time = if self.first_token.is_some() { now - first } else { Duration::ZERO };
        self.ready.push_back(Ok(StreamEvent::Finished(Box::new(finish))));
    }
}
