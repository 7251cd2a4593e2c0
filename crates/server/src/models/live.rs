//! A model that is loaded: its text side, its engine's thread, and who uses it.

use super::LoadedModel;
use crate::answer::Answers;
use crate::api::notes;
use crate::app::on_the_side;
use crate::cache_traces::CacheTraces;
use crate::calls::Loosened;
use crate::chat::{ChatRequest, CompletionRequest};
use crate::error::ServerError;
use crate::metrics::Metrics;
use crate::model::Facts;
use crate::prepare::{self, Prepared};
use crate::service::{Place, Places, Service, Started, Thread, Watchers, lock};
use crate::settings::Settings;
use forerun::{Pooling, TextParts, TextProcessor};
use forerun_grammar::Grammars;
use forerun_text::Tokenizer;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What all models have in common.
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) traces: Arc<CacheTraces>,
}

/// A model on its thread.
pub(crate) struct LiveModel {
    pub(crate) name: String,
    pub(crate) facts: Facts,
    /// Prompts to generations: template, tokenizer, grammars, defaults.
    pub(crate) text: TextProcessor,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) service: Service,
    pub(crate) places: Arc<Places>,
    /// How the schemas of tools had to be loosened of late.
    pub(crate) loosened: Loosened,
    pub(crate) settings: Arc<Settings>,
    /// How embeddings are pooled where a request does not say.
    pub(crate) pooling: Pooling,
    /// What it takes of memory.
    pub(crate) bytes: u64,
    metrics: Arc<Metrics>,
    thread: Mutex<Option<Thread>>,
    users: AtomicUsize,
    last_used: Mutex<Instant>,
    /// How long it stays when nobody uses it; none is for good.
    stays: Mutex<Option<Duration>>,
}

/// A model that was just started.
pub(super) struct Pinned {
    pub(super) model: Arc<LiveModel>,
    /// An error as soon as its thread has ended.
    pub(super) gone: oneshot::Receiver<()>,
}

impl LiveModel {
    /// Brings an engine to its thread and waits for the first token.
    pub(super) async fn start(
        name: &str,
        loaded: LoadedModel,
        shared: &Shared,
        metrics: &Arc<Metrics>,
    ) -> Result<Pinned, String> {
        let LoadedModel { mut engine, tokenizer, template, defaults, pooling, bytes } = loaded;
        let facts = Facts::of(&mut engine);
        metrics.note_loaded(&facts);
        let settings = Arc::clone(&shared.settings);
        let places = Places::new(facts.sequences.saturating_add(settings.queue));
        let (vocabulary, context) = (facts.vocabulary, facts.context);
        let (of_text, template) = (Ok(tokenizer.clone()), Ok(template));
        let parts = TextParts { tokenizer: of_text, template, defaults, vocabulary, context };
        let watchers =
            Watchers { metrics: Arc::clone(metrics), traces: Arc::clone(&shared.traces) };
        let started = Service::start(engine, tokenizer.clone(), Arc::clone(&places), watchers);
        let Started { service, warmed, gone, thread } =
            started.map_err(|error| error.to_string())?;
        if warmed.await.is_err() {
            return Err(last_words(thread));
        }
        let model = Arc::new(Self {
            name: name.to_owned(),
            facts,
            text: TextProcessor::new(parts),
            tokenizer,
            service,
            places,
            loosened: Loosened::default(),
            stays: Mutex::new(settings.unload_after),
            settings,
            pooling,
            bytes,
            metrics: Arc::clone(metrics),
            thread: Mutex::new(Some(thread)),
            users: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        });
        let learner = Arc::clone(&model);
        // Learnt before the first request needs it; without, requests with a grammar are told why.
        let _ = super::aside(move || drop(learner.text.grammars())).await;
        Ok(Pinned { model, gone })
    }

    /// Whether somebody uses it.
    pub(super) fn is_held(&self) -> bool {
        self.users.load(Ordering::Acquire) > 0
    }

    /// Whether its thread is at work.
    pub(super) fn is_alive(&self) -> bool {
        self.service.is_alive()
    }

    pub(super) fn last_used(&self) -> Instant {
        *lock(&self.last_used)
    }

