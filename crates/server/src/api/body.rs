//! Reading a body of JSON, bounded in bytes, time and, over all requests, in memory.
//!
//! Bytes that are still coming in count against one bound, what they come to once parsed against another: a slow sender
//! takes no room from those who are done. Room for parsing is waited for; it comes back when a prompt is made.

use super::weight::JsonMemory;
use super::{Ignored, RequestFields};
use crate::app::App;
use crate::error::ServerError;
use crate::server::ConnectionSlot;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What memory is counted in. A body below it is not counted while it comes in: connections bound those.
const UNIT: usize = 64 << 10;
/// Bytes of long bodies that come in at a time, over all requests.
const BODIES: usize = 64 << 20;
/// Bytes a body may come to once parsed, and all of them at a time, where bodies are not allowed to be longer than
/// usual. Templates copy messages, and an allocator keeps much of what was once used: a process grows by twice as much.
const PARSED: usize = 128 << 20;
/// Bytes of a small body once parsed, and of all of them: they never wait for large ones.
const SMALL: usize = 4 << 20;
const SMALL_TOGETHER: usize = 64 << 20;
/// Bytes of long requests that answers repeat, over all answers.
const REPEATED: usize = 64 << 20;

/// Names features of Anthropic's server that a client knows how to use.
const BETA: &str = "anthropic-beta";

/// Memory for what clients send, over all requests.
pub(crate) struct BodyMemory {
    bodies: Arc<Semaphore>,
    small: Arc<Semaphore>,
    parsed: Arc<Semaphore>,
    /// Most of it for one body.
    most_parsed: usize,
    repeated: Arc<Semaphore>,
    returns: Arc<Returns>,
}

impl BodyMemory {
    pub(crate) fn new(body_bytes: usize, return_memory: fn()) -> Self {
        let units = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        let most_parsed = PARSED.max(body_bytes.saturating_mul(4));
        Self {
            bodies: units(BODIES.max(body_bytes)),
            small: units(SMALL_TOGETHER),
            parsed: units(most_parsed),
            most_parsed,
            repeated: units(REPEATED),
            returns: Arc::new(Returns { give: return_memory, waiting: AtomicBool::new(false) }),
        }
    }

    /// Room for what becomes of a body, once there is some.
    async fn parse(&self, body: &[u8], patience: Duration) -> Result<BodyPermit, ServerError> {
        let weight = JsonMemory::of(body);
        weight.check(self.most_parsed)?;
        let small = weight.bytes <= SMALL;
        let pool = if small { &self.small } else { &self.parsed };
        let units = Arc::clone(pool).acquire_many_owned(units(weight.bytes).max(1));
        let busy = || ServerError::Unavailable("too many long requests at once");
        match tokio::time::timeout(patience, units).await {
            Ok(Ok(units)) => {
                let returns = (!small).then(|| Arc::clone(&self.returns));
                Ok(BodyPermit { _units: units, returns })
            }
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }

    /// Room for part of a request that is kept until its answer is out; a short one is not counted.
    pub(crate) fn keep(
        &self,
        part: &impl Serialize,
    ) -> Result<Option<OwnedSemaphorePermit>, ServerError> {
        let text = serde_json::to_vec(part).unwrap_or_default();
        match units(JsonMemory::of(&text).bytes) {
            0 => Ok(None),
            more => Arc::clone(&self.repeated)
                .try_acquire_many_owned(more)
                .map(Some)
                .map_err(|_| ServerError::Unavailable("too many long requests at once")),
        }
    }
}

/// Gives freed memory back to the system, one call at a time: behind many long requests the last one does it for all.
struct Returns {
    give: fn(),
    waiting: AtomicBool,
}

impl Returns {
    /// After what frees the memory has had time to do so.
    const DELAY: Duration = Duration::from_millis(200);

    fn soon(self: &Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.waiting.swap(true, Ordering::AcqRel) {
            return;
        }
        let returns = Arc::clone(self);
        runtime.spawn(async move {
            tokio::time::sleep(Self::DELAY).await;
            returns.waiting.store(false, Ordering::Release);
            let _ = tokio::task::spawn_blocking(returns.give).await;
        });
    }
}

/// Room for what a body comes to once parsed. A long one's memory is given back behind it.
pub(crate) struct BodyPermit {
    _units: OwnedSemaphorePermit,
    returns: Option<Arc<Returns>>,
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if let Some(returns) = &self.returns {
            returns.soon();
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT).unwrap_or(u32::MAX)
}

/// The fields of a request, with the room they take while they live.
pub(crate) struct JsonBody {
    pub(crate) fields: RequestFields,
    _units: BodyPermit,
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ServerError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ServerError> {
        let (parts, body) = request.into_parts();
        check_headers(&parts.headers, app.settings.body_bytes)?;
        let patience = app.settings.patience;
        // Held until it is parsed.
        let (bytes, _bytes_room) = tokio::time::timeout(patience, read(app, body))
            .await
            .map_err(|_| ServerError::TooSlow(patience.as_secs()))??;
        if let Some(slot) = parts.extensions.get::<Arc<ConnectionSlot>>() {
            slot.request();
        }
        let ignored = Ignored::new(parts.uri.path(), app.settings.strict);
        if parts.headers.contains_key(BETA) {
            ignored.field(BETA)?;
        }
        let permit = app.memory.parse(&bytes, patience).await?;
        Ok(Self { fields: RequestFields::parse(&bytes, ignored)?, _units: permit })
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
    let coded = headers.get_all(header::CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    if let Some(coding) = coded.into_iter().find(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    {
        let coding = String::from_utf8_lossy(coding);
        return Err(ServerError::Encoding(crate::app::shortened(&coding)));
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
        let more = (bytes.len() / UNIT).saturating_sub(held) as u32;
        if more > 0 {
            let permit = Arc::clone(&app.memory.bodies)
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
