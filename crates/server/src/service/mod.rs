//! The thread that owns the engine, and the channels around it.
//!
//! Requests go in by one channel; the pieces of an answer come out by one channel per request. A receiver that
//! was dropped is a cancel: its sequences end before the next step. Channels have no bound of their
//! own, since places bound the requests and `max_tokens` the pieces.

mod live;
mod places;
mod read;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use places::{Place, Places};
use read::{ReadJob, ReadText};

use crate::auth::Owner;
use crate::cache_traces::CacheTraces;
use crate::error::ServerError;
use crate::metrics::Metrics;
use forerun::{Ending, Generation, Token};
use forerun_engine::{
    CacheReport, Engine, ModelRunner, Receipt, RejectError, RowKind, Runner, TokenLogprobs,
};
use forerun_text::Tokenizer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc as tokio_mpsc, oneshot};
use worker::Worker;

/// One answer for the engine.
pub(crate) struct Job {
    pub(crate) generation: Generation,
    /// Whether log-probabilities are told of an end token, too.
    pub(crate) tell_end: bool,
    pub(crate) request_id: Arc<str>,
    pub(crate) owner: Option<Owner>,
}

/// Part of an answer, as the engine's thread tells it.
#[derive(Debug)]
pub(crate) enum AnswerPiece {
    /// The engine took the request.
    Accepted,
    /// It got its room, and this much of its prompt was known.
    Started(Box<CacheReport>),
    /// It can never run.
    Rejected(RejectError),
    /// Tokens that a step decided.
    Tokens(Vec<Said>),
    /// Text that was held back until the end.
    Rest(String),
    /// The answer is over.
    Finished(Box<End>),
    /// Its grammar cannot go on; the same request will end the same way.
    Refused(String),
    /// The engine, its device or the detokenizer failed.
    Failed(String),
}

/// A token of an answer.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) token: Token,
    /// Text that it settled, often its own, sometimes none.
    pub(crate) text: String,
    /// What the model thought of it, where somebody asked and it is no end token.
    pub(crate) logprobs: Option<Box<TokenLogprobs>>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) ending: Ending,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached: CacheReport,
    pub(crate) completion_tokens: usize,
    pub(crate) times: Times,
    pub(crate) receipt: Receipt,
}

/// When things happened, from the arrival of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// It got its room.
    pub(crate) started: Duration,
    pub(crate) first_token: Duration,
    pub(crate) end: Duration,
}

/// The sending end of an answer: which of a request's answers, and its piece.
pub(crate) type Sink = tokio_mpsc::UnboundedSender<(usize, AnswerPiece)>;

enum Command<R> {
    Submit(Box<SubmittedJob>),
    Read(Box<dyn ReadJob<R>>),
    Ping(oneshot::Sender<()>),
    Stop,
}

/// A job with where its pieces go.
struct SubmittedJob {
    job: Job,
    choice: usize,
    sink: Sink,
    place: Place,
    arrived: Instant,
}

/// A handle to the engine's thread.
pub(crate) struct Service<R = ModelRunner> {
    commands: mpsc::Sender<Command<R>>,
    places: Arc<Places>,
    alive: Arc<AtomicBool>,
}

/// What the thread left behind.
pub(crate) type Thread = JoinHandle<Result<(), String>>;

/// Who hears of what the engine does.
#[derive(Clone)]
pub(crate) struct Watchers {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Arc<CacheTraces>,
}

/// Takes a lock; a panic elsewhere leaves nothing half done in what is locked here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread that was started.
pub(crate) struct Started<R = ModelRunner> {
    pub(crate) service: Service<R>,
    /// Hears of the first token; an error when there will be none.
    pub(crate) warmed: oneshot::Receiver<()>,
    /// An error as soon as the thread has ended.
    pub(crate) gone: oneshot::Receiver<()>,
    pub(crate) thread: Thread,
}

impl<R: Runner + 'static> Service<R> {
    /// Moves an engine to a thread of its own, where it first generates one token.
    pub(crate) fn start(
        engine: Engine<R>,
        tokenizer: Tokenizer,
        places: Arc<Places>,
        watchers: Watchers,
    ) -> std::io::Result<Started<R>> {
        let (commands, inbox) = mpsc::channel();
        let (warm, warmed) = oneshot::channel();
        let (going, gone) = oneshot::channel();
        let alive = Arc::new(AtomicBool::new(false));
        let worker = Worker::new(engine, tokenizer, inbox, Arc::clone(&alive), watchers);
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _going = going;
            worker.run(warm)
        })?;
        Ok(Started { service: Self { commands, places, alive }, warmed, gone, thread })
    }

    /// Whether the thread is at work.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Room for so many answers, or why there is none.
    pub(crate) fn places(&self, count: usize) -> Result<Vec<Place>, ServerError> {
        if !self.is_alive() {
            return Err(ServerError::Unavailable("the engine is not running"));
        }
        Places::take(&self.places, count)
    }

    /// Hands jobs to the engine, each in its place; their pieces come tagged by their order.
    pub(crate) fn submit(
        &self,
        jobs: Vec<Job>,
        places: Vec<Place>,
    ) -> Result<tokio_mpsc::UnboundedReceiver<(usize, AnswerPiece)>, ServerError> {
        let (sink, pieces) = tokio_mpsc::unbounded_channel();
        let arrived = Instant::now();
        for (choice, (job, place)) in jobs.into_iter().zip(places).enumerate() {
            let submission = SubmittedJob { job, choice, sink: sink.clone(), place, arrived };
            self.commands
                .send(Command::Submit(Box::new(submission)))
                .map_err(|_| ServerError::Unavailable("the engine is not running"))?;
        }
        Ok(pieces)
    }

    /// Whether the engine's thread answers within a time.
    pub(crate) async fn answers_within(&self, time: Duration) -> bool {
        let (reply, answer) = oneshot::channel();
        self.is_alive()
            && self.commands.send(Command::Ping(reply)).is_ok()
            && matches!(tokio::time::timeout(time, answer).await, Ok(Ok(())))
    }

    /// Ends the thread after its present step; answers that are not over are cut off.
    pub(crate) fn stop(&self) {
        // A thread that is gone needs no telling.
        let _ = self.commands.send(Command::Stop);
    }
}

impl Service {
    /// Reads a text that gets no answer, in its place between the steps of answers; `take` gets each row.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        (tokens, kind): (Vec<Token>, RowKind),
        place: Place,
        taken: T,
        take: fn(&mut T, &[f32]),
    ) -> Result<(T, Place), ServerError> {
        let gone = || ServerError::Unavailable("the engine is not running");
        let (tell, told) = oneshot::channel();
        let job = ReadText::new((tokens, kind), place, (taken, take), tell);
        self.commands.send(Command::Read(Box::new(job))).map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }
}
