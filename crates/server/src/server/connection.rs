//! Connections: how many, how long, how large their heads.

use super::slots::{ConnectionSlot, ConnectionSlots, HeldSlot};
use super::write_timeout::WriteTimeout;
use crate::api::HEAD_BYTES;
use crate::settings::Settings;
use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Headers of a request.
const HEADERS: usize = 128;
/// Pause after the system refused a connection, when its files are used up.
const BREATH: Duration = Duration::from_millis(50);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// All connections of a server.
#[derive(Clone)]
pub(super) struct Connections {
    router: Router,
    patience: Duration,
    slots: Arc<ConnectionSlots>,
    closing: watch::Sender<bool>,
}

impl Connections {
    pub(super) fn new(settings: &Settings, router: Router) -> Self {
        let (patience, slots) = (settings.patience, ConnectionSlots::new(settings.connections));
        Self { router, patience, slots, closing: watch::channel(false).0 }
    }

    /// Takes connections until it is aborted.
    pub(super) async fn accept(self, listener: TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Most likely its files are used up, and a silent connection can give one back.
                    self.slots.make_room();
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            match self.slots.take() {
                Some(held) => drop(tokio::spawn(self.clone().serve(stream, held))),
                // Short enough for any socket's buffer, so nobody waits for a reader.
                None => drop(stream.try_write(FULL)),
            }
        }
    }

    async fn serve(self, stream: TcpStream, held: HeldSlot) {
        // Tokens are small and each counts.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(WriteTimeout::new(stream, self.patience));
        let mut closing = self.closing.subscribe();
        // Mapped, since what it returns holds a lock.
        let closing = async move { closing.wait_for(|&closing| closing).await.is_ok() };
        let service = service_fn(answering(self.router, Arc::clone(&held.slot)));
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.patience)
                .max_buf_size(HEAD_BYTES)
                .max_headers(HEADERS)
                .serve_connection(io, service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            answer_first = held.slot.told_to_go() => {
                if !answer_first {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            _ = closing => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection");
        }
    }

    /// Lets requests end and closes connections, but does not wait for ever.
    pub(super) async fn close(&self, patience: Duration) {
        self.closing.send_replace(true);
        self.slots.emptied(patience).await;
    }
}

/// The router, with the connection's slot told what it does.
fn answering(
    router: Router,
    slot: Arc<ConnectionSlot>,
) -> impl Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = TrackedResponse> + Send>> {
    let router = TowerToHyperService::new(router);
    move |mut request| {
        slot.head(!request.body().is_end_stream());
        request.extensions_mut().insert(Arc::clone(&slot));
        let (answer, slot) = (router.call(request), Arc::clone(&slot));
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| TrackedBody { body, slot }))
        })
    }
}

type TrackedResponse = Result<Response<TrackedBody>, Infallible>;

/// The body of an answer; the connection is silent again once it is gone.
struct TrackedBody {
    body: axum::body::Body,
    slot: Arc<ConnectionSlot>,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.slot.answered();
    }
}
