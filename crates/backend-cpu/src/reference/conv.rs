use super::{silu, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{ShortConv, SpanEntry};

pub(crate) fn short_conv(memory: &mut Memory, op: ShortConv) -> Result<(), BackendError> {
    let weight = memory.matrix(op.weight);
    let (channels, taps) = (weight.rows(), weight.cols());
    let mut kernel = vec![0.0; channels * taps];
    for (c, row) in kernel.chunks_exact_mut(taps).enumerate() {
        weight.decode_row(c, row);
    }
    let mut bias = vec![0.0; channels];
    if let Some(id) = op.bias {
        memory.vector(id, &mut bias);
    }
    memory.lend([op.window, op.log, op.out], |memory, [window, log, out]| {
        let x = memory.f32(op.x);
        let gates = op.gates.map(|gates| [gates.input, gates.output].map(|gate| memory.f32(gate)));
        let (windows, logs) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        let keep = taps - 1;
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("short_conv", &op.spans, words, x.len() / channels)?;
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
            for i in rows.start * channels..rows.end * channels {
                seen.push(gates.map_or(x[i], |[input, _]| x[i] * input[i]));
            }
            let first = keep + span.pending as usize;
            for (i, row) in rows.enumerate() {
                for c in 0..channels {
                    let tap = |j: usize| {
                        kernel[c * taps + j] * seen[(first + i + j - keep) * channels + c]
                    };
                    let sum = (0..taps).map(tap).sum::<f32>() + bias[c];
                    let y = if op.silu { silu(sum) } else { sum };
                    let at = row * channels + c;
                    out[at] = gates.map_or(y, |[_, output]| y * output[at]);
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
