//! What the prefix cache did for the latest requests: why a miss, and where a prompt first differs.
//!
//! It shows text of prompts and answers, so it is for who may read those: an admin sees all, others their own.

use crate::app::App;
use crate::auth::Caller;
use crate::cache_traces::CacheTrace;
use crate::error::ServerError;
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn all(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ServerError> {
    Ok(super::json(&json!({"requests": traces(&app, &caller, None)?})))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(request_id): Path<String>,
) -> Result<Response, ServerError> {
    let traces = traces(&app, &caller, Some(&request_id))?;
    if traces.is_empty() {
        let request_id = crate::app::shortened(&request_id);
        return Err(ServerError::UnknownRequest { request_id });
    }
    Ok(super::json(&json!({"requests": traces})))
}

/// What a caller may see of the requests that are remembered.
fn traces(
    app: &App,
    caller: &Caller,
    request_id: Option<&str>,
) -> Result<Vec<CacheTrace>, ServerError> {
    // Without any key on a machine of one's own, everyone who asks is the one who owns it.
    let nobody_else = app.hosts.is_local() && !app.keys.is_closed() && !app.keys.has_admins();
    if caller.admin || nobody_else {
        return Ok(app.traces.of(request_id));
    }
    if !app.keys.has_admins() {
        let why = "this shows text of prompts and is off; start the server with --admin-key-file";
        return Err(ServerError::Forbidden(why));
    }
    let owner = caller.owner.ok_or(ServerError::Forbidden("this needs an admin key"))?;
    let mut own = app.traces.of(request_id);
    own.retain(|trace| trace.is_of(owner));
    if app.settings.share_cache {
        // What the cache has may be somebody else's.
        own.iter_mut().for_each(CacheTrace::hide_expected);
    }
    Ok(own)
}