    /// Whether nobody has used it for as long as it stays.
    pub(super) fn is_overdue(&self) -> bool {
        let stays = *lock(&self.stays);
        stays.is_some_and(|stays| self.last_used().elapsed() >= stays)
    }

    /// Lets it stay for so long when nobody uses it; none is for good.
    pub(crate) fn stay(&self, stays: Option<Duration>) {
        *lock(&self.stays) = stays;
    }

    /// When it goes, if nobody uses it again and it does go.
    pub(crate) fn goes_at(&self) -> Option<Instant> {
        lock(&self.stays).map(|stays| self.last_used() + stays)
    }

    /// Waits for its thread to end; what it died of otherwise.
    pub(super) fn join(&self) -> Result<(), String> {
        let thread = lock(&self.thread).take();
        thread.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err("the engine's thread panicked".to_owned()))
        })
    }

    /// Takes its numbers out of the metrics that tell of now.
    pub(super) fn note_unloaded(&self) {
        self.metrics.note_unloaded();
    }

    /// What makes grammars of the vocabulary, or why there are none.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ServerError> {
        Ok(self.text.grammars()?)
    }

    fn take_places(&self, answers: usize) -> Result<Vec<Place>, ServerError> {
        let capacity = self.places.capacity();
        if answers > capacity {
            let message = format!(
                "the request asks for {answers} answers; this server takes {capacity} at a time"
            );
            return Err(ServerError::invalid("n", message));
        }
        self.service.places(answers)
    }

    async fn submit(&self, prepared: Prepared, places: Vec<Place>) -> Result<Answers, ServerError> {
        let Prepared { jobs, readers, prompts, .. } = prepared;
        let pieces = self.service.submit(jobs, places)?;
        Ok(Answers::accepted(pieces, readers).await?.with_prompts(prompts))
    }
}

fn last_words(thread: Thread) -> String {
    match thread.join() {
        Ok(Err(why)) => why,
        Ok(Ok(())) | Err(_) => "the engine's thread ended before it was ready".to_owned(),
    }
}

/// A model that somebody uses, which keeps it loaded.
pub(crate) struct ModelUse(Arc<LiveModel>);

impl ModelUse {
    pub(super) fn of(model: &Arc<LiveModel>) -> Self {
        model.users.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(model))
    }

    pub(super) fn shared(&self) -> Arc<LiveModel> {
        Arc::clone(&self.0)
    }

    /// Asks for the continuation of a conversation.
    pub(crate) async fn ask_chat(&self, request: ChatRequest) -> Result<Answers, ServerError> {
        let places = self.take_places(request.generation.choices)?;
        let model = self.clone();
        let request_id = Arc::clone(&request.generation.request_id);
        let mut prepared = on_the_side(move || prepare::chat(&model, &request)).await?;
        self.note(&request_id, &mut prepared)?;
        self.submit(prepared, places).await
    }

    /// Tells what is not done to the letter; a strict server does no such request.
    fn note(&self, request_id: &str, prepared: &mut Prepared) -> Result<(), ServerError> {
        if let (true, Some(note)) = (self.settings.strict, prepared.notes.first()) {
            let message = format!("{note}; this server is strict, so it does no request in part");
            return Err(ServerError::Invalid { param: None, message });
        }
        notes::add(request_id, std::mem::take(&mut prepared.notes));
        Ok(())
    }

    /// Asks for the continuation of texts.
    pub(crate) async fn ask_completion(
        &self,
        request: CompletionRequest,
    ) -> Result<Answers, ServerError> {
        let answers = request.prompts.len().saturating_mul(request.generation.choices);
        let places = self.take_places(answers)?;
        let model = self.clone();
        let request_id = Arc::clone(&request.generation.request_id);
        let mut prepared = on_the_side(move || prepare::completion(&model, &request)).await?;
        self.note(&request_id, &mut prepared)?;
        self.submit(prepared, places).await
    }
}

impl Deref for ModelUse {
    type Target = LiveModel;

    fn deref(&self) -> &LiveModel {
        &self.0
    }
}

impl Clone for ModelUse {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for ModelUse {
    fn drop(&mut self) {
        // The time first: who finds nobody here finds the time of the last one.
        *lock(&self.0.last_used) = Instant::now();
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
