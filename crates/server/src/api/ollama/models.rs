//! `/api/tags`, `/api/ps`, `/api/show`, `/api/version`, and what only a program that keeps models can do.

use super::tagged;
use super::time::stamp;
use crate::api::{JsonBody, json};
use crate::app::App;
use crate::error::ServerError;
use crate::models::{Entry, ModelDetails};
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json as value};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The version of Ollama whose API this is; clients ask for a least one.
const API_VERSION: &str = "0.12.6";

pub(crate) async fn version() -> Response {
    json(&value!({"version": API_VERSION, "forerun": env!("CARGO_PKG_VERSION")}))
}

/// All models under all their names.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response {
    let mut models = Vec::new();
    for entry in app.models.entries() {
        let details = entry.details().await;
        models.extend(entry.names.names().map(|name| card(name, &details)));
    }
    json(&value!({"models": models}))
}

/// Those that are loaded.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Response {
    let mut models = Vec::new();
    for entry in app.models.entries() {
        let details = entry.details().await;
        let Some(model) = entry.loaded() else { continue };
        let mut card = card(&entry.names.name, &details);
        let left = model.goes_at().map(|at| at.saturating_duration_since(Instant::now()));
        // For good is a time that nobody sees.
        const LONG: Duration = Duration::from_secs(100 * 365 * 86400);
        card["expires_at"] = stamp(SystemTime::now() + left.unwrap_or(LONG)).into();
        card["size"] = model.bytes.max(details.bytes).into();
        card["size_vram"] = 0.into();
        card["context_length"] = model.facts.context.into();
        models.push(card);
    }
    json(&value!({"models": models}))
}

fn card(name: &str, details: &ModelDetails) -> Value {
    let name = tagged(name);
    value!({
        "name": name,
        "model": name,
        "modified_at": stamp(details.modified.unwrap_or(UNIX_EPOCH)),
        "size": details.bytes,
        "digest": details.digest,
        "details": about(details),
    })
}

fn about(details: &ModelDetails) -> Value {
    value!({
        "parent_model": "",
        "format": details.format,
        "family": details.family,
        "families": [details.family],
        "parameter_size": "",
        "quantization_level": "",
    })
}

pub(crate) async fn show(
    State(app): State<Arc<App>>,
    mut body: JsonBody,
) -> Result<Response, ServerError> {
    let fields = &mut body.fields;
    let (model, name) = (fields.take("model")?, fields.take("name")?);
    let missing = || ServerError::invalid("model", "`model` is missing");
    let asked: String = model.or(name).ok_or_else(missing)?;
    if fields.take::<bool>("verbose")? == Some(true) {
        fields.ignored("verbose")?;
    }
    fields.finish()?;
    let entry = super::find(&app, Some(asked))?;
    let details = entry.details().await;
    body.fields.ignored.add_to_notes();
    Ok(json(&shown(&entry, &details)))
}

fn shown(entry: &Entry, details: &ModelDetails) -> Value {
    let family = &details.family;
    let mut info = value!({"general.architecture": family, "general.basename": entry.names.name});
    info[format!("{family}.context_length")] = details.context.into();
    info[format!("{family}.embedding_length")] = details.hidden.into();
    let capabilities = [
        ("completion", true),
        ("embedding", true),
        ("tools", details.tools),
        ("thinking", details.thinks),
    ];
    let capabilities: Vec<&str> =
        capabilities.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    value!({
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": about(details),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": stamp(details.modified.unwrap_or(UNIX_EPOCH)),
    })
}

/// Fetching, copying and deleting models is for who runs the server.
pub(crate) async fn refused(Path(what): Path<String>) -> ServerError {
    match what.as_str() {
        "pull" => ServerError::Forbidden(
            "this server fetches no models; fetch it with `forerun pull` where the server runs",
        ),
        "create" | "copy" | "delete" | "push" | "blobs" => ServerError::Forbidden(
            "this server changes no models; who runs it chooses them with --models",
        ),
        _ => ServerError::NoRoute(crate::app::shortened(&format!("/api/{what}"))),
    }
}
