//! Connections: how many, how long, how large their heads.

use super::write_timeout::WriteTimeout;
use crate::settings::Settings;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Bytes of a request's head, and headers in it.
const HEAD_BYTES: usize = 64 << 10;
const HEADERS: usize = 128;
/// Pause after the system refused a connection, when its files are used up.
const BREATH: Duration = Duration::from_millis(50);

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// All connections of a server.
#[derive(Clone)]
pub(super) struct Connections {
    router: Router,
    patience: Duration,
    most: usize,
    room: Arc<Semaphore>,
    closing: watch::Sender<bool>,
}

impl Connections {
    pub(super) fn new(settings: &Settings, router: Router) -> Self {
        let most = settings.connections.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let (patience, room) = (settings.patience, Arc::new(Semaphore::new(most)));
        Self { router, patience, most, room, closing: watch::channel(false).0 }
    }

    /// Takes connections until it is aborted.
    pub(super) async fn accept(self, listener: TcpListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            match Arc::clone(&self.room).try_acquire_owned() {
                Ok(permit) => drop(tokio::spawn(self.clone().serve(stream, permit))),
                // Short enough for any socket's buffer, so nobody waits for a reader.
                Err(_) => drop(stream.try_write(FULL)),
            }
        }
    }

    async fn serve(self, stream: TcpStream, _permit: OwnedSemaphorePermit) {
        // Tokens are small and each counts.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(WriteTimeout::new(stream, self.patience));
        let service = TowerToHyperService::new(self.router);
        let mut closing = self.closing.subscribe();
        // Mapped, since what it returns holds a lock.
        let closing = async move { closing.wait_for(|&closing| closing).await.is_ok() };
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
        let all = self.room.acquire_many(self.most as u32);
        // What is still open then is closed with the runtime.
        let _ = tokio::time::timeout(patience, all).await;
    }
}
