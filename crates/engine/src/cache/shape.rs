//! What a lease holds, as bytes.

use forerun_base::LeaseId;
use forerun_model::KV_BLOCK;
use std::ops::Range;

/// Sizes of what a lease holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateShape {
    /// A block's keys and values in every layer that keeps all positions, an MTP head's included.
    pub block: usize,
    /// Recurrent state and convolution windows.
    pub recurrent: usize,
    /// A block's keys and values in every layer with a window.
    pub ring_block: usize,
    /// Positions such a layer sees at most.
    pub window: usize,
    /// One hidden state, where an MTP head must still take some in.
    pub hidden: usize,
}

impl StateShape {
    /// Whether a position can be gone on from only where its state was published. Otherwise keys and values are
    /// all there is, and every position will do.
    pub const fn needs_state(&self) -> bool {
        self.recurrent + self.ring_block + self.hidden > 0
    }

    /// Tokens after a block that its bytes depend on: an MTP head pairs each position with the token after it.
    pub const fn ahead(&self) -> usize {
        if self.hidden > 0 { 1 } else { 0 }
    }

    /// Blocks of a text that are published as such when an MTP head has taken in `filled` positions; what follows
    /// goes with the state. A network without such a head has always taken in everything.
    pub const fn whole_blocks(&self, filled: usize) -> usize {
        filled / KV_BLOCK
    }

    /// Blocks of a ring that rows from `position` on can see; a drafter looks one key further back.
    pub const fn ring_blocks(&self, position: usize) -> Range<usize> {
        if self.ring_block == 0 {
            return 0..0;
        }
        position.saturating_sub(self.window + 1) / KV_BLOCK..position.div_ceil(KV_BLOCK)
    }

    /// Bytes of the state at a late position, with an MTP head that is up to date.
    pub fn late_state(&self) -> usize {
        let late = self.window + 2 * KV_BLOCK;
        self.state(late, late - 1)
    }

    /// Bytes of the state at `position` when an MTP head has taken in `filled` positions.
    pub fn state(&self, position: usize, filled: usize) -> usize {
        self.recurrent
            + self.ring_blocks(position).len() * self.ring_block
            + position.saturating_sub(filled) * self.hidden
    }
}

/// A part of a lease's state that is copied as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// A block of the pool.
    Block(u32),
    /// Everything besides: [`StateShape::state`] bytes.
    State {
        /// Whose.
        lease: LeaseId,
        /// Positions read.
        position: u32,
        /// Positions an MTP head has taken in; hidden states from there to `position` belong to the part.
        filled: u32,
    },
}
