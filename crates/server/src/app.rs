//! What every handler shares.

use crate::api::BodyMemory;
use crate::auth::Keys;
use crate::cache_traces::CacheTraces;
use crate::error::ServerError;
use crate::metrics::HttpMetrics;
use crate::models::{Entry, ModelUse, Models};
use crate::origins::Origins;
use crate::responses_store::ResponsesStore;
use crate::server::Hosts;
use crate::settings::Settings;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// The models and the rules.
pub(crate) struct App {
    pub(crate) models: Arc<Models>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) keys: Keys,
    /// Under which names it answers.
    pub(crate) hosts: Hosts,
    /// Whose pages may read what it answers.
    pub(crate) origins: Origins,
    pub(crate) metrics: HttpMetrics,
    /// What the prefix caches did of late.
    pub(crate) traces: Arc<CacheTraces>,
    /// Conversations that later requests go on from, where they are kept.
    pub(crate) responses: Option<ResponsesStore>,
    /// The OpenAPI document.
    pub(crate) openapi: String,
    /// Memory for what clients send.
    pub(crate) memory: BodyMemory,
    /// Unix seconds at which the server started.
    pub(crate) since: u64,
}

impl App {
    /// The model a request names, loaded or not; no name means the one that is served.
    pub(crate) fn find(&self, asked: Option<String>) -> Result<Arc<Entry>, ServerError> {
        self.models.find(asked.as_deref()).map(Arc::clone)
    }

    /// The model, once it is loaded.
    pub(crate) async fn ready(&self, entry: &Arc<Entry>) -> Result<ModelUse, ServerError> {
        self.models.ready(entry).await
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
