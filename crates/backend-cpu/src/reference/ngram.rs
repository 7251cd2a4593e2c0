use super::linear::dot;
use super::{sigmoid, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{NgramEmbed, NgramGate, NgramHash, SpanEntry};

pub(crate) fn ngram_embed(memory: &mut Memory, op: NgramEmbed) -> Result<(), BackendError> {
    ngram_rows(memory, op, &mut Vec::new())
}

/// The operation with memory for the tokens of a span.
pub(crate) fn ngram_rows(
    memory: &mut Memory,
    op: NgramEmbed,
    seen: &mut Vec<u32>,
) -> Result<(), BackendError> {
    let (hash, keep) = (op.hash, op.hash.order - 1);
    let heads = hash.all_heads();
    memory.lend([op.window, op.log, op.out], |memory, [window, log, out]| {
        let (ids, table) = (memory.u32(op.ids), memory.matrix(op.table));
        let (windows, logs) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("ngram_embed", &op.spans, words, ids.len())?;
            let slot = span.slot as usize;
            let window = &mut windows[slot * keep..(slot + 1) * keep];
            let log = &mut logs[slot * op.spans.log_rows..(slot + 1) * op.spans.log_rows];
            if span.start == 0 {
                window.fill(hash.boundary as f32);
            }
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            let pending = &log[..span.pending as usize];
            let before = window.iter().chain(pending).map(|&token| token as u32);
            seen.clear();
            seen.extend(before.chain(ids[rows.clone()].iter().copied()));
            let first = keep + span.pending as usize;
            for (i, row) in rows.enumerate() {
                let mut places = [0; NgramHash::MOST_HEADS];
                let tokens = &seen[first + i - keep..=first + i];
                hash.places(tokens, &mut places[..heads]);
                let out = &mut out[row * heads * op.width..(row + 1) * heads * op.width];
                for (&place, out) in places.iter().zip(out.chunks_exact_mut(op.width)) {
                    table.decode_row(place as usize, out);
                }
            }
            let settled = first + span.confirmed as usize;
            let kept = window.iter_mut().zip(&seen[settled - keep..settled]);
            let drafts = log.iter_mut().zip(&seen[settled..]);
            kept.chain(drafts).for_each(|(to, &token)| *to = token as f32);
        }
        Ok(())
    })
}

pub(crate) fn ngram_gate(memory: &mut Memory, op: NgramGate) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let [keys, queries] = [op.keys, op.queries].map(|view| memory.f32(view));
        let values = memory.f32(op.values);
        let root = (op.dim as f32).sqrt();
        let outs = out.f32_mut(op.out).chunks_exact_mut(op.dim);
        let pairs = keys.chunks_exact(op.dim).zip(queries.chunks_exact(op.dim));
        for (i, ((key, query), out)) in pairs.zip(outs).enumerate() {
            let fit = dot(key, query) / root;
            let sign = if fit == 0.0 { 0.0 } else { fit.signum() };
            let gate = sigmoid(fit.abs().max(1e-6).sqrt() * sign);
            let value = &values[i / op.streams * op.dim..][..op.dim];
            out.iter_mut().zip(value).for_each(|(out, value)| *out = gate * value);
        }
        Ok(())
    })
}
