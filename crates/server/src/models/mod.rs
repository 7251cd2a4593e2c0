//! The models that are served: one for good, or several that come when they are asked for and go when they are not.
//!
//! Loads and unloads come one after the other, so that memory is counted by one at a time; requests for models that are
//! loaded wait for neither. A model that requests hold ([`ModelUse`]) is never unloaded.

mod live;
mod load;
mod names;
mod read;

pub(crate) use live::{LiveModel, ModelUse, Shared};
pub use load::{LoadError, LoadModel, LoadedModel, ModelDetails, ModelEntry, RoomLeft};
pub(crate) use names::ModelNames;
pub(crate) use read::ScoredPrompt;

use crate::app::shortened;
use crate::error::ServerError;
use crate::metrics::Metrics;
use crate::service::lock;
use live::Pinned;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, oneshot, watch};

/// How often idle models are looked for.
const LOOK: Duration = Duration::from_millis(250);
/// Names that an error lists.
const NAMED: usize = 20;

/// Every model there is.
pub(crate) struct Models {
    entries: Vec<Arc<Entry>>,
    shared: Arc<Shared>,
    /// Held by whoever loads or unloads.
    changing: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

/// One model, loaded or not.
pub(crate) struct Entry {
    pub(crate) names: ModelNames,
    pub(crate) metrics: Arc<Metrics>,
    /// None where it was loaded at start, for good.
    loader: Option<Arc<dyn LoadModel>>,
    state: Mutex<State>,
    details: OnceCell<ModelDetails>,
}

/// What becomes of an attempt to load a model, for all who wait for it.
type Outcome = Option<Result<ModelUse, ServerError>>;

enum State {
    Unloaded,
    Loading(watch::Receiver<Outcome>),
    Loaded(Arc<LiveModel>),
    /// The last attempt failed for this reason; the next request tries again.
    Failed(String),
}

/// The state of a model as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Unloaded,
    Loading,
    Loaded,
    Failed(String),
}

impl Presence {
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Failed(_) => "failed",
        }
    }
}

impl Entry {
    pub(crate) fn presence(&self) -> Presence {
        match &*lock(&self.state) {
            State::Unloaded => Presence::Unloaded,
            State::Loading(_) => Presence::Loading,
            State::Loaded(_) => Presence::Loaded,
            State::Failed(why) => Presence::Failed(why.clone()),
        }
    }

    /// Positions a sequence can reach, where it is loaded.
    pub(crate) fn context(&self) -> Option<usize> {
        match &*lock(&self.state) {
            State::Loaded(model) => Some(model.facts.context),
            _ => None,
        }
    }

    /// The model where it is loaded.
    pub(crate) fn loaded(&self) -> Option<ModelUse> {
        match &*lock(&self.state) {
            State::Loaded(model) => Some(ModelUse::of(model)),
            _ => None,
        }
    }

    /// Whether it is loaded and unloaded as it is asked for.
    pub(crate) fn comes_and_goes(&self) -> bool {
        self.loader.is_some()
    }

    /// What is known of it without its weights; its files are looked into once.
    pub(crate) async fn details(&self) -> ModelDetails {
        let look = || async {
            let Some(loader) = self.loader.clone() else { return ModelDetails::default() };
            aside(move || loader.details()).await.unwrap_or_default()
        };
        self.details.get_or_init(look).await.clone()
    }

    /// Takes the model out where nobody holds it and `goes` says so.
    fn take_idle(&self, goes: impl Fn(&LiveModel) -> bool) -> Option<Arc<LiveModel>> {
        self.loader.as_ref()?;
        let mut state = lock(&self.state);
        match &*state {
            State::Loaded(model) if !model.is_held() && goes(model) => {}
            _ => return None,
        }
        match std::mem::replace(&mut *state, State::Unloaded) {
            State::Loaded(model) => Some(model),
            _ => unreachable!("it was loaded under the same lock"),
        }
    }
}

impl Models {
    /// One model that is loaded and stays.
    pub(crate) async fn pinned(
        (names, details): (ModelNames, ModelDetails),
        loaded: LoadedModel,
        shared: Arc<Shared>,
    ) -> Result<(Arc<Self>, oneshot::Receiver<()>), String> {
        let metrics = Arc::new(Metrics::new(None));
        let Pinned { model, gone } =
            LiveModel::start(&names.name, loaded, &shared, &metrics).await?;
        let state = Mutex::new(State::Loaded(model));
        let details = OnceCell::new_with(Some(details));
        let entry = Arc::new(Entry { names, metrics, loader: None, state, details });
        Ok((Self::new(vec![entry], shared), gone))
    }

