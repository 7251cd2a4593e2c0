use super::{sigmoid, softplus, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{DeltaShape, KdaGates, KdaRule, SpanEntry, kda_log_len};

pub(crate) fn kda_gates(memory: &mut Memory, op: KdaGates) -> Result<(), BackendError> {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let channels = op.shape.channels();
    let (mut rate, mut dt_bias) = (vec![0.0; value_heads], vec![0.0; value_heads * dk]);
    memory.vector(op.rate, &mut rate);
    memory.vector(op.dt_bias, &mut dt_bias);
    memory.lend([op.qkv, op.decay, op.beta], |memory, [qkv, decay, beta]| {
        let (a, b) = (memory.f32(op.a), memory.f32(op.b));
        let (qkv, decay, beta) =
            (qkv.f32_mut(op.qkv), decay.f32_mut(op.decay), beta.f32_mut(op.beta));
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("kda_gates", &op.spans, words, qkv.len() / channels)?;
            for row in span.first_row as usize..(span.first_row + span.rows) as usize {
                let line = &mut qkv[row * channels..(row + 1) * channels];
                for (head, u) in line[..2 * key_heads * dk].chunks_exact_mut(dk).enumerate() {
                    let squares: f32 = u.iter().map(|x| x * x).sum();
                    let mut scale = 1.0 / (squares + 1e-6).sqrt();
                    if head < key_heads {
                        scale *= 1.0 / (dk as f32).sqrt();
                    }
                    u.iter_mut().for_each(|x| *x *= scale);
                }
                for i in 0..value_heads * dk {
                    let at = row * value_heads * dk + i;
                    decay[at] = (rate[i / dk] * softplus(a[at] + dt_bias[i])).exp();
                }
                for at in row * value_heads..(row + 1) * value_heads {
                    beta[at] = sigmoid(b[at]);
                }
            }
        }
        Ok(())
    })
}

/// What one row writes into one head's memory.
struct RowWrite<'a> {
    k: &'a [f32],
    v: &'a [f32],
    /// Of each key channel.
    decay: &'a [f32],
    beta: f32,
}

impl RowWrite<'_> {
    /// One step of the rule; `state` is `[dk][dv]`.
    fn advance(&self, state: &mut [f32]) {
        let dv = self.v.len();
        let mut recall = vec![0.0; dv];
        for ((row, &k), &decay) in state.chunks_exact_mut(dv).zip(self.k).zip(self.decay) {
            for (s, recall) in row.iter_mut().zip(&mut recall) {
                *s *= decay;
                *recall += *s * k;
            }
        }
        for (row, &k) in state.chunks_exact_mut(dv).zip(self.k) {
            for ((s, &v), &recall) in row.iter_mut().zip(self.v).zip(&recall) {
                *s += k * (self.beta * (v - recall));
            }
        }
    }
}

/// `o = Sᵀq`.
fn answer(state: &[f32], q: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (row, &q) in state.chunks_exact(out.len()).zip(q) {
        out.iter_mut().zip(row).for_each(|(o, &s)| *o += s * q);
    }
}

pub(crate) fn kda_rule(memory: &mut Memory, op: KdaRule) -> Result<(), BackendError> {
    let (shape, log_len) = (op.shape, kda_log_len(&op.shape));
    let DeltaShape { key_heads, value_heads, dk, dv } = shape;
    let (k_at, channels) = (key_heads * dk, shape.channels());
    memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
        let (qkv, decay, beta) = (memory.f32(op.qkv), memory.f32(op.decay), memory.f32(op.beta));
        let (states, logs) = (state.f32_mut(op.state), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        // A row as the log keeps it: what it writes, apart from its query.
        let logged_row = |row: usize| -> Vec<f32> {
            let kv = &qkv[row * channels + k_at..(row + 1) * channels];
            let decay = &decay[row * value_heads * dk..(row + 1) * value_heads * dk];
            [kv, decay, &beta[row * value_heads..(row + 1) * value_heads]].concat()
        };
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("kda_rule", &op.spans, words, beta.len() / value_heads)?;
            let slot = span.slot as usize;
            let per_slot = op.spans.log_rows * log_len;
            let log = &mut logs[slot * per_slot..(slot + 1) * per_slot];
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            let lines: Vec<Vec<f32>> = rows.clone().map(logged_row).collect();
            for head in 0..value_heads {
                let at = (slot * value_heads + head) * dk * dv;
                let state = &mut states[at..at + dk * dv];
                if span.start == 0 {
                    state.fill(0.0);
                }
                for line in log.chunks_exact(log_len).take(span.pending as usize) {
                    write_of(line, &shape, head).advance(state);
                }
                let mut draft = Vec::new();
                for (i, (row, line)) in rows.clone().zip(&lines).enumerate() {
                    let state = if i < span.confirmed as usize {
                        &mut *state
                    } else {
                        if draft.is_empty() {
                            draft.extend_from_slice(state);
                        }
                        &mut draft
                    };
                    write_of(line, &shape, head).advance(state);
                    let q = row * channels + head / (value_heads / key_heads) * dk;
                    let o = (row * value_heads + head) * dv;
                    answer(state, &qkv[q..q + dk], &mut out[o..o + dv]);
                }
            }
            let drafts = &lines[span.confirmed as usize..];
            for (line, to) in drafts.iter().zip(log.chunks_exact_mut(log_len)) {
                to.copy_from_slice(line);
            }
        }
        Ok(())
    })
}

/// One head's write from a row `[k | v | decay | beta]`.
fn write_of<'a>(line: &'a [f32], shape: &DeltaShape, head: usize) -> RowWrite<'a> {
    let DeltaShape { key_heads, value_heads, dk, dv } = *shape;
    let (keys, rest) = line.split_at(key_heads * dk);
    let (values, rest) = rest.split_at(value_heads * dv);
    let (decay, beta) = rest.split_at(value_heads * dk);
    RowWrite {
        k: &keys[head / (value_heads / key_heads) * dk..][..dk],
        v: &values[head * dv..][..dv],
        decay: &decay[head * dk..][..dk],
        beta: beta[head],
    }
}
