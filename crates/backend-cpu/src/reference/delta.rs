use super::span_entry;
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{DeltaRule, DeltaShape, SpanEntry};

/// What one row writes into one head's memory.
struct RowWrite<'a> {
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

/// One step of the gated delta rule, one value head; `state` is `[dk][dv]`.
fn advance(state: &mut [f32], write: &RowWrite<'_>) {
    let dv = write.v.len();
    let mut recall = vec![0.0; dv];
    for (row, &k) in state.chunks_exact_mut(dv).zip(write.k) {
        for (s, recall) in row.iter_mut().zip(&mut recall) {
            *s *= write.decay;
            *recall += *s * k;
        }
    }
    for (row, &k) in state.chunks_exact_mut(dv).zip(write.k) {
        for ((s, &v), &recall) in row.iter_mut().zip(write.v).zip(&recall) {
            *s += k * (write.beta * (v - recall));
        }
    }
}

/// `o = Sᵀq`.
fn recall(state: &[f32], q: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (row, &q) in state.chunks_exact(out.len()).zip(q) {
        for (o, &s) in out.iter_mut().zip(row) {
            *o += s * q;
        }
    }
}

pub(crate) fn delta_rule(memory: &mut Memory, op: DeltaRule) -> Result<(), BackendError> {
    let shape = op.shape;
    let DeltaShape { key_heads, value_heads, dk, dv } = shape;
    let (k_at, v_at) = (key_heads * dk, 2 * key_heads * dk);
    memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
        let (qkv, decay, beta) = (memory.f32(op.qkv), memory.f32(op.decay), memory.f32(op.beta));
        let (states, logs) = (state.f32_mut(op.state), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("delta_rule", &op.spans, words, decay.len() / value_heads)?;
            let slot = span.slot as usize;
            let log_len = op.spans.log_rows * shape.log_len();
            let log = &mut logs[slot * log_len..(slot + 1) * log_len];
            for head in 0..value_heads {
                let at = (slot * value_heads + head) * dk * dv;
                let state = &mut states[at..at + dk * dv];
                if span.start == 0 {
                    state.fill(0.0);
                }
                for line in log.chunks_exact(shape.log_len()).take(span.pending as usize) {
                    advance(state, &logged(line, &shape, head));
                }
                let mut draft = Vec::new();
                for i in 0..span.rows as usize {
                    let row = span.first_row as usize + i;
                    let line = &qkv[row * shape.channels()..(row + 1) * shape.channels()];
                    let key = head / (value_heads / key_heads) * dk;
                    let write = RowWrite {
                        k: &line[k_at + key..k_at + key + dk],
                        v: &line[v_at + head * dv..v_at + (head + 1) * dv],
                        decay: decay[row * value_heads + head],
                        beta: beta[row * value_heads + head],
                    };
                    let state = if i < span.confirmed as usize {
                        &mut *state
                    } else {
                        if draft.is_empty() {
                            draft.extend_from_slice(state);
                        }
                        &mut draft
                    };
                    advance(state, &write);
                    let o = (row * value_heads + head) * dv;
                    recall(state, &line[key..key + dk], &mut out[o..o + dv]);
                }
            }
            for i in span.confirmed as usize..span.rows as usize {
                let row = span.first_row as usize + i;
                let at = (i - span.confirmed as usize) * shape.log_len();
                let line = &mut log[at..at + shape.log_len()];
                let (kv, gates) = line.split_at_mut(k_at + value_heads * dv);
                let channels = shape.channels();
                kv.copy_from_slice(&qkv[row * channels + k_at..(row + 1) * channels]);
                let heads = row * value_heads..(row + 1) * value_heads;
                gates[..value_heads].copy_from_slice(&decay[heads.clone()]);
                gates[value_heads..].copy_from_slice(&beta[heads]);
            }
        }
        Ok(())
    })
}

/// One head's write from a log row `[k | v | decay | beta]`.
fn logged<'a>(line: &'a [f32], shape: &DeltaShape, head: usize) -> RowWrite<'a> {
    let DeltaShape { key_heads, value_heads, dk, dv } = *shape;
    let key = head / (value_heads / key_heads) * dk;
    let v_at = key_heads * dk;
    let gates = v_at + value_heads * dv;
    RowWrite {
        k: &line[key..key + dk],
        v: &line[v_at + head * dv..v_at + (head + 1) * dv],
        decay: line[gates + head],
        beta: line[gates + value_heads + head],
    }
}
