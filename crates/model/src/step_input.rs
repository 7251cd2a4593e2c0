//! What the host computes for a step, as one block of words: one buffer, one write.
//!
//! ```text
//!  | ids | embedded ids | positions | table lines | places | ring places | hidden rows | hidden places | spans |
//! sampled | sample rows | ```
//!
//! Each array begins at a multiple of [`InputBlock::ALIGN`] words. A chain of draft passes lays one such group after
//! the other, so that a whole round is still one write. Views depend on sizes alone, so a program made for a shape fits
//! every step of it.

use crate::{Batch, Limits};
use forerun_backend::op::{SampleRow, SpanEntry};
use forerun_backend::{Backend, BackendError, BufferId, HostData, View};

/// The words of one submission and the buffer they go to.
#[derive(Clone, Debug)]
pub struct InputBlock {
    buffer: BufferId,
    words: Vec<u32>,
    capacity: usize,
}

/// Where the arrays of one pass lie in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PassInputs {
    /// Token of each row.
    pub ids: View,
    /// The same as embeddings read it.
    pub(crate) embedded: View,
    pub(crate) positions: View,
    pub(crate) table_lines: View,
    pub(crate) places: View,
    pub(crate) ring_places: View,
    pub(crate) hidden_rows: View,
    pub(crate) hidden_places: View,
    pub(crate) spans: View,
    /// Rows that need logits.
    pub sampled: View,
    /// How they are sampled.
    pub sample_rows: View,
}

impl PassInputs {
    /// Rows of the pass.
    pub fn rows(&self) -> usize {
        self.positions.len
    }

    /// Places and table lines of layers whose cache is a ring, or of the others.
    pub(crate) const fn places_of(&self, ring: bool) -> View {
        if ring { self.ring_places } else { self.places }
    }
}

impl InputBlock {
    /// Words that an array's beginning is a multiple of: 64 bytes.
    pub const ALIGN: usize = 16;

    /// A block for `buffer`, which holds `capacity` words.
    pub fn new(buffer: BufferId, capacity: usize) -> Self {
        Self { buffer, words: Vec::with_capacity(capacity), capacity }
    }

    /// Words that a pass of so many rows, spans and sampled rows takes.
    pub fn words_of(rows: usize, spans: usize, sampled: usize) -> usize {
        let arrays = 8 * Self::aligned(rows) + Self::aligned(spans * SpanEntry::WORDS);
        arrays + Self::aligned(sampled) + Self::aligned(sampled * SampleRow::WORDS)
    }

    /// Words that any step needs, and any chain of up to `drafts` draft passes.
    pub fn capacity_of(limits: &Limits, drafts: usize) -> usize {
        let Limits { rows, sequences, sampled, .. } = *limits;
        let step = Self::words_of(rows, sequences, sampled);
        if !limits.mtp {
            return step;
        }
        // Behind a step stand the rows that the drafter takes in with it.
        let step = step + Self::words_of(rows, sequences, 0);
        // Behind every pass stand the indices that hand its tokens to the next one.
        let next = Self::words_of(sequences, sequences, sequences) + 4 * Self::aligned(sequences);
        let first = Self::words_of(rows, sequences, sequences) + 4 * Self::aligned(sequences);
        let lines = Self::aligned(sequences * (drafts + 1));
        step.max(first + drafts.saturating_sub(1) * next).max(first + lines)
    }

    const fn aligned(words: usize) -> usize {
        words.next_multiple_of(Self::ALIGN)
    }

    /// Empties the block and keeps its memory.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Lays an array down; where it will be on the device.
    ///
    /// # Panics
    /// When the block is full: its capacity follows from the limits that every plan keeps to.
    pub fn push(&mut self, words: &[u32]) -> View {
        let start = Self::aligned(self.words.len());
        assert!(start + words.len() <= self.capacity, "the inputs of a submission fit their block");
        self.words.resize(start, 0);
        self.words.extend_from_slice(words);
        View { buffer: self.buffer, start, len: words.len() }
    }

    /// Lays down what a pass reads.
    pub fn add(&mut self, batch: &Batch) -> PassInputs {
        PassInputs {
            ids: self.push(&batch.ids),
            embedded: self.push(&batch.inputs),
            positions: self.push(&batch.positions),
            table_lines: self.push(&batch.table_lines),
            places: self.push(&batch.places),
            ring_places: self.push(&batch.ring_places),
            hidden_rows: self.push(&batch.hidden_rows),
            hidden_places: self.push(&batch.hidden_places),
            spans: self.push(&batch.spans),
            sampled: self.push(&batch.sampled),
            sample_rows: self.push(&batch.sample_rows),
        }
    }

    /// The words of a view of the block.
    pub fn words(&self, view: View) -> Option<&[u32]> {
        let within = view.buffer == self.buffer;
        within.then(|| self.words.get(view.start..view.start + view.len)).flatten()
    }

    /// Queues the one write of the block; its bytes.
    pub fn write(&self, backend: &mut dyn Backend) -> Result<u64, BackendError> {
        let whole = View::head(self.buffer, self.words.len());
        backend.write(whole, HostData::U32(&self.words))?;
        Ok(size_of_val(&self.words[..]) as u64)
    }
}

/// Block tables on the device, a line for each slot. A line is written when its lease's blocks have changed, which is
/// at admission: a lease holds the blocks of its longest possible answer.
#[derive(Clone, Debug)]
pub struct BlockTables {
    buffer: BufferId,
    width: usize,
    /// What each line holds on the device; empty where that is not known.
    lines: Vec<Vec<u32>>,
}

impl BlockTables {
    /// Tables in `buffer`, of which nothing is known.
    pub fn new(buffer: BufferId, limits: &Limits) -> Self {
        let width = limits.table_width();
        Self { buffer, width, lines: vec![Vec::with_capacity(width); limits.sequences] }
    }

    /// Writes the line of `slot` unless the device has it.
    pub fn set(
        &mut self,
        slot: usize,
        blocks: &[u32],
        backend: &mut dyn Backend,
    ) -> Result<(), BackendError> {
        let line = &mut self.lines[slot];
        if line == blocks {
            return Ok(());
        }
        // Unknown until the write is queued.
        line.clear();
        let view = View { buffer: self.buffer, start: slot * self.width, len: blocks.len() };
        backend.write(view, HostData::U32(blocks))?;
        line.extend_from_slice(blocks);
        Ok(())
    }

    /// Forgets what the device holds, after a failure that may have lost a write.
    pub fn forget(&mut self) {
        self.lines.iter_mut().for_each(Vec::clear);
    }
}
