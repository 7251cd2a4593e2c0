//! The models that are served: one, under one or several names.

use crate::app::App;
use crate::error::ServerError;
use crate::wire::models::{Card, List};
use axum::extract::{Path, State};
use axum::response::Response;
use std::sync::Arc;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data = app.model.names().map(|name| card(&app, name)).collect();
    super::json(&List { object: "list", data })
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, ServerError> {
    app.check_model(Some(&name))?;
    Ok(super::json(&card(&app, &name)))
}

fn card<'a>(app: &App, name: &'a str) -> Card<'a> {
    Card {
        id: name,
        object: "model",
        created: app.since,
        owned_by: "forerun",
        max_model_len: app.facts.context,
    }
}
