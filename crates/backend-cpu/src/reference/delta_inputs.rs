use super::{sigmoid, silu, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{DeltaInputs, DeltaShape, SpanEntry};

/// `ln(1 + eˣ)`, the identity where that is exact in f32.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

pub(crate) fn delta_inputs(memory: &mut Memory, op: DeltaInputs) -> Result<(), BackendError> {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let weight = memory.matrix(op.weight);
    let (channels, taps) = (weight.rows(), weight.cols());
    let mut kernel = vec![0.0; channels * taps];
    for (c, row) in kernel.chunks_exact_mut(taps).enumerate() {
        weight.decode_row(c, row);
    }
    let (mut rate, mut dt_bias) = (vec![0.0; value_heads], vec![0.0; value_heads]);
    memory.vector(op.rate, &mut rate);
    memory.vector(op.dt_bias, &mut dt_bias);
    let lent = [op.window, op.log, op.qkv, op.decay, op.beta];
    memory.lend(lent, |memory, [window, log, qkv, decay, beta]| {
        let (x, a, b) = (memory.f32(op.x), memory.f32(op.a), memory.f32(op.b));
        let (windows, logs) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let (qkv, decay, beta) =
            (qkv.f32_mut(op.qkv), decay.f32_mut(op.decay), beta.f32_mut(op.beta));
        let keep = taps - 1;
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("delta_inputs", &op.spans, words, x.len() / channels)?;
            let slot = span.slot as usize;
            let window = &mut windows[slot * keep * channels..(slot + 1) * keep * channels];
            let log_len = op.spans.log_rows * channels;
            let log = &mut logs[slot * log_len..(slot + 1) * log_len];
            if span.start == 0 {
                window.fill(0.0);
            }
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            // Everything the span can see, oldest first: window, pending log rows, its own rows.
            let mut seen = window.to_vec();
            seen.extend_from_slice(&log[..span.pending as usize * channels]);
            seen.extend_from_slice(&x[rows.start * channels..rows.end * channels]);
            let first = keep + span.pending as usize;
            for (i, row) in rows.enumerate() {
                let out = &mut qkv[row * channels..(row + 1) * channels];
                for (c, out) in out.iter_mut().enumerate() {
                    let tap = |j: usize| {
                        kernel[c * taps + j] * seen[(first + i + j - keep) * channels + c]
                    };
                    *out = silu((0..taps).map(tap).sum());
                }
                for (head, u) in out[..2 * key_heads * dk].chunks_exact_mut(dk).enumerate() {
                    let squares: f32 = u.iter().map(|x| x * x).sum();
                    let mut scale = 1.0 / (squares + 1e-6).sqrt();
                    if head < key_heads {
                        scale *= 1.0 / (dk as f32).sqrt();
                    }
                    u.iter_mut().for_each(|x| *x *= scale);
                }
                for head in 0..value_heads {
                    let at = row * value_heads + head;
                    decay[at] = (rate[head] * softplus(a[at] + dt_bias[head])).exp();
                    beta[at] = sigmoid(b[at]);
                }
            }
            let settled = (first + span.confirmed as usize) * channels;
            window.copy_from_slice(&seen[settled - keep * channels..settled]);
            let drafts = &seen[settled..];
            log[..drafts.len()].copy_from_slice(drafts);
        }
        Ok(())
    })
}
