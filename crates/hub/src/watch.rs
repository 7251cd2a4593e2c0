//! Who looks on while files are fetched.

/// Follows a download and may end it.
pub trait DownloadWatch {
    /// So many bytes of the plan are there.
    fn bytes(&mut self, done: u64);
    /// Something a person may want to know: a retry, a wait.
    fn note(&mut self, line: &str);
    /// Whether to stop; what was fetched so far is kept.
    fn stop(&mut self) -> bool;
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl DownloadWatch for Unwatched {
    fn bytes(&mut self, _done: u64) {}

    fn note(&mut self, _line: &str) {}

    fn stop(&mut self) -> bool {
        false
    }
}
