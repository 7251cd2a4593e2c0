//! The system's request that the server ends. Handlers stand before anybody can learn the address, so no request is
//! lost.

use std::io;

/// SIGINT and SIGTERM, or Ctrl-C where there are no signals.
pub(super) struct Signals {
    #[cfg(unix)]
    kinds: [tokio::signal::unix::Signal; 2],
}

impl Signals {
    /// Takes them from the system; must be called inside a runtime.
    pub(super) fn new() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let kinds = [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?];
            Ok(Self { kinds })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        #[cfg(unix)]
        {
            let [interrupt, terminate] = &mut self.kinds;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits for a signal where signals are listened to; otherwise for ever.
pub(super) async fn asked(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}
