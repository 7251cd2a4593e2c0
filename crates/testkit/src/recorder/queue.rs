//! Recorded commands and how a queue of them is cut into submissions.

use super::stashes::RecordedStashes;
use forerun_backend::{Backend, BackendError, Budget, Cost, HostData, Op, StashId, View};
use std::ops::Range;

/// Host numbers, copied when they were recorded.
#[derive(Clone, Debug)]
pub(super) enum Copied {
    F32(Vec<f32>),
    U32(Vec<u32>),
    Bytes(Vec<u8>),
}

impl From<HostData<'_>> for Copied {
    fn from(data: HostData<'_>) -> Self {
        match data {
            HostData::F32(values) => Self::F32(values.to_vec()),
            HostData::U32(values) => Self::U32(values.to_vec()),
            HostData::Bytes(values) => Self::Bytes(values.to_vec()),
        }
    }
}

/// Something to run at `submit`.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most commands are the large one")]
pub(super) enum QueuedCommand {
    Write(View, Copied),
    Run(Op),
    Stash(StashId, Vec<View>),
    Unstash(StashId, Vec<View>),
    Release(StashId),
}

impl QueuedCommand {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Write(..) => "write",
            Self::Run(op) => op.name(),
            Self::Stash(..) => "stash",
            Self::Unstash(..) => "unstash",
            Self::Release(..) => "release_stash",
        }
    }

    /// Whether it makes or reads a stash.
    pub(super) fn uses(&self, stash: StashId) -> bool {
        matches!(self, Self::Stash(used, _) | Self::Unstash(used, _) if *used == stash)
    }

    pub(super) fn run(
        &self,
        inner: &mut dyn Backend,
        stashes: &mut RecordedStashes,
    ) -> Result<(), BackendError> {
        match self {
            Self::Write(view, Copied::F32(values)) => inner.write(*view, HostData::F32(values)),
            Self::Write(view, Copied::U32(values)) => inner.write(*view, HostData::U32(values)),
            Self::Write(view, Copied::Bytes(values)) => inner.write(*view, HostData::Bytes(values)),
            Self::Run(op) => op.apply(inner),
            Self::Stash(stash, views) => stashes.stash(inner, *stash, views),
            Self::Unstash(stash, views) => stashes.unstash(inner, *stash, views),
            Self::Release(stash) => stashes.release(inner, *stash),
        }
    }
}

/// A command and its work.
#[derive(Clone, Debug)]
pub(super) struct Queued {
    pub(super) command: QueuedCommand,
    pub(super) cost: Cost,
}

pub(super) fn total(queue: &[Queued]) -> Cost {
    queue.iter().fold(Cost::default(), |sum, queued| sum + queued.cost)
}

/// Cuts a queue into runs within the budget. A command that exceeds it alone stands alone.
pub(super) fn cut(queue: &[Queued], budget: Budget) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let (mut first, mut sum) = (0, Cost::default());
    for (i, queued) in queue.iter().enumerate() {
        let grown = sum + queued.cost;
        if i > first && !budget.holds(grown) {
            pieces.push(first..i);
            (first, sum) = (i, queued.cost);
        } else {
            sum = grown;
        }
    }
    if first < queue.len() {
        pieces.push(first..queue.len());
    }
    pieces
}
