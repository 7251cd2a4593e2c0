//! What every handler shares.

use crate::answer::Answers;
use crate::api::{BodyMemory, notes};
use crate::auth::Keys;
use crate::cache_traces::CacheTraces;
use crate::calls::Loosened;
use crate::chat::{ChatRequest, CompletionRequest};
use crate::error::ServerError;
use crate::metrics::Metrics;
use crate::model::{Facts, ModelNames};
use crate::origins::Origins;
use crate::prepare::{self, Prepared};
use crate::server::Hosts;
use crate::service::{Place, Places, Service};
use crate::settings::Settings;
use forerun::TextProcessor;
use forerun_grammar::Grammars;
use forerun_text::Tokenizer;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// The model, the engine's thread and the rules.
pub(crate) struct App {
    pub(crate) model: ModelNames,
    pub(crate) facts: Facts,
    /// Prompts to generations: template, tokenizer, grammars, defaults.
    pub(crate) text: TextProcessor,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) service: Service,
    pub(crate) places: Arc<Places>,
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    /// Under which names it answers.
    pub(crate) hosts: Hosts,
    /// Whose pages may read what it answers.
    pub(crate) origins: Origins,
    pub(crate) metrics: Arc<Metrics>,
    /// How the schemas of tools had to be loosened of late.
    pub(crate) loosened: Loosened,
    /// What the prefix cache did of late.
    pub(crate) traces: Arc<CacheTraces>,
    /// The OpenAPI document.
    pub(crate) openapi: String,
    /// Memory for what clients send.
    pub(crate) memory: BodyMemory,
    /// Unix seconds at which the server started.
    pub(crate) since: u64,
}

impl App {
    /// Asks for the continuation of a conversation.
    pub(crate) async fn ask_chat(
        self: &Arc<Self>,
        request: ChatRequest,
    ) -> Result<Answers, ServerError> {
        let places = self.places(request.generation.choices)?;
        let app = Arc::clone(self);
        let request_id = Arc::clone(&request.generation.request_id);
        let mut prepared = on_the_side(move || prepare::chat(&app, &request)).await?;
        if let (true, Some(note)) = (self.settings.strict, prepared.notes.first()) {
            let message = format!("{note}; this server is strict, so it does no request in part");
            return Err(ServerError::Invalid { param: None, message });
        }
        notes::add(&request_id, std::mem::take(&mut prepared.notes));
        self.submit(prepared, places).await
    }

    /// Asks for the continuation of texts.
    pub(crate) async fn ask_completion(
        self: &Arc<Self>,
        request: CompletionRequest,
    ) -> Result<Answers, ServerError> {
        let answers = request.prompts.len().saturating_mul(request.generation.choices);
        let places = self.places(answers)?;
        let app = Arc::clone(self);
        let prepared = on_the_side(move || prepare::completion(&app, &request)).await?;
        self.submit(prepared, places).await
    }

    /// What makes grammars of the vocabulary, or why there are none.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ServerError> {
        Ok(self.text.grammars()?)
    }

    /// Refuses a model that is not served here; no name means the one that is.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ServerError> {
        match asked {
            Some(asked) if !self.model.is_called(asked) => Err(ServerError::UnknownModel {
                asked: shortened(asked),
                served: self.model.name.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn places(&self, answers: usize) -> Result<Vec<Place>, ServerError> {
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
        let Prepared { jobs, readers, .. } = prepared;
        Answers::accepted(self.service.submit(jobs, places)?, readers).await
    }
}

thread_local! {
    /// Alive for as long as somebody waits for the work of this thread.
    static ASKED: RefCell<Option<Weak<()>>> = const { RefCell::new(None) };
}

/// Whether somebody waits for what this thread does on the side: long work asks now and then.
pub(crate) fn is_wanted() -> bool {
    ASKED.with_borrow(|asked| asked.as_ref().is_none_or(|asked| asked.strong_count() > 0))
}

/// Runs templates and tokenizers where they do not hold up other connections.
pub(crate) async fn on_the_side<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    // Dropped with this future when the client hangs up.
    let wanted = Arc::new(());
    let asked = Arc::downgrade(&wanted);
    let work = move || {
        ASKED.set(Some(asked));
        let done = work();
        ASKED.set(None);
        done
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(ServerError::Failed("preparing the prompt panicked".to_owned())))
}

/// The beginning of a client's text, for a message.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
