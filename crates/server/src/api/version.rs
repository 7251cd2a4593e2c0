//! Which forerun this is.

use axum::response::Response;
use serde_json::json;

pub(crate) async fn version() -> Response {
    super::json(&json!({"version": env!("CARGO_PKG_VERSION")}))
}
