//! What a [`super::Recorder`] counted, and the handle through which a test reads it while an engine
//! owns the device.

use forerun_backend::Cost;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts since the device was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    /// Device submissions, after cutting at the budget.
    pub submissions: u64,
    /// Calls of `submit`.
    pub submit_calls: u64,
    /// Calls of `wait`.
    pub waits: u64,
    /// Calls of `submit` with work that was not waited for yet.
    pub in_flight: u64,
    /// The largest value of `in_flight`.
    pub most_in_flight: u64,
    /// Steps: waits that left the device idle after work.
    pub steps: u64,
    /// Operations run.
    pub ops: u64,
    /// Copies from the host run.
    pub writes: u64,
    /// Calls of `read`.
    pub reads: u64,
    /// Stashes of views made.
    pub stashes: u64,
    /// Stashes copied back.
    pub unstashes: u64,
    /// Calls of `read_stash`.
    pub stash_reads: u64,
    /// Stashes that were not released.
    pub stashes_held: u64,
    /// Their bytes.
    pub stash_bytes: u64,
    /// The largest value of `stash_bytes`.
    pub peak_stash_bytes: u64,
    /// The most bytes and the most flops of any one submission.
    pub largest: Cost,
    /// Names of operations that exceed the budget alone.
    pub oversized: Vec<&'static str>,
    /// Bytes of work submitted and not yet waited for.
    pub bytes_in_flight: u64,
    /// The largest value of `bytes_in_flight`.
    pub peak_bytes_in_flight: u64,
    /// Buffers made.
    pub buffers: u64,
    /// Their bytes.
    pub buffer_bytes: u64,
    /// Weights taken.
    pub uploads: u64,
    /// Their bytes.
    pub weight_bytes: u64,
}

#[derive(Debug, Default)]
struct SharedStats {
    stats: RecorderStats,
    sealed: bool,
}

/// A handle on a recorder's counts that outlives the move of the recorder into an engine.
#[derive(Clone, Debug, Default)]
pub struct RecorderWatch(Arc<Mutex<SharedStats>>);

impl RecorderWatch {
    /// A copy of the counts.
    pub fn stats(&self) -> RecorderStats {
        self.shared().stats.clone()
    }

    /// From now on the device refuses to allocate or upload: warm-up is over.
    pub fn seal(&self) {
        self.shared().sealed = true;
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.shared().sealed
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut RecorderStats)) {
        change(&mut self.shared().stats);
    }

    // Counts stay true whatever panicked elsewhere, so a poisoned lock is no reason to panic again.
    fn shared(&self) -> MutexGuard<'_, SharedStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
