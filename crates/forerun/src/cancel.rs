//! Ending an answer from elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the answers it is given to, from any thread or a signal handler. They end with what they have, as
/// [`Ending::Cancelled`](crate::Ending::Cancelled).
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the answers.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Makes the token usable for further answers; whether it was cancelled.
    pub fn reset(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }

    /// Whether the answers are to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
