//! Ollama's native API, which many front ends speak and nothing else.
//!
//! Requests become the same neutral ones as those of the other APIs; answers are lines of JSON.

mod answer;
mod embed;
mod models;
mod options;
mod request;
mod time;

pub(crate) use answer::{chat, generate};
pub(crate) use embed::{embed, embeddings};
pub(crate) use models::{ps, refused, show, tags, version};

use crate::app::App;
use crate::error::ServerError;
use crate::models::Entry;
use std::sync::Arc;

/// The tag that names without one stand for.
const LATEST: &str = ":latest";

/// The model of a name, with the tag or without.
fn find(app: &App, asked: Option<String>) -> Result<Arc<Entry>, ServerError> {
    let bare = asked.as_deref().and_then(|name| name.strip_suffix(LATEST)).map(str::to_owned);
    match (app.find(asked), bare) {
        (Err(ServerError::UnknownModel { .. }), Some(bare)) => app.find(Some(bare)),
        (found, _) => found,
    }
}

/// A name as clients know them, with a tag.
fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{LATEST}") }
}
