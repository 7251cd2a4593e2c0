use super::entries::entry_of;
use super::linear::dot;
use super::{index, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{
    CacheLayout, ChooseEntries, CompressedAttention, SeenEntries, SpanEntry, SparseAttention,
};
use forerun_base::bf16_to_f32;
use std::ops::Range;

pub(crate) fn sparse_attention(
    memory: &mut Memory,
    op: SparseAttention,
) -> Result<(), BackendError> {
    let CacheLayout { kv_heads, head_dim, .. } = op.whole.layout;
    memory.lend([op.whole.out], |memory, [out]| {
        let rows = SparseRows::new(memory, &op);
        let q = memory.f32(op.whole.q);
        let out = out.f32_mut(op.whole.out);
        let mut room = vec![0; rows.most_keys()];
        for row in 0..rows.positions.len() {
            let count = rows.keys_of(row, &mut room)?;
            let keys = &room[..count];
            for head in 0..kv_heads {
                let gathered = rows.gather(keys, head);
                for i in 0..op.whole.heads / kv_heads {
                    let at =
                        (row * op.whole.heads + head * (op.whole.heads / kv_heads) + i) * head_dim;
                    let (q, out) = (&q[at..at + head_dim], &mut out[at..at + head_dim]);
                    let scores: Vec<f32> = gathered[0]
                        .chunks_exact(head_dim)
                        .map(|key| op.whole.scale * dot(q, key))
                        .collect();
                    mix(&scores, None, gathered[1].chunks_exact(head_dim), out);
                }
            }
        }
        Ok(())
    })
}

/// `out = Σ softmax(scores)·values`, perhaps with a sink's score among them.
fn mix<'a>(
    scores: &[f32],
    sink: Option<f32>,
    values: impl Iterator<Item = &'a [f32]>,
    out: &mut [f32],
) {
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
    out.fill(0.0);
    for (score, value) in scores.iter().zip(values) {
        let share = (score - max).exp();
        sum += share;
        out.iter_mut().zip(value).for_each(|(out, x)| *out += share * x);
    }
    out.iter_mut().for_each(|out| *out /= sum);
}

/// The operands of sparse attention, row by row.
pub(crate) struct SparseRows<'a> {
    op: SparseAttention,
    memory: &'a Memory,
    pub(crate) positions: &'a [u32],
    span_of: &'a [u32],
    tables: &'a [u32],
    chosen: &'a [u32],
}

impl<'a> SparseRows<'a> {
    pub(crate) fn new(memory: &'a Memory, op: &SparseAttention) -> Self {
        Self {
            op: *op,
            memory,
            positions: memory.u32(op.whole.positions),
            span_of: memory.u32(op.whole.span_of),
            tables: memory.u32(op.whole.tables),
            chosen: memory.u32(op.chosen),
        }
    }

    /// Keys that a row sees at most.
    pub(crate) fn most_keys(&self) -> usize {
        let groups = self.op.most.min(self.op.whole.table_width * self.op.whole.layout.block);
        (groups + 1) * self.op.every
    }

    /// Where the keys that a row sees lie, in order, by place in the pool; how many there are.
    pub(crate) fn keys_of(&self, row: usize, keys: &mut [u32]) -> Result<usize, BackendError> {
        let SparseAttention { whole, most, every, .. } = self.op;
        let (block, width) = (whole.layout.block, whole.table_width);
        let at = index("sparse_attention", "positions", self.positions[row], width * block)?;
        let lines = self.tables.len() / width;
        let line = index("sparse_attention", "span_of", self.span_of[row], lines)?;
        let complete = (at + 1) / every;
        let mut count = 0;
        let mut add = |positions: Range<usize>| {
            positions.into_iter().try_for_each(|p| {
                let id = self.tables[line * width + p / block];
                let id = index("sparse_attention", "tables", id, whole.layout.blocks)?;
                keys[count] = (id * block + p % block) as u32;
                count += 1;
                Ok::<_, BackendError>(())
            })
        };
        let chosen = &self.chosen[row * most..(row + 1) * most];
        for &group in chosen.iter().take_while(|&&group| group != ChooseEntries::NONE) {
            let group = index("sparse_attention", "chosen", group, complete)?;
            add(group * every..(group + 1) * every)?;
        }
        add(complete * every..at + 1)?;
        Ok(count)
    }

    /// Keys and values of a head, one row each.
    fn gather(&self, keys: &[u32], head: usize) -> [Vec<f32>; 2] {
        let dim = self.op.whole.layout.head_dim;
        let mut gathered = [vec![0.0; keys.len() * dim], vec![0.0; keys.len() * dim]];
        let [k, v] = &mut gathered;
        self.gather_to(keys, head, [k, v]);
        gathered
    }

