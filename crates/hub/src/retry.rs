//! Trying again: what may pass by itself, how long to wait, when to give up.

use crate::{DownloadWatch, HubError, Timeouts};
use std::time::{Duration, Instant};

/// How often a waiting program asks whether to stop.
const POLL: Duration = Duration::from_millis(50);
/// Progress that makes a broken connection forgivable.
const FORGIVING_BYTES: u64 = 1 << 20;

/// Why one try did not work.
pub(crate) enum TryError {
    /// It may work the next time; the server may have said when.
    Passing { why: String, wait: Option<Duration> },
    /// It will not.
    Final(HubError),
}

impl From<HubError> for TryError {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl TryError {
    pub(crate) fn passing(why: impl ToString) -> Self {
        Self::Passing { why: why.to_string(), wait: None }
    }
}

/// Counts tries without progress.
pub(crate) struct Tries<'a> {
    what: &'a str,
    patience: Timeouts,
    failed: u32,
    gained: u64,
}

impl<'a> Tries<'a> {
    pub(crate) fn new(what: &'a str, patience: Timeouts) -> Self {
        Self { what, patience, failed: 0, gained: 0 }
    }

    /// Bytes came before it broke. With enough of them patience begins anew, so that a large file
    /// may come in many pieces and a server that sends one byte a time may not.
    pub(crate) fn gain(&mut self, bytes: u64) {
        self.gained = self.gained.saturating_add(bytes);
        if self.gained >= FORGIVING_BYTES {
            (self.gained, self.failed) = (0, 0);
        }
    }

    /// Waits before the next try, or gives up.
    pub(crate) fn after(
        &mut self,
        fault: TryError,
        watch: &mut dyn DownloadWatch,
    ) -> Result<(), HubError> {
        let (why, asked) = match fault {
            TryError::Final(error) => return Err(error),
            TryError::Passing { why, wait } => (why, wait),
        };
        self.failed += 1;
        let give_up =
            |why| Err(HubError::Network { what: self.what.into(), why, tries: self.failed });
        if self.failed >= self.patience.tries {
            return give_up(why);
        }
        let doubled = 1u32.checked_shl(self.failed - 1).unwrap_or(u32::MAX);
        let wait = asked.unwrap_or_else(|| self.patience.first_wait.saturating_mul(doubled));
        if wait > self.patience.longest_wait {
            return give_up(format!("{why}; the server asks to wait {} s", wait.as_secs()));
        }
        watch.note(&format!("{}: {why}; trying again in {:.1} s", self.what, wait.as_secs_f64()));
        sleep(wait, watch)
    }
}

/// Runs `attempt` until it works, cannot work, or patience ends.
pub(crate) fn retry<T>(
    what: &str,
    patience: Timeouts,
    watch: &mut dyn DownloadWatch,
    mut attempt: impl FnMut() -> Result<T, TryError>,
) -> Result<T, HubError> {
    let mut tries = Tries::new(what, patience);
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(fault) => tries.after(fault, watch)?,
        }
    }
}

/// Sleeps, unless the watcher stops it.
pub(crate) fn sleep(time: Duration, watch: &mut dyn DownloadWatch) -> Result<(), HubError> {
    let until = Instant::now() + time;
    loop {
        if watch.stop() {
            return Err(HubError::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(POLL));
    }
}
