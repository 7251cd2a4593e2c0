//! The rows of one step as flat arrays, reused from step to step.

use crate::{KV_BLOCK, Limits, ModelSpec, Placeholders};
use forerun_backend::op::SpanEntry;

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
}

/// What all spans of a batch share.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    /// Blocks per line of the block tables.
    pub table_width: usize,
    /// Rows per slot in the window of hidden states.
    pub hidden_window: usize,
    /// Blocks of a slot's ring; 0 when no layer has a window.
    pub ring_width: usize,
    /// Keys a layer with a window shows at most.
    pub window: usize,
}

impl BatchShape {
    /// What `limits` say.
    pub const fn of(limits: &Limits) -> Self {
        Self {
            table_width: limits.table_width(),
            hidden_window: limits.hidden_window(),
            ring_width: limits.ring_width(),
            window: limits.window,
        }
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
    /// Span of each row.
    pub span_of: Vec<u32>,
    /// Place of each row in the cache.
    pub places: Vec<u32>,
    /// Place of each row in the rings of layers with a window.
    pub ring_places: Vec<u32>,
    /// Place of each row in the window of hidden states.
    pub hidden_places: Vec<u32>,
    /// Block tables, `[spans, table_width]`.
    pub tables: Vec<u32>,
    /// The same for layers with a window: block `b` of a sequence lies at `b % ring_width` of its ring.
    pub ring_tables: Vec<u32>,
    /// Span entries, `[spans, SpanEntry::WORDS]`.
    pub spans: Vec<u32>,
    /// Rows that need logits.
    pub sampled: Vec<u32>,
    /// Keys visible to all rows together.
    pub visible_keys: usize,
    /// Keys visible in layers with a window.
    pub windowed_keys: usize,
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
            span_of: Vec::with_capacity(rows),
            places: Vec::with_capacity(rows),
            ring_places: Vec::with_capacity(rows),
            hidden_places: Vec::with_capacity(rows),
            tables: Vec::with_capacity(sequences * limits.table_width()),
            ring_tables: Vec::with_capacity(sequences * limits.table_width()),
            spans: Vec::with_capacity(sequences * SpanEntry::WORDS),
            sampled: Vec::with_capacity(sampled),
            visible_keys: 0,
            windowed_keys: 0,
        }
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.inputs.clear();
        self.positions.clear();
        self.span_of.clear();
        self.places.clear();
        self.ring_places.clear();
        self.hidden_places.clear();
        self.tables.clear();
        self.ring_tables.clear();
        self.spans.clear();
        self.sampled.clear();
        self.visible_keys = 0;
        self.windowed_keys = 0;
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
        let BatchShape { table_width, hidden_window, ring_width, window } = shape;
        let slot = span.slot as usize;
        let in_ring = |block: usize| slot * ring_width + block % ring_width.max(1);
        let index = (self.spans.len() / SpanEntry::WORDS) as u32;
        let first_row = self.rows() as u32;
        for (i, &token) in span.tokens.iter().enumerate() {
            let position = span.start as usize + i;
            let block = span.blocks[position / KV_BLOCK] as usize;
            self.ids.push(token);
            self.inputs.push(self.placeholders.read_as(token));
            self.positions.push(position as u32);
            self.span_of.push(index);
            self.places.push((block * KV_BLOCK + position % KV_BLOCK) as u32);
            if ring_width > 0 {
                let block = in_ring(position / KV_BLOCK);
                self.ring_places.push((block * KV_BLOCK + position % KV_BLOCK) as u32);
            }
            let kept = slot * hidden_window + position % hidden_window;
            self.hidden_places.push(kept as u32);
            self.visible_keys += position + 1;
            self.windowed_keys += window.min(position + 1);
        }
        let rows = span.tokens.len() as u32;
        self.tables.extend_from_slice(span.blocks);
        self.tables.resize((index as usize + 1) * table_width, 0);
        if ring_width > 0 {
            self.ring_tables.extend((0..table_width).map(|block| in_ring(block) as u32));
        }
        let NewSpan { start, confirmed, pending, slot, .. } = span;
        let entry = SpanEntry { first_row, rows, confirmed, pending, slot, start };
        self.spans.extend_from_slice(&entry.words());
        self.sampled.extend(first_row + rows - span.sampled as u32..first_row + rows);
    }
}