    /// Models that are loaded when they are asked for.
    pub(crate) fn on_demand(entries: Vec<ModelEntry>, shared: Arc<Shared>) -> Arc<Self> {
        let entry = |ModelEntry { name, aliases, loader }: ModelEntry| {
            let metrics = Arc::new(Metrics::new(Some(&name)));
            let (names, state) = (ModelNames { name, aliases }, Mutex::new(State::Unloaded));
            let (loader, details) = (Some(loader), OnceCell::new());
            Arc::new(Entry { names, metrics, loader, state, details })
        };
        Self::new(entries.into_iter().map(entry).collect(), shared)
    }

    fn new(entries: Vec<Arc<Entry>>, shared: Arc<Shared>) -> Arc<Self> {
        let (changing, closed) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        Arc::new(Self { entries, shared, changing, closed })
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Whether models come and go.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.entries.iter().any(|entry| entry.loader.is_some())
    }

    /// The model of a name; no name means the one that is there, where there is one.
    pub(crate) fn find(&self, asked: Option<&str>) -> Result<&Arc<Entry>, ServerError> {
        let Some(asked) = asked else {
            return match &self.entries[..] {
                [only] => Ok(only),
                _ => {
                    let names = self.listed();
                    let message = format!("`model` is missing; several are served: {names}");
                    Err(ServerError::invalid("model", message))
                }
            };
        };
        let own = self.entries.iter().find(|entry| entry.names.has(asked));
        own.or_else(|| self.entries.iter().find(|entry| entry.names.is_called(asked))).ok_or_else(
            || ServerError::UnknownModel { asked: shortened(asked), served: self.listed() },
        )
    }

    /// Names for an error.
    fn listed(&self) -> String {
        let names: Vec<String> = self
            .entries
            .iter()
            .take(NAMED)
            .map(|entry| format!("`{}`", entry.names.name))
            .collect();
        let more = self.entries.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        names.join(", ") + &rest
    }

    /// The model, once it is loaded. Many who ask at once wait for the same load.
    pub(crate) async fn ready(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
    ) -> Result<ModelUse, ServerError> {
        let mut outcome = match self.begin(entry)? {
            Begun::Loaded(model) => return Ok(model),
            Begun::Loading(outcome) => outcome,
        };
        let gone = || ServerError::Unavailable("the server is shutting down");
        let told = outcome.wait_for(Option::is_some).await.map_err(|_| gone())?;
        told.as_ref().map_or_else(|| Err(gone()), Clone::clone)
    }

    fn begin(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Begun, ServerError> {
        let mut state = lock(&entry.state);
        match &*state {
            // A thread that broke is noticed here; a model that stays ends the server instead.
            State::Loaded(model) if model.is_alive() || entry.loader.is_none() => {
                return Ok(Begun::Loaded(ModelUse::of(model)));
            }
            State::Loading(outcome) => return Ok(Begun::Loading(outcome.clone())),
            _ => {}
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(ServerError::Unavailable("the server is shutting down"));
        }
        let (tell, outcome) = watch::channel(None);
        *state = State::Loading(outcome.clone());
        // On a task of its own: whoever asked may hang up, and others wait for it, too.
        tokio::spawn(Arc::clone(self).load(Arc::clone(entry), tell));
        Ok(Begun::Loading(outcome))
    }

    async fn load(self: Arc<Self>, entry: Arc<Entry>, tell: watch::Sender<Outcome>) {
        let name = entry.names.name.as_str();
        let began = Instant::now();
        let loaded = self.bring(&entry).await;
        let ms = began.elapsed().as_millis() as u64;
        *lock(&entry.state) = match &loaded {
            Ok(model) => {
                tracing::info!(model = name, ms, "loaded");
                State::Loaded(model.shared())
            }
            Err(error) => {
                tracing::warn!(model = name, ms, %error, "not loaded");
                State::Failed(error.to_string())
            }
        };
        tell.send_replace(Some(loaded));
    }

    /// Loads a model, in the place of idle ones where there is no room beside them.
    async fn bring(&self, entry: &Entry) -> Result<ModelUse, ServerError> {
        let failed =
            |why: String| ServerError::ModelFailed { model: entry.names.name.clone(), why };
        let loader = entry.loader.as_ref().ok_or_else(|| failed("its thread ended".to_owned()))?;
        let _alone = self.changing.lock().await;
        let deadline = Instant::now() + self.shared.settings.patience;
        let loaded = loop {
            let others = self.bytes_of_others();
            let room = RoomLeft { others: others.unwrap_or(0), shorten: others.is_none() };
            match load_aside(Arc::clone(loader), room).await {
                Ok(loaded) => break loaded,
                Err(LoadError::NoRoom(why)) if others.is_some() => {
                    self.make_room(deadline, &why).await?
                }
                Err(LoadError::NoRoom(why) | LoadError::Failed(why)) => return Err(failed(why)),
            }
        };
        let started =
            LiveModel::start(&entry.names.name, loaded, &self.shared, &entry.metrics).await;
        Ok(ModelUse::of(&started.map_err(failed)?.model))
    }

    /// Bytes that loaded models take; none where none is loaded.
    fn bytes_of_others(&self) -> Option<u64> {
        let loaded = self.entries.iter().filter_map(|entry| match &*lock(&entry.state) {
            State::Loaded(model) => Some(model.bytes),
            _ => None,
        });
        loaded.reduce(u64::saturating_add)
    }

    /// Unloads the model that was not used for longest, once there is one that nobody uses.
    async fn make_room(&self, deadline: Instant, why: &str) -> Result<(), ServerError> {
        loop {
            let idle = self.entries.iter().filter_map(|entry| Some((entry, entry.idle_since()?)));
            let oldest = idle.min_by_key(|&(_, since)| since).map(|(entry, _)| entry);
            if let Some(model) = oldest.and_then(|entry| entry.take_idle(|_| true)) {
                stop(model, "room for another").await;
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ServerError::NoRoom(why.to_owned()));
            }
            tokio::time::sleep(LOOK / 5).await;
        }
    }