    /// The same to where there is room.
    pub(crate) fn gather_to(&self, keys: &[u32], head: usize, to: [&mut [f32]; 2]) {
        let (layout, whole) = (self.op.whole.layout, self.op.whole);
        let caches = [whole.k_cache, whole.v_cache];
        for ((to, view), is_key) in to.into_iter().zip(caches).zip([true, false]) {
            let cache = self.memory.storage(view.buffer);
            let place = if is_key { CacheLayout::key } else { CacheLayout::value };
            for (to, &key) in to.chunks_exact_mut(layout.head_dim).zip(keys) {
                let (id, at) = (key as usize / layout.block, key as usize % layout.block);
                for (i, to) in to.iter_mut().enumerate() {
                    *to = cache.get(view.start + place(&layout, id, head, at, i));
                }
                if layout.coded {
                    for (group, to) in to.chunks_mut(CacheLayout::GROUP).enumerate() {
                        let bytes =
                            &cache.codes()[view.start + layout.scale(id, head, at, group)..];
                        let scale = bf16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]));
                        to.iter_mut().for_each(|to| *to *= scale);
                    }
                }
            }
        }
    }
}

pub(crate) fn compressed_attention(
    memory: &mut Memory,
    op: CompressedAttention,
) -> Result<(), BackendError> {
    let mut sinks = vec![0.0; op.heads];
    memory.vector(op.sinks, &mut sinks);
    let mut keys = Vec::new();
    each_row(memory, op, &mut SeenRows::default(), |q, seen, out| {
        keys.clear();
        seen.iter().for_each(|key| keys.extend_from_slice(key));
        let heads = q.chunks_exact(op.dim).zip(out.chunks_exact_mut(op.dim));
        for ((q, out), &sink) in heads.zip(&sinks) {
            let scores: Vec<f32> =
                keys.chunks_exact(op.dim).map(|key| op.scale * dot(q, key)).collect();
            mix(&scores, Some(sink), keys.chunks_exact(op.dim), out);
        }
    })
}

/// Calls `attend` for each row with its queries and the keys that it sees, in order, and moves the state on.
pub(crate) fn each_row(
    memory: &mut Memory,
    op: CompressedAttention,
    SeenRows { numbers: all, rows: lines, .. }: &mut SeenRows,
    mut attend: impl FnMut(&[f32], &[&[f32]], &mut [f32]),
) -> Result<(), BackendError> {
    let CompressedAttention { dim, keys, heads, .. } = op;
    let (keep, wide) = (keys - 1, heads * dim);
    memory.lend([op.window, op.log, op.out], |memory, [window, log, out]| {
        let (q, kv) = (memory.f32(op.q), memory.f32(op.kv));
        let (windows, logs) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("compressed_attention", &op.spans, words, kv.len() / dim)?;
            let slot = span.slot as usize;
            let window = &mut windows[slot * keep * dim..(slot + 1) * keep * dim];
            let log_len = op.spans.log_rows * dim;
            let log = &mut logs[slot * log_len..(slot + 1) * log_len];
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            let (start, pending) = (span.start as usize, span.pending as usize);
            // Everything the span can see, oldest first: window, pending log rows, its own rows.
            all.clear();
            if start == 0 {
                all.resize(keep * dim, 0.0);
            } else {
                all.extend_from_slice(window);
            }
            all.extend_from_slice(&log[..pending * dim]);
            all.extend_from_slice(&kv[rows.start * dim..rows.end * dim]);
            let first = keep + pending;
            for (i, row) in rows.enumerate() {
                let own = first + i;
                let count = keys.min(start + i + 1);
                let last = all[(own + 1 - count) * dim..(own + 1) * dim].chunks_exact(dim);
                let mut seen = emptied(std::mem::take(lines));
                seen.extend(last);
                if let Some(entries) = &op.entries {
                    add_entries(memory, entries, [slot, row, start + i], &mut seen)?;
                }
                let at = row * wide..(row + 1) * wide;
                attend(&q[at.clone()], &seen, &mut out[at]);
                *lines = emptied(seen);
            }
            let settled = (first + span.confirmed as usize) * dim;
            window.copy_from_slice(&all[settled - keep * dim..settled]);
            let drafts = &all[settled..];
            log[..drafts.len()].copy_from_slice(drafts);
        }
        Ok(())
    })
}

/// Memory for what a span sees, kept from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct SeenRows {
    pub(crate) numbers: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
    /// Always empty between rows.
    rows: Vec<&'static [f32]>,
}

/// The memory of a list of rows, for a list of other rows.
fn emptied<'a>(mut rows: Vec<&[f32]>) -> Vec<&'a [f32]> {
    rows.clear();
    // The standard library collects into the memory that it iterates over.
    rows.into_iter().map(|_| -> &'a [f32] { unreachable!("the list is empty") }).collect()
}

/// The entries that a row at `position` sees.
fn add_entries<'a>(
    memory: &'a Memory,
    entries: &SeenEntries,
    [slot, row, position]: [usize; 3],
    seen: &mut Vec<&'a [f32]>,
) -> Result<(), BackendError> {
    let (layout, width) = (entries.layout, entries.table_width);
    let complete = layout.complete(position);
    let line = &memory.u32(entries.tables)[slot * width..(slot + 1) * width];
    let cache = (memory.f32(entries.cache), line);
    let mut add = |entry: usize| {
        seen.push(entry_of("compressed_attention", layout, cache, entry)?);
        Ok(())
    };
    let Some((chosen, most)) = entries.chosen else { return (0..complete).try_for_each(add) };
    let chosen = &memory.u32(chosen)[row * most..(row + 1) * most];
    let mut chosen = chosen.iter().take_while(|&&entry| entry != ChooseEntries::NONE);
    chosen.try_for_each(|&entry| add(index("compressed_attention", "chosen", entry, complete)?))
}
