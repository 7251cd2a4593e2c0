use super::{index, silu};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{Conv, SpanEntry, Spans};

/// Reads a span entry and checks what it points at.
pub(crate) fn span_entry(
    op: &'static str,
    spans: &Spans,
    words: &[u32],
    rows: usize,
) -> Result<SpanEntry, BackendError> {
    let entry = SpanEntry::from_words(words);
    index(op, "spans.slot", entry.slot, spans.slots)?;
    index(op, "spans.pending", entry.pending, spans.log_rows + 1)?;
    index(op, "spans.certain", entry.certain, entry.rows as usize + 1)?;
    index(op, "spans.guesses", entry.rows - entry.certain, spans.log_rows + 1)?;
    let end = entry.first_row.saturating_add(entry.rows);
    index(op, "spans.rows", end, rows + 1)?;
    Ok(entry)
}

pub(crate) fn conv(memory: &mut Memory, op: Conv) -> Result<(), BackendError> {
    let weight = memory.matrix(op.weight);
    let (channels, taps) = (weight.rows(), weight.cols());
    let mut kernel = vec![0.0; channels * taps];
    for (c, row) in kernel.chunks_exact_mut(taps).enumerate() {
        weight.decode_row(c, row);
    }
    memory.lend([op.window, op.log, op.out], |memory, [window, log, out]| {
        let x = memory.f32(op.x);
        let (window, log) = (window.f32_mut(op.window), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        let keep = taps - 1;
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("conv", &op.spans, words, x.len() / channels)?;
            let slot = span.slot as usize;
            let window = &mut window[slot * keep * channels..(slot + 1) * keep * channels];
            let log_len = op.spans.log_rows * channels;
            let log = &mut log[slot * log_len..(slot + 1) * log_len];
            if span.start == 0 {
                window.fill(0.0);
            }
            let rows = span.first_row as usize..(span.first_row + span.rows) as usize;
            let certain = span.certain as usize;
            // Everything the span can see, oldest first: window, pending log rows, its own rows.
            let mut seen = window.to_vec();
            seen.extend_from_slice(&log[..span.pending as usize * channels]);
            seen.extend_from_slice(&x[rows.start * channels..rows.end * channels]);
            let first = keep + span.pending as usize;
            for (i, row) in rows.enumerate() {
                for c in 0..channels {
                    let tap = |j: usize| {
                        kernel[c * taps + j] * seen[(first + i + j - keep) * channels + c]
                    };
                    let sum: f32 = (0..taps).map(tap).sum();
                    out[row * channels + c] = silu(sum);
                }
            }
            let settled = (first + certain) * channels;
            window.copy_from_slice(&seen[settled - keep * channels..settled]);
            let guesses = &seen[settled..];
            log[..guesses.len()].copy_from_slice(guesses);
        }
        Ok(())
    })
}
