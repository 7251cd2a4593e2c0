//! Endpoints, one file each, and what lies around all of them.

mod anthropic;
mod body;
mod cache;
mod fields;
mod health;
mod ignored;
mod layers;
mod metrics;
mod models;
pub(crate) mod notes;
mod ollama;
mod openai;
pub(crate) mod openapi;
mod rerank;
mod sse;
mod tokens;
mod version;
mod weight;

pub(crate) use body::{BodyMemory, JsonBody};
pub(crate) use fields::RequestFields;
pub(crate) use ignored::Ignored;
pub(crate) use layers::{HEAD_BYTES, RequestId};

use crate::app::App;
use crate::error::ServerError;
use crate::page;
use axum::Router;
use axum::http::{Method, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Serialize;
use std::sync::Arc;

/// Everything the server answers to.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/v1/responses", post(openai::responses::create))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens::count))
        .route("/v1/embeddings", post(openai::embeddings::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/show", post(ollama::show))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version))
        .route("/api/{pull}", any(ollama::refused))
        .route("/v1/models", get(models::list))
        // Names of models have slashes in them.
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/debug/cache", get(cache::all))
        .route("/debug/cache/{request}", get(cache::one))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/version", get(version::version))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(Arc::clone(&app), layers::let_in))
        // Where routers and other servers' tools look.
        .route("/health", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .merge(page::routes())
        .layer(from_fn_with_state(Arc::clone(&app), layers::name_and_explain))
        .with_state(app)
}

async fn no_route(uri: Uri) -> ServerError {
    ServerError::NoRoute(crate::app::shortened(uri.path()))
}

async fn no_method(method: Method, uri: Uri) -> ServerError {
    ServerError::NoMethod { method: method.to_string(), path: uri.path().to_owned() }
}

/// A body of JSON.
pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            ServerError::Failed(format!("cannot write the answer: {error}")).into_response()
        }
    }
}
