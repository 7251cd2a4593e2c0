//! The rows of one step as flat arrays, reused from step to step.

use crate::{KV_BLOCK, Limits, ModelSpec, Placeholders};
use forerun_backend::op::{SampleRow, SpanEntry};

/// A span on its way into a batch.
#[derive(Clone, Copy, Debug)]
pub struct NewSpan<'a> {
    /// Its tokens, drafts last.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub start: u32,
    /// Leading tokens that are not drafts.
    pub confirmed: u32,
    /// Accepted drafts of the last step that the state has not folded yet.
    pub pending: u32,
    /// The lease's recurrent slot.
    pub slot: u32,
    /// The lease's blocks, in order of position.
    pub blocks: &'a [u32],
    /// How many of the last rows need logits.
    pub sampled: usize,
    /// How many of the last rows have a place in the window of hidden states, at most all of it.
    pub kept: usize,
}

/// What all spans of a batch share.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    /// Rows per slot in the window of hidden states.
    pub hidden_window: usize,
    /// Blocks of a slot's ring; 0 when no layer has a window.
    pub ring_width: usize,
}

impl BatchShape {
    /// What `limits` say.
    pub const fn of(limits: &Limits) -> Self {
        Self { hidden_window: limits.hidden_window(), ring_width: limits.ring_width() }
    }
}

/// Rows of several spans.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    placeholders: Placeholders,
    /// Token of each row.
    pub ids: Vec<u32>,
    /// The same as embeddings read it.
    pub inputs: Vec<u32>,
    /// Position of each row.
    pub positions: Vec<u32>,
    /// Line of each row in the block tables: its slot.
    pub table_lines: Vec<u32>,
    /// Place of each row in the cache.
    pub places: Vec<u32>,
    /// Place of each row in the rings of layers with a window.
    pub ring_places: Vec<u32>,
    /// Rows that have a place in the window of hidden states.
    pub hidden_rows: Vec<u32>,
    /// Their places there; in a draft pass, where each row finds its hidden state.
    pub hidden_places: Vec<u32>,
    /// Span entries, `[spans, SpanEntry::WORDS]`.
    pub spans: Vec<u32>,
    /// Rows that need logits.
    pub sampled: Vec<u32>,
    /// How they are sampled, `[sampled, SampleRow::WORDS]`, laid down by whoever samples.
    pub sample_rows: Vec<u32>,
}

impl Batch {
    /// An empty batch for a model that never has to grow.
    pub fn with_capacity(spec: &ModelSpec, limits: &Limits) -> Self {
        let Limits { rows, sequences, sampled, .. } = *limits;
        Self {
            placeholders: spec.placeholders.clone(),
            ids: Vec::with_capacity(rows),
            inputs: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            table_lines: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            ring_places: Vec::with_capacity(rows),
            hidden_rows: Vec::with_capacity(rows),
            hidden_places: Vec::with_capacity(rows),
            spans: Vec::with_capacity(sequences * SpanEntry::WORDS),
            sampled: Vec::with_capacity(sampled),
            sample_rows: Vec::with_capacity(sampled * SampleRow::WORDS),
        }
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.inputs.clear();
        self.positions.clear();
        self.table_lines.clear();
        self.places.clear();
        self.ring_places.clear();
        self.hidden_rows.clear();
        self.hidden_places.clear();
        self.spans.clear();
        self.sampled.clear();
        self.sample_rows.clear();
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Adds a span; the shape is the same for all of a batch.
    ///
    /// # Panics
    /// When the blocks do not reach the span's last position: leases reserve before they run.
    pub fn push(&mut self, span: NewSpan<'_>, shape: BatchShape) {
        let BatchShape { hidden_window, ring_width } = shape;
        let slot = span.slot as usize;
        let in_ring = |block: usize| slot * ring_width + block % ring_width.max(1);
        let first_row = self.rows() as u32;
        let unkept = span.tokens.len() - span.kept;
        for (i, &token) in span.tokens.iter().enumerate() {
            let position = span.start as usize + i;
            let block = span.blocks[position / KV_BLOCK] as usize;
            self.ids.push(token);
            self.inputs.push(self.placeholders.read_as(token));
            self.positions.push(position as u32);
            self.table_lines.push(span.slot);
            self.places.push((block * KV_BLOCK + position % KV_BLOCK) as u32);
            if ring_width > 0 {
                let block = in_ring(position / KV_BLOCK);
                self.ring_places.push((block * KV_BLOCK + position % KV_BLOCK) as u32);
            }
            if i >= unkept {
                let kept = slot * hidden_window + position % hidden_window;
                self.hidden_rows.push(first_row + i as u32);
                self.hidden_places.push(kept as u32);
            }
        }
        let rows = span.tokens.len() as u32;
        let NewSpan { start, confirmed, pending, slot, .. } = span;
        let entry = SpanEntry { first_row, rows, confirmed, pending, slot, start };
        self.spans.extend_from_slice(&entry.words());
        self.sampled.extend(first_row + rows - span.sampled as u32..first_row + rows);
    }
}
