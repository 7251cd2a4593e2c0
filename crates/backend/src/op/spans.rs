//! The table that tells recurrent operations which rows belong together.

use crate::{Access, OpDesc, View};

/// One span as recurrent operations see it.
///
/// The recurrent state of `slot` stands at the committed position minus `pending` rows: those were
/// kept by the last verdict and lie in the slot's log. A run folds them first, then advances the
/// state over the `confirmed` rows; the rows after them are drafts: they read a private copy
/// and go to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanEntry {
    /// First row of the span in the batch.
    pub first_row: u32,
    /// Rows in the span.
    pub rows: u32,
    /// Leading rows that are not drafts.
    pub confirmed: u32,
    /// Log rows to fold before the first row.
    pub pending: u32,
    /// The recurrent slot.
    pub slot: u32,
    /// Position of the first row; at 0 the state and window are zero whatever the slot holds.
    pub start: u32,
}

impl SpanEntry {
    /// u32 words per span in the table.
    pub const WORDS: usize = 6;

    /// The words of this entry.
    pub const fn words(self) -> [u32; Self::WORDS] {
        [self.first_row, self.rows, self.confirmed, self.pending, self.slot, self.start]
    }

    /// The entry from its words.
    ///
    /// # Panics
    /// When `words` is not exactly one entry.
    pub fn from_words(words: &[u32]) -> Self {
        let &[first_row, rows, confirmed, pending, slot, start] = words else {
            panic!("a span entry has {} words", Self::WORDS)
        };
        Self { first_row, rows, confirmed, pending, slot, start }
    }
}

/// States and log rows that a call moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// States read: all but those at position 0, which are zero.
    pub(super) reads: u64,
    /// States written.
    pub(super) writes: u64,
    /// Log rows read.
    pub(super) folded: u64,
    /// Log rows written.
    pub(super) logged: u64,
}

/// The span table of a batch and the size of what it points into.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    /// u32 `[spans, SpanEntry::WORDS]`.
    pub table: View,
    /// Slots the state buffers hold.
    pub slots: usize,
    /// Rows a slot's log holds.
    pub log_rows: usize,
}

impl Spans {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.table.len.is_multiple_of(SpanEntry::WORDS),
            "span table is not whole entries",
        );
        desc.u32("spans", self.table, Access::Read, self.table.len);
    }

    /// What the spans move between memory and their rows. Without a look into the table: a state read and
    /// written for each span, and no drafts.
    pub(super) fn moves(&self, desc: &OpDesc<'_>) -> Moves {
        let count = self.count() as u64;
        let Some(words) = desc.words(self.table) else {
            return Moves { reads: count, writes: count, folded: 0, logged: 0 };
        };
        let mut moves = Moves::default();
        for entry in words.chunks_exact(SpanEntry::WORDS).map(SpanEntry::from_words) {
            moves.reads += u64::from(entry.start > 0);
            moves.writes += u64::from(entry.confirmed > 0 || entry.pending > 0);
            moves.folded += u64::from(entry.pending);
            moves.logged += u64::from(entry.rows.saturating_sub(entry.confirmed));
        }
        moves
    }

    /// Spans in the table.
    pub const fn count(&self) -> usize {
        self.table.len / SpanEntry::WORDS
    }
}
