//! Reading a body of JSON, bounded in bytes, time and, over all requests, in memory.

use super::{Fields, Ignored};
use crate::app::App;
use crate::error::ServerError;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// What bodies are counted in. A body below it is not counted: connections bound those.
pub(crate) const BODY_UNIT: usize = 64 << 10;

/// Names features of Anthropic's server that a client knows how to use.
const BETA: &str = "anthropic-beta";

/// The fields of a request, with the room its body takes while it lives.
pub(crate) struct JsonBody {
    pub(crate) fields: Fields,
    _room: Option<OwnedSemaphorePermit>,
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ServerError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ServerError> {
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers, app.settings.body_bytes)?;
        let patience = app.settings.patience;
        let (bytes, room) = tokio::time::timeout(patience, read(app, body))
            .await
            .map_err(|_| ServerError::TooSlow(patience.as_secs()))??;
        let ignored = Ignored::new(parts.uri.path(), app.settings.strict);
        if parts.headers.contains_key(BETA) {
            ignored.field(BETA)?;
        }
        Ok(Self { fields: Fields::parse(&bytes, ignored)?, _room: room })
    }
}

fn check_headers(headers: &HeaderMap, most: usize) -> Result<(), ServerError> {
    let text = |name| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        let kind =
            if kind.is_empty() { "missing".to_owned() } else { crate::app::shortened(&kind) };
        return Err(ServerError::MediaType(kind));
    }
    let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(ServerError::TooLarge(most));
    }
    Ok(())
}

async fn read(
    app: &App,
    mut body: Body,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ServerError> {
    let most = app.settings.body_bytes;
    let mut bytes = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ServerError::Invalid {
            param: None,
            message: "the body broke off or is not what its headers say".to_owned(),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(ServerError::TooLarge(most));
        }
        bytes.extend_from_slice(&data);
        let held = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = (bytes.len() / BODY_UNIT).saturating_sub(held) as u32;
        if more > 0 {
            let permit = Arc::clone(&app.bodies)
                .try_acquire_many_owned(more)
                .map_err(|_| ServerError::Unavailable("too many long requests at once"))?;
            match &mut room {
                Some(room) => room.merge(permit),
                None => room = Some(permit),
            }
        }
    }
    Ok((bytes, room))
}
