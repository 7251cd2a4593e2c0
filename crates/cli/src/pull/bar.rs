//! Progress of a download, and Ctrl-C.

use crate::{interrupt, terminal};
use forerun_hub::DownloadWatch;
use indicatif::ProgressBar;

/// A bar on stderr that can be asked to stop.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn of(bytes: u64) -> Self {
        Self(terminal::bar(
            bytes,
            "fetching {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ))
    }

    /// For a number of bytes that is not known yet.
    pub(crate) fn endless() -> Self {
        Self(terminal::bar(0, "fetching the MTP head {binary_bytes} {binary_bytes_per_sec}"))
    }

    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl DownloadWatch for Bar {
    fn bytes(&mut self, done: u64) {
        self.0.set_position(done);
    }

    fn note(&mut self, line: &str) {
        self.0.suspend(|| terminal::aside(line));
    }

    fn stop(&mut self) -> bool {
        interrupt::is_cancelled()
    }
}