    /// Unloads models that were not used for a while, for as long as the server runs.
    pub(crate) async fn tend(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let _alone = self.changing.lock().await;
            for entry in &self.entries {
                if let Some(model) = entry.take_idle(LiveModel::is_overdue) {
                    stop(model, "idle").await;
                }
            }
        }
    }

    /// Unloads a model now; one that requests use when they are done with it.
    pub(crate) async fn unload(&self, entry: &Entry) -> Result<(), ServerError> {
        if let Some(model) = entry.loaded().filter(|_| entry.comes_and_goes()) {
            model.stay(Some(Duration::ZERO));
        }
        let _alone = self.changing.lock().await;
        if let Some(model) = entry.take_idle(|_| true) {
            stop(model, "asked for").await;
        }
        Ok(())
    }

    /// Answers that are being made or wait.
    pub(crate) fn answers(&self) -> usize {
        self.entries.iter().filter_map(|entry| entry.loaded()).map(|m| m.places.taken()).sum()
    }

    /// Whether every model that stays answers within a time.
    pub(crate) async fn answer_within(&self, time: Duration) -> bool {
        for entry in self.entries.iter().filter(|entry| entry.loader.is_none()) {
            match entry.loaded() {
                Some(model) if model.service.answers_within(time).await => {}
                _ => return false,
            }
        }
        true
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.entries.iter().filter_map(|entry| entry.loaded()).for_each(|m| m.places.close());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Ends all threads behind their present steps.
    pub(crate) fn tell_to_stop(&self) {
        self.entries.iter().filter_map(|entry| entry.loaded()).for_each(|m| m.service.stop());
    }

    /// Waits for all threads to end; what the first of them died of that did not end well.
    pub(crate) fn join(&self) -> Result<(), String> {
        let loaded = self.entries.iter().filter_map(|entry| entry.loaded());
        loaded.map(|model| model.join()).fold(Ok(()), Result::and)
    }
}

impl Entry {
    /// Since when nobody has used it, where it is loaded and may go.
    fn idle_since(&self) -> Option<Instant> {
        self.loader.as_ref()?;
        match &*lock(&self.state) {
            State::Loaded(model) if !model.is_held() => Some(model.last_used()),
            _ => None,
        }
    }
}

enum Begun {
    Loaded(ModelUse),
    Loading(watch::Receiver<Outcome>),
}

/// Loads on a thread of its own: it takes seconds, and threads for prompts are few.
async fn load_aside(loader: Arc<dyn LoadModel>, room: RoomLeft) -> Result<LoadedModel, LoadError> {
    aside(move || loader.load(room))
        .await
        .unwrap_or_else(|| Err(LoadError::Failed("loading it panicked".to_owned())))
}

/// Ends a model's thread and gives its memory back.
async fn stop(model: Arc<LiveModel>, why: &'static str) {
    tracing::info!(model = model.name, why, "unloaded");
    model.service.stop();
    let joined = aside(move || {
        let ended = model.join();
        (model.settings.return_memory)();
        model.note_unloaded();
        ended
    });
    if let Some(Err(why)) = joined.await {
        tracing::warn!(why, "the engine's thread did not end well");
    }
}

/// Does something long on a thread of its own; nothing where it panics or there are no threads.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = oneshot::channel();
    let work = move || drop(tell.send(work()));
    std::thread::Builder::new().name("model".to_owned()).spawn(work).ok()?;
    told.await.ok()
}
