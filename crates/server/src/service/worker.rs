//! The loop of the engine's thread: take commands, step, hand out what was decided.

use super::live::Live;
use super::read::ReadJob;
use super::{AnswerPiece, Command, SubmittedJob, Watchers};
use forerun_base::SeqId;
use forerun_engine::{Engine, Event, FinishReason, ReadingProgress, Request, Runner, panic_text};
use forerun_text::Tokenizer;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;
use tokio::sync::oneshot;

pub(super) struct Worker<R> {
    engine: Engine<R>,
    tokenizer: Tokenizer,
    inbox: Receiver<Command<R>>,
    alive: Arc<AtomicBool>,
    watchers: Watchers,
    answers: HashMap<SeqId, Live>,
    /// Texts that get no answer; the first one is read.
    reads: VecDeque<Box<dyn ReadJob<R>>>,
    events: Vec<Event>,
}

impl<R: Runner> Worker<R> {
    pub(super) fn new(
        engine: Engine<R>,
        tokenizer: Tokenizer,
        inbox: Receiver<Command<R>>,
        alive: Arc<AtomicBool>,
        watchers: Watchers,
    ) -> Self {
        let (answers, reads, events) = (HashMap::new(), VecDeque::new(), Vec::new());
        Self { engine, tokenizer, inbox, alive, watchers, answers, reads, events }
    }

    /// Works until told to stop; what it died of otherwise. Dropping the worker closes every answer.
    pub(super) fn run(mut self, warm: oneshot::Sender<()>) -> Result<(), String> {
        let alive = Arc::clone(&self.alive);
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.warm_up()?;
            self.alive.store(true, Ordering::Release);
            self.tell_metrics();
            // Whoever started the thread may have given up; commands tell.
            let _ = warm.send(());
            self.work();
            self.engine.flush_cache();
            Ok(())
        }));
        alive.store(false, Ordering::Release);
        done.unwrap_or_else(|panic| {
            Err(format!("the engine's thread panicked: {}", panic_text(&*panic)))
        })
    }

    /// One token, so that "ready" is true and the first client does not pay for first touches.
    fn warm_up(&mut self) -> Result<(), String> {
        self.engine.submit(Request::greedy(vec![0], 1)).map_err(|e| e.to_string())?;
        loop {
            self.engine.step(&mut self.events);
            for event in self.events.drain(..) {
                match event {
                    Event::Finished { reason: FinishReason::Failed(why), .. } => return Err(why),
                    Event::Finished { .. } => return Ok(()),
                    Event::Started { .. } | Event::Token { .. } => {}
                }
            }
        }
    }

    fn work(&mut self) {
        loop {
            if self.answers.is_empty() && self.reads.is_empty() {
                match self.next_command() {
                    Some(Command::Stop) | None => return,
                    Some(command) => self.obey(command),
                }
            }
            while let Ok(command) = self.inbox.try_recv() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.obey(command);
            }
            self.drop_abandoned();
            self.read_on();
            let began = Instant::now();
            if !self.answers.is_empty() {
                self.engine.step(&mut self.events);
                self.watchers.metrics.step.observe(self.engine.stats().step_time.as_secs_f64());
            }
            // First the counts: who has its answer finds it counted.
            self.tell_metrics();
            self.hand_out(began);
        }
    }

    /// The next command when nobody waits for an answer: until there is one, what was published goes to disk, then the
    /// thread sleeps. None when everybody is gone.
    fn next_command(&mut self) -> Option<Command<R>> {
        while !self.engine.is_idle() {
            match self.inbox.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.engine.step(&mut self.events),
            }
            self.tell_metrics();
        }
        self.inbox.recv().ok()
    }

    fn obey(&mut self, command: Command<R>) {
        match command {
            Command::Submit(submission) => self.submit(*submission),
            Command::Read(job) => self.reads.push_back(job),
            // Whoever asked may have stopped waiting.
            Command::Ping(reply) => drop(reply.send(())),
            Command::Stop => unreachable!("handled where commands are taken"),
        }
    }

    fn submit(&mut self, submission: SubmittedJob) {
        let (choice, sink) = (submission.choice, submission.sink.clone());
        let refuse = |piece| {
            let _ = sink.send((choice, piece));
        };
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let made = Live::new(submission, &self.tokenizer, &self.watchers.metrics);
            let (live, request) = made.map_err(|error| AnswerPiece::Failed(error.to_string()))?;
            let seq = self.engine.submit(request).map_err(AnswerPiece::Rejected)?;
            live.tell(AnswerPiece::Accepted);
            self.answers.insert(seq, live);
            Ok(())
        }));
        match taken {
            Ok(Ok(())) => {}
            Ok(Err(piece)) => refuse(piece),
            Err(panic) => refuse(AnswerPiece::Failed(panic_text(&*panic).to_owned())),
        }
    }

    /// Reads a piece of the first text that waits for it. A panic ends that text alone.
    fn read_on(&mut self) {
        let Some(mut job) = self.reads.pop_front() else { return };
        let engine = &mut self.engine;
        let done = catch_unwind(AssertUnwindSafe(|| job.go_on(engine)));
        match done {
            Ok(ReadingProgress::Done) => {}
            Ok(ReadingProgress::Reads | ReadingProgress::Waits) => self.reads.push_front(job),
            // Whoever waits for it finds the channel closed.
            Err(_) => job.forget(engine),
        }
    }

    /// Ends what nobody waits for.
    fn drop_abandoned(&mut self) {
        let Self { engine, watchers, answers, reads, events, .. } = self;
        reads.retain_mut(|job| {
            let abandoned = job.is_abandoned();
            if abandoned {
                job.forget(engine);
            }
            !abandoned
        });
        answers.retain(|&seq, live| {
            let abandoned = live.is_abandoned();
            if abandoned {
                engine.cancel(seq, events);
                watchers.metrics.note_end("abort");
            }
            !abandoned
        });
        events.clear();
    }

    fn tell_metrics(&self) {
        self.watchers.metrics.note_engine(self.engine.stats(), self.engine.cache_stats());
    }

    /// Tells what the step that began at `began` decided.
    fn hand_out(&mut self, began: Instant) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let (Event::Started { seq, .. }
            | Event::Token { seq, .. }
            | Event::Finished { seq, .. }) = event;
            self.contain(seq, |this| this.tell(began, event));
        }
        self.events = events;
        let waiting: Vec<SeqId> = self.answers.keys().copied().collect();
        for seq in waiting {
            self.contain(seq, |this| this.answers.get_mut(&seq).into_iter().for_each(Live::flush));
        }
    }

    /// Does something for one answer. A panic ends that answer alone.
    fn contain(&mut self, seq: SeqId, work: impl FnOnce(&mut Self)) {
        let done = catch_unwind(AssertUnwindSafe(|| work(self)));
        if let Err(panic) = done {
            self.engine.cancel(seq, &mut Vec::new());
            if let Some(live) = self.answers.remove(&seq) {
                live.fail(format!("the text of the answer: {}", panic_text(&*panic)));
            }
        }
    }

    fn tell(&mut self, began: Instant, event: Event) {
        match event {
            Event::Started { seq, cached } => {
                if let Some(live) = self.answers.get_mut(&seq) {
                    live.start(began, *cached, &self.watchers.traces, &self.tokenizer);
                }
            }
            Event::Token { seq, token, logprobs } => {
                if let Some(live) = self.answers.get_mut(&seq) {
                    live.token(token, logprobs);
                }
            }
            Event::Finished { seq, reason, receipt } => {
                if let Some(live) = self.answers.remove(&seq) {
                    live.finish(reason, *receipt);
                }
            }
        }
    }
}
