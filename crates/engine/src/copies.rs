//! Parts of a lease's state that the device puts aside and copies back.

use crate::submissions::Purpose;
use crate::{EngineError, ModelRunner, StateCopies, StatePart, StateShape};
use forerun_backend::{Cost, StashId, View};
use forerun_base::{Bytes, DType};
use forerun_model::{Limits, StateBuffers, StateKind};
use std::collections::HashSet;

/// One buffer as a row of equal pieces: blocks of a cache, slots, rows of a window.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    view: View,
    /// Elements of a piece.
    len: usize,
    /// Bytes of a piece.
    bytes: usize,
}

impl Pieces {
    fn new(view: View, count: usize, dtype: DType) -> Self {
        let len = view.len / count.max(1);
        Self { view, len, bytes: len * dtype.size() }
    }

    fn piece(&self, number: usize) -> View {
        self.view.part(number * self.len, self.len)
    }
}

/// Where everything a lease holds lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// By block of the pool.
    blocks: Vec<Pieces>,
    /// By slot.
    slots: Vec<Pieces>,
    /// By block of the rings.
    rings: Vec<Pieces>,
    /// By row of the window of hidden states.
    hidden: Vec<Pieces>,
    ring_width: usize,
    hidden_window: usize,
    shape: StateShape,
    /// Views of the part that is copied.
    views: Vec<View>,
    /// Stashes that were made and not released.
    live: HashSet<StashId>,
}

impl Copies {
    pub(crate) fn new(states: &StateBuffers, limits: &Limits) -> Self {
        let mut copies = Self {
            ring_width: limits.ring_width(),
            hidden_window: limits.hidden_window(),
            ..Self::default()
        };
        for buffer in states.buffers() {
            let to = match buffer.kind {
                StateKind::Paged(_) | StateKind::Entries(_) => &mut copies.blocks,
                StateKind::Ring(_) => &mut copies.rings,
                StateKind::Slot => &mut copies.slots,
                // What is published is folded.
                StateKind::Log => continue,
            };
            to.push(Pieces::new(buffer.view, buffer.pieces, buffer.dtype));
        }
        if let Some(draft) = &states.draft
            && draft.cache.is_some()
        {
            let rows = limits.sequences * limits.hidden_window();
            copies.hidden.push(Pieces::new(draft.hidden, rows, DType::F32));
        }
        let sum = |pieces: &[Pieces]| pieces.iter().map(|piece| piece.bytes).sum();
        copies.shape = StateShape {
            block: sum(&copies.blocks),
            recurrent: sum(&copies.slots),
            ring_block: sum(&copies.rings),
            window: limits.window,
            hidden: sum(&copies.hidden),
        };
        copies
    }

    /// The buffers are others now; stashes stay.
    pub(crate) fn renew(&mut self, fresh: Self) {
        let live = std::mem::take(&mut self.live);
        *self = Self { live, ..fresh };
    }

    pub(crate) fn shape(&self) -> StateShape {
        self.shape
    }

    /// Lays out the views of a part.
    fn lay(&mut self, part: StatePart) {
        let Self { blocks, slots, rings, hidden, views, shape, .. } = self;
        views.clear();
        let mut pieces =
            |all: &[Pieces], number: usize| views.extend(all.iter().map(|p| p.piece(number)));
        match part {
            StatePart::Block(block) => pieces(blocks, block as usize),
            StatePart::State { lease, position, filled } => {
                let slot = lease.0 as usize;
                pieces(slots, slot);
                for block in shape.ring_blocks(position as usize) {
                    pieces(rings, slot * self.ring_width + block % self.ring_width);
                }
                for row in filled..position {
                    let row = row as usize % self.hidden_window;
                    pieces(hidden, slot * self.hidden_window + row);
                }
            }
        }
    }

    /// Bytes of a part.
    fn bytes(&self, part: StatePart) -> usize {
        match part {
            StatePart::Block(_) => self.shape.block,
            StatePart::State { position, filled, .. } => {
                self.shape.state(position as usize, filled as usize)
            }
        }
    }
}

impl ModelRunner {
    /// Counts a copy for the submission that is being queued, behind another one where it does not fit.
    fn queue_copy(&mut self, part: StatePart) -> Result<(), EngineError> {
        let cost = Cost { bytes: self.copies.bytes(part) as u64, ..Cost::default() };
        if !self.submissions.fits(cost) {
            self.submit_copies()?;
        }
        self.submissions.queue(cost);
        Ok(())
    }

    fn submit_copies(&mut self) -> Result<(), EngineError> {
        if self.submissions.is_empty() {
            return Ok(());
        }
        self.submissions.submit(&mut *self.backend, Purpose::Copies)
    }
}

impl StateCopies for ModelRunner {
    fn limit(&mut self, bytes: u64) {
        self.backend.limit_stashes(bytes);
    }

    fn bytes(&self) -> u64 {
        self.backend.stash_bytes()
    }

    fn stash(&mut self, part: StatePart) -> Result<StashId, EngineError> {
        self.noting_loss(|runner| {
            runner.queue_copy(part)?;
            runner.copies.lay(part);
            let stash = runner.backend.stash(&runner.copies.views)?;
            runner.copies.live.insert(stash);
            Ok(stash)
        })
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, EngineError> {
        let stash = self.backend.stash_host(bytes)?;
        self.copies.live.insert(stash);
        Ok(stash)
    }

    fn unstash(&mut self, parts: &[(StatePart, StashId)]) -> Result<(), EngineError> {
        self.noting_loss(|runner| {
            for &(part, stash) in parts {
                runner.queue_copy(part)?;
                runner.copies.lay(part);
                runner.backend.unstash(stash, &runner.copies.views)?;
            }
            runner.submit_copies()
        })
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        self.noting_loss(Self::submit_copies)
    }

    fn read(&mut self, stash: StashId) -> Result<Bytes, EngineError> {
        self.noting_loss(|runner| Ok(runner.backend.read_stash(stash)?))
    }

    fn release(&mut self, stash: StashId) {
        self.copies.live.remove(&stash);
        // A device that is lost has nothing left to release.
        let _ = self.backend.release_stash(stash);
    }

    fn release_all(&mut self) {
        for stash in self.copies.live.drain() {
            let _ = self.backend.release_stash(stash);
        }
    }

    fn is_settled(&self) -> bool {
        self.submissions.is_settled()
    }
}
