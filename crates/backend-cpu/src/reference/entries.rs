use super::linear::dot;
use super::norm::inverse_rms;
use super::{index, span_entry};
use crate::Memory;
use forerun_backend::op::{ChooseEntries, EntryLayout, PoolEntries, SpanEntry, Turned};
use forerun_backend::{BackendError, WeightId};

pub(crate) fn pool_entries(memory: &mut Memory, op: PoolEntries) -> Result<(), BackendError> {
    let all = |id: WeightId| {
        let matrix = memory.matrix(id);
        let mut numbers = vec![0.0; matrix.rows() * matrix.cols()];
        let cols = matrix.cols().max(1);
        numbers.chunks_exact_mut(cols).enumerate().for_each(|(i, to)| matrix.decode_row(i, to));
        numbers
    };
    let bias = op.gates.map_or_else(Vec::new, |(_, bias)| all(bias));
    let (norm, inv_freq) = (all(op.norm.weight), all(op.inv_freq));
    let weights = EntryWeights { bias: &bias, norm: &norm, inv_freq: &inv_freq };
    pool(memory, op, weights, &mut Vec::new())
}

/// Weights that entries are made with, decoded.
#[derive(Clone, Copy)]
pub(crate) struct EntryWeights<'a> {
    pub(crate) bias: &'a [f32],
    pub(crate) norm: &'a [f32],
    pub(crate) inv_freq: &'a [f32],
}

/// The operation with its weights decoded, and with memory for the rows of a span.
pub(crate) fn pool(
    memory: &mut Memory,
    op: PoolEntries,
    weights: EntryWeights<'_>,
    seen: &mut Vec<f32>,
) -> Result<(), BackendError> {
    let (layout, width, keep) = (op.layout, op.width(), op.kept());
    let each = op.series * layout.dim;
    memory.lend([op.window, op.log, op.cache], |memory, [window, log, cache]| {
        let (keys, tables) = (memory.f32(op.keys), memory.u32(op.tables));
        let gates = op.gates.map(|(gates, _)| memory.f32(gates));
        let (windows, logs) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let cache = cache.f32_mut(op.cache);
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("pool_entries", &op.spans, words, keys.len() / each)?;
            let slot = span.slot as usize;
            let window = &mut windows[slot * keep * width..(slot + 1) * keep * width];
            let log_len = op.spans.log_rows * width;
            let log = &mut logs[slot * log_len..(slot + 1) * log_len];
            if span.start == 0 {
                window.fill(0.0);
            }
            // Everything the span can see, oldest first: window, pending log rows, its own rows.
            seen.clear();
            seen.extend_from_slice(window);
            seen.extend_from_slice(&log[..span.pending as usize * width]);
            for row in span.first_row as usize..(span.first_row + span.rows) as usize {
                let row = row * each..(row + 1) * each;
                seen.extend_from_slice(&keys[row.clone()]);
                seen.extend_from_slice(gates.map_or(&[][..], |gates| &gates[row]));
            }
            let first = keep + span.pending as usize;
            for i in 0..span.rows as usize {
                let after = span.start as usize + i + 1;
                if !after.is_multiple_of(layout.every) {
                    continue;
                }
                let entry = after / layout.every - 1;
                let (block, place) = layout.place(entry);
                index("pool_entries", "positions", block as u32, op.table_width)?;
                let id = tables[slot * op.table_width + block];
                let id = index("pool_entries", "tables", id, layout.blocks)?;
                let at = (id * layout.per_block() + place) * layout.dim;
                let rows = &seen[(first + i - keep) * width..(first + i + 1) * width];
                weights.entry(&op, rows, entry, &mut cache[at..at + layout.dim]);
            }
            let settled = (first + span.confirmed as usize) * width;
            window.copy_from_slice(&seen[settled - keep * width..settled]);
            let drafts = &seen[settled..];
            log[..drafts.len()].copy_from_slice(drafts);
        }
        Ok(())
    })
}

