//! Who holds which blocks and slot, and up to where their contents are real.

use super::blocks::BlockPool;
use forerun_base::LeaseId;
use forerun_model::{KV_BLOCK, Limits};

/// One sequence's state. The lease's number is also its recurrent slot.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// Blocks in order of position.
    pub blocks: Vec<u32>,
    /// Positions whose state is real.
    pub committed: u32,
    /// How many of those lie in the log, kept but not folded into the recurrent state.
    pub pending: u32,
    held: bool,
}

/// Whether a sequence can have state now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It holds this lease.
    Ready(LeaseId),
    /// Everything is taken; later perhaps.
    Wait,
}

/// All leases. Mutated by acquiring, restoring, committing and releasing only.
#[derive(Clone, Debug)]
pub struct StateStore {
    pool: BlockPool,
    leases: Vec<Lease>,
}

impl StateStore {
    /// A store for what the limits allow.
    pub fn new(limits: &Limits) -> Self {
        let table = || Vec::with_capacity(limits.table_width());
        let lease = || Lease { blocks: table(), ..Lease::default() };
        Self {
            pool: BlockPool::new(limits.blocks()),
            leases: (0..limits.sequences).map(|_| lease()).collect(),
        }
    }

    /// A fresh lease with room for `positions`.
    pub fn acquire(&mut self, positions: usize) -> Admission {
        let Some(slot) = self.leases.iter().position(|l| !l.held) else { return Admission::Wait };
        let lease = &mut self.leases[slot];
        if !self.pool.lend(positions.div_ceil(KV_BLOCK), &mut lease.blocks) {
            return Admission::Wait;
        }
        (lease.committed, lease.pending, lease.held) = (0, 0, true);
        Admission::Ready(LeaseId(slot as u32))
    }

    /// Makes room for `positions` in a held lease; false when the pool is empty.
    pub fn extend(&mut self, id: LeaseId, positions: usize) -> bool {
        let lease = &mut self.leases[id.0 as usize];
        let more = positions.div_ceil(KV_BLOCK).saturating_sub(lease.blocks.len());
        self.pool.lend(more, &mut lease.blocks)
    }

    /// A held lease.
    pub fn lease(&self, id: LeaseId) -> &Lease {
        &self.leases[id.0 as usize]
    }

    /// The only moment tentative becomes real: `keep` tokens of a span with `confirmed` tokens that
    /// were not drafts. Accepted drafts stay in the log until the next run folds them.
    pub fn commit(&mut self, id: LeaseId, keep: usize, confirmed: usize) {
        assert!(keep >= confirmed, "confirmed tokens are always kept");
        let lease = &mut self.leases[id.0 as usize];
        lease.committed += keep as u32;
        lease.pending = (keep - confirmed) as u32;
    }

    /// A fresh lease whose first `positions` were copied in.
    pub fn restore(&mut self, id: LeaseId, positions: u32) {
        let lease = &mut self.leases[id.0 as usize];
        assert!(lease.held && lease.committed == 0, "only a fresh lease is restored");
        assert!(
            positions as usize <= lease.blocks.len() * KV_BLOCK,
            "a lease reaches its positions"
        );
        (lease.committed, lease.pending) = (positions, 0);
    }

    /// Returns a lease's blocks and slot.
    pub fn release(&mut self, id: LeaseId) {
        let lease = &mut self.leases[id.0 as usize];
        assert!(lease.held, "a lease is released once");
        lease.held = false;
        self.pool.take_back(&mut lease.blocks);
    }

    /// Releases every lease but these, whatever state it is in, and makes the pool anew of what they leave.
    pub(crate) fn keep_only(&mut self, held: &[LeaseId]) {
        for (slot, lease) in self.leases.iter_mut().enumerate() {
            lease.held = held.contains(&LeaseId(slot as u32));
            if !lease.held {
                lease.blocks.clear();
            }
        }
        self.pool.rebuild(self.leases.iter().flat_map(|lease| &lease.blocks));
    }

    /// All leases and blocks.
    pub fn size(&self) -> (usize, usize) {
        (self.leases.len(), self.pool.size())
    }

    /// Leases and blocks that nobody holds.
    pub fn free(&self) -> (usize, usize) {
        (self.leases.iter().filter(|l| !l.held).count(), self.pool.free())
    }
}
