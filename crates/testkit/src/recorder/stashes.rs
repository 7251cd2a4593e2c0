//! Stashes as the recorder knows them: numbers are given out when a stash is recorded, the inner device makes it at
//! `submit`.

use super::queue::{Queued, QueuedCommand};
use forerun_backend::{Backend, BackendError, StashId, Stashes, Ticket, View};
use std::collections::HashMap;

/// Where a stash stands.
#[derive(Clone, Copy, Debug)]
enum Progress {
    Queued,
    /// With this ticket.
    Submitted(Ticket),
}

/// A stash on the inner device.
#[derive(Clone, Copy, Debug)]
struct Inner {
    /// Nothing before it has run.
    id: Option<StashId>,
    progress: Progress,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct RecordedStashes {
    /// What callers may use.
    pub(super) books: Stashes<()>,
    /// Those and what is released but still in the queue.
    inner: HashMap<StashId, Inner>,
}

impl RecordedStashes {
    /// Gives a number to a stash of so many bytes that is made at `submit`.
    pub(super) fn record(&mut self, bytes: usize) -> Result<StashId, BackendError> {
        let stash = self.books.insert(bytes, ())?;
        self.inner.insert(stash, Inner { id: None, progress: Progress::Queued });
        Ok(stash)
    }

    /// Gives a number to a stash that the inner device has.
    pub(super) fn adopt(&mut self, bytes: usize, id: StashId) -> Result<StashId, BackendError> {
        let stash = self.books.insert(bytes, ())?;
        let progress = Progress::Submitted(Ticket(0));
        self.inner.insert(stash, Inner { id: Some(id), progress });
        Ok(stash)
    }

    /// Notes that what the queue makes was handed over.
    pub(super) fn submitted(&mut self, queue: &[Queued], ticket: Ticket) {
        for queued in queue {
            if let QueuedCommand::Stash(stash, _) = &queued.command
                && let Some(inner) = self.inner.get_mut(stash)
            {
                inner.progress = Progress::Submitted(ticket);
            }
        }
    }

    /// The inner device's number of a stash and the submission that makes it.
    pub(super) fn made(&self, stash: StashId) -> Result<(StashId, Ticket), BackendError> {
        self.books.get("read_stash", stash)?;
        match self.inner.get(&stash) {
            Some(Inner { id: Some(id), progress: Progress::Submitted(ticket) }) => {
                Ok((*id, *ticket))
            }
            Some(Inner { progress: Progress::Queued, .. }) => Err(BackendError::Protocol(format!(
                "read of stash {}, which was not submitted",
                stash.0
            ))),
            _ => Err(never_made(stash)),
        }
    }

    /// Runs a command that is about stashes.
    pub(super) fn stash(
        &mut self,
        inner: &mut dyn Backend,
        stash: StashId,
        views: &[View],
    ) -> Result<(), BackendError> {
        let id = inner.stash(views)?;
        match self.inner.get_mut(&stash) {
            Some(known) => known.id = Some(id),
            None => inner.release_stash(id)?,
        }
        Ok(())
    }

    pub(super) fn unstash(
        &self,
        inner: &mut dyn Backend,
        stash: StashId,
        views: &[View],
    ) -> Result<(), BackendError> {
        let id = self.inner.get(&stash).and_then(|known| known.id);
        inner.unstash(id.ok_or_else(|| never_made(stash))?, views)
    }

    pub(super) fn release(
        &mut self,
        inner: &mut dyn Backend,
        stash: StashId,
    ) -> Result<(), BackendError> {
        let id = self.inner.remove(&stash).and_then(|known| known.id);
        id.map_or(Ok(()), |id| inner.release_stash(id))
    }

    /// After a submission that failed: nothing of it runs later, but what was released is.
    pub(super) fn abandon(&mut self, inner: &mut dyn Backend, queue: &[Queued]) {
        for queued in queue {
            if let QueuedCommand::Release(stash) = queued.command {
                // The submission's error is the one to tell.
                let _ = self.release(inner, stash);
            }
        }
    }
}

fn never_made(stash: StashId) -> BackendError {
    BackendError::Protocol(format!("stash {} was never made: its submission failed", stash.0))
}
