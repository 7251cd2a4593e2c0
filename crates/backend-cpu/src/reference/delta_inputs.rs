use super::{short_conv, sigmoid, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{DeltaGates, DeltaInputs, DeltaShape, SpanEntry};

/// `ln(1 + eˣ)`, the identity where that is exact in f32.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

pub(crate) fn delta_inputs(memory: &mut Memory, op: DeltaInputs) -> Result<(), BackendError> {
    let (conv, gates) = op.parts();
    short_conv(memory, conv)?;
    delta_gates(memory, gates)
}

pub(crate) fn delta_gates(memory: &mut Memory, op: DeltaGates) -> Result<(), BackendError> {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let channels = op.shape.channels();
    let (mut rate, mut dt_bias) = (vec![0.0; value_heads], vec![0.0; value_heads]);
    memory.vector(op.rate, &mut rate);
    memory.vector(op.dt_bias, &mut dt_bias);
    memory.lend([op.qkv, op.decay, op.beta], |memory, [qkv, decay, beta]| {
        let (a, b) = (memory.f32(op.a), memory.f32(op.b));
        let (qkv, decay, beta) =
            (qkv.f32_mut(op.qkv), decay.f32_mut(op.decay), beta.f32_mut(op.beta));
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("delta_gates", &op.spans, words, qkv.len() / channels)?;
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
                for head in 0..value_heads {
                    let at = row * value_heads + head;
                    decay[at] = (rate[head] * softplus(a[at] + dt_bias[head])).exp();
                    beta[at] = op.beta_scale * sigmoid(b[at]);
                }
            }
        }
        Ok(())
    })
}
