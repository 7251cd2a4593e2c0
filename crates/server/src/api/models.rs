//! The models that are served, under all their names.

use crate::app::App;
use crate::error::ServerError;
use crate::models::{Entry, Presence};
use crate::wire::models::{Card, List};
use axum::extract::{Path, State};
use axum::response::Response;
use std::sync::Arc;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let cards = |entry: &Arc<Entry>| -> Vec<Card> {
        entry.names.names().map(|name| card(&app, entry, name)).collect()
    };
    let data = app.models.entries().iter().flat_map(cards).collect();
    super::json(&List { object: "list", data })
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, ServerError> {
    let entry = app.models.find(Some(&name))?;
    Ok(super::json(&card(&app, entry, &name)))
}

fn card(app: &App, entry: &Entry, name: &str) -> Card {
    let presence = entry.presence();
    Card {
        id: name.to_owned(),
        object: "model",
        created: app.since,
        owned_by: "forerun",
        max_model_len: entry.context(),
        state: presence.word(),
        error: match presence {
            Presence::Failed(why) => Some(why),
            _ => None,
        },
    }
}