impl EntryWeights<'_> {
    /// Entry `number` of the rows it is made of, oldest first.
    fn entry(&self, op: &PoolEntries, rows: &[f32], number: usize, out: &mut [f32]) {
        let EntryLayout { every, dim, .. } = op.layout;
        let (width, each) = (op.width(), op.series * dim);
        // The first entry has none before it.
        let skipped = if number == 0 { (op.series - 1) * every } else { 0 };
        let count = op.series * every;
        for (i, out) in out.iter_mut().enumerate() {
            // Which number of a row takes part: of the newest entry that of the last series.
            let number = |row: usize| row / every * dim + i;
            let key = |row: usize| rows[row * width + number(row)];
            if op.gates.is_none() {
                let sum: f32 = (skipped..count).map(key).sum();
                *out = sum / (count - skipped) as f32;
                continue;
            }
            let gate = |row: usize| {
                rows[row * width + each + number(row)] + self.bias[row % every * each + number(row)]
            };
            let max = (skipped..count).map(gate).fold(f32::NEG_INFINITY, f32::max);
            let (mut sum, mut mixed) = (0.0, 0.0);
            for row in skipped..count {
                let share = (gate(row) - max).exp();
                sum += share;
                mixed += share * key(row);
            }
            *out = mixed / sum;
        }
        let scale = inverse_rms(out, op.norm.eps);
        out.iter_mut().zip(self.norm).for_each(|(x, weight)| *x = *x * scale * weight);
        self.turn(op, (number * every) as f32, out);
    }

    fn turn(&self, op: &PoolEntries, position: f32, x: &mut [f32]) {
        let (half, dim) = (self.inv_freq.len(), x.len());
        for (j, inv) in self.inv_freq.iter().enumerate() {
            let [a, b] = match op.turned {
                Turned::FirstHalves => [j, j + half],
                Turned::LastPairs => [dim - 2 * half + 2 * j, dim - 2 * half + 2 * j + 1],
            };
            let angle = position * inv;
            let (cos, sin) = (angle.cos() * op.rope_scale, angle.sin() * op.rope_scale);
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin);
        }
    }
}

pub(crate) fn choose_entries(memory: &mut Memory, op: ChooseEntries) -> Result<(), BackendError> {
    memory.lend([op.chosen], |memory, [chosen]| {
        let find = EntryRows::new(memory, &op);
        for (row, chosen) in chosen.u32_mut(op.chosen).chunks_exact_mut(op.most).enumerate() {
            chosen.fill(ChooseEntries::NONE);
            let (complete, line) = find.entries_of(row)?;
            if complete <= op.most {
                (0..complete as u32).zip(chosen).for_each(|(entry, to)| *to = entry);
                continue;
            }
            let mut scores = Vec::with_capacity(complete);
            for entry in 0..complete {
                scores.push(find.score(row, find.entry(line, entry)?, dot));
            }
            let mut order = vec![0; complete];
            ChooseEntries::select(&scores, op.most, &mut order);
            order.truncate(op.most);
            order.sort_unstable();
            chosen.copy_from_slice(&order);
        }
        Ok(())
    })
}

/// The operands of a choice, row by row.
pub(crate) struct EntryRows<'a> {
    op: ChooseEntries,
    q: &'a [f32],
    weights: Option<&'a [f32]>,
    cache: &'a [f32],
    positions: &'a [u32],
    span_of: &'a [u32],
    tables: &'a [u32],
}

impl<'a> EntryRows<'a> {
    pub(crate) fn new(memory: &'a Memory, op: &ChooseEntries) -> Self {
        Self {
            op: *op,
            q: memory.f32(op.q),
            weights: op.weights.map(|weights| memory.f32(weights)),
            cache: memory.f32(op.cache),
            positions: memory.u32(op.positions),
            span_of: memory.u32(op.span_of),
            tables: memory.u32(op.tables),
        }
    }

    /// How many entries are complete for a row, and its line in the tables.
    pub(crate) fn entries_of(&self, row: usize) -> Result<(usize, &'a [u32]), BackendError> {
        let (layout, width) = (self.op.layout, self.op.table_width);
        let (at, line) = (self.positions[row], self.span_of[row]);
        index("choose_entries", "positions", at, width * layout.block)?;
        let line = index("choose_entries", "span_of", line, self.tables.len() / width)?;
        Ok((layout.complete(at as usize), &self.tables[line * width..(line + 1) * width]))
    }

    /// The numbers of an entry.
    pub(crate) fn entry(&self, line: &[u32], entry: usize) -> Result<&'a [f32], BackendError> {
        let layout = self.op.layout;
        entry_of("choose_entries", layout, (self.cache, line), entry)
    }

    /// An entry's score for a row.
    pub(crate) fn score(
        &self,
        row: usize,
        entry: &[f32],
        dot: impl Fn(&[f32], &[f32]) -> f32,
    ) -> f32 {
        let (heads, dim) = (self.op.heads, self.op.layout.dim);
        let queries = self.q[row * heads * dim..(row + 1) * heads * dim].chunks_exact(dim);
        let mut sum = 0.0;
        for (h, q) in queries.enumerate() {
            let weight = self.weights.map_or(1.0, |weights| weights[row * heads + h]);
            sum += weight * dot(q, entry).max(0.0);
        }
        self.op.scale * sum
    }
}

/// The numbers of an entry of the sequence whose blocks are in `line`.
pub(crate) fn entry_of<'a>(
    op: &'static str,
    layout: EntryLayout,
    (cache, line): (&'a [f32], &[u32]),
    entry: usize,
) -> Result<&'a [f32], BackendError> {
    let (block, place) = layout.place(entry);
    let block = index(op, "positions", block as u32, line.len())?;
    let id = index(op, "tables", line[block], layout.blocks)?;
    let at = (id * layout.per_block() + place) * layout.dim;
    Ok(&cache[at..at + layout.dim])
}
