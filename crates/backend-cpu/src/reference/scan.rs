use super::delta_inputs::softplus;
use super::norm::inverse_rms;
use super::{silu, span_entry};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{GatedGroupNorm, ScanGates, ScanShape, SelectiveScan, SpanEntry};

pub(crate) fn scan_gates(memory: &mut Memory, op: ScanGates) -> Result<(), BackendError> {
    let (mut rate, mut bias) = (vec![0.0; op.heads], vec![0.0; op.heads]);
    memory.vector(op.rate, &mut rate);
    memory.vector(op.bias, &mut bias);
    memory.lend([op.step, op.decay], |_, [step, decay]| {
        let rows = step.f32_mut(op.step).chunks_exact_mut(op.heads);
        for (step, decay) in rows.zip(decay.f32_mut(op.decay).chunks_exact_mut(op.heads)) {
            for head in 0..op.heads {
                step[head] = softplus(step[head] + bias[head]).clamp(op.least, op.most);
                decay[head] = (rate[head] * step[head]).exp();
            }
        }
        Ok(())
    })
}

/// What one row does to one head's memory.
struct RowWrite<'a> {
    x: &'a [f32],
    b: &'a [f32],
    step: f32,
    decay: f32,
}

/// One step of the scan, one head; `state` is `[width][state]`.
fn advance(state: &mut [f32], write: &RowWrite<'_>) {
    for (line, &x) in state.chunks_exact_mut(write.b.len()).zip(write.x) {
        for (s, &b) in line.iter_mut().zip(write.b) {
            *s = write.decay * *s + write.step * x * b;
        }
    }
}

pub(crate) fn selective_scan(memory: &mut Memory, op: SelectiveScan) -> Result<(), BackendError> {
    let shape = op.shape;
    let ScanShape { heads, groups, width, state: kept } = shape;
    let (channels, log_len, b_at) = (shape.channels(), shape.log_len(), shape.inner());
    let mut skip = vec![0.0; heads];
    memory.vector(op.skip, &mut skip);
    memory.lend([op.state, op.log, op.out], |memory, [state, log, out]| {
        let (xbc, step, decay) = (memory.f32(op.xbc), memory.f32(op.step), memory.f32(op.decay));
        let (states, logs) = (state.f32_mut(op.state), log.f32_mut(op.log));
        let out = out.f32_mut(op.out);
        for words in memory.u32(op.spans.table).chunks_exact(SpanEntry::WORDS) {
            let span = span_entry("selective_scan", &op.spans, words, step.len() / heads)?;
            let slot = span.slot as usize;
            let log =
                &mut logs[slot * op.spans.log_rows * log_len..][..op.spans.log_rows * log_len];
            for head in 0..heads {
                let group = head / (heads / groups) * kept;
                let state = &mut states[(slot * heads + head) * width * kept..][..width * kept];
                if span.start == 0 {
                    state.fill(0.0);
                }
                for line in log.chunks_exact(log_len).take(span.pending as usize) {
                    advance(state, &logged(line, &shape, head));
                }
                let mut draft = Vec::new();
                for i in 0..span.rows as usize {
                    let row = span.first_row as usize + i;
                    let line = &xbc[row * channels..(row + 1) * channels];
                    let write = RowWrite {
                        x: &line[head * width..(head + 1) * width],
                        b: &line[b_at + group..][..kept],
                        step: step[row * heads + head],
                        decay: decay[row * heads + head],
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
                    let c = &line[b_at + groups * kept + group..][..kept];
                    let out = &mut out[(row * heads + head) * width..][..width];
                    for ((o, line), &x) in out.iter_mut().zip(state.chunks_exact(kept)).zip(write.x)
                    {
                        let read: f32 = line.iter().zip(c).map(|(s, c)| s * c).sum();
                        *o = read + skip[head] * x;
                    }
                }
            }
            for i in span.confirmed as usize..span.rows as usize {
                let row = span.first_row as usize + i;
                let line = &mut log[(i - span.confirmed as usize) * log_len..][..log_len];
                let (inputs, gates) = line.split_at_mut(b_at + groups * kept);
                inputs.copy_from_slice(&xbc[row * channels..][..inputs.len()]);
                gates[..heads].copy_from_slice(&step[row * heads..][..heads]);
                gates[heads..].copy_from_slice(&decay[row * heads..][..heads]);
            }
        }
        Ok(())
    })
}

/// One head's write from a log row `[x | B | step | decay]`.
fn logged<'a>(line: &'a [f32], shape: &ScanShape, head: usize) -> RowWrite<'a> {
    let ScanShape { heads, groups, width, state } = *shape;
    let (inputs, gates) = line.split_at(shape.inner() + groups * state);
    RowWrite {
        x: &inputs[head * width..(head + 1) * width],
        b: &inputs[shape.inner() + head / (heads / groups) * state..][..state],
        step: gates[head],
        decay: gates[heads + head],
    }
}

pub(crate) fn gated_group_norm(
    memory: &mut Memory,
    op: GatedGroupNorm,
) -> Result<(), BackendError> {
    let mut weight = vec![0.0; memory.matrix(op.weight).cols()];
    memory.vector(op.weight, &mut weight);
    memory.lend([op.x], |memory, [x]| {
        let gates = memory.f32(op.gate).chunks_exact(op.dim);
        let groups = weight.chunks_exact(op.dim).cycle();
        let heads = x.f32_mut(op.x).chunks_exact_mut(op.dim).zip(gates).zip(groups);
        for ((x, gate), weight) in heads {
            x.iter_mut().zip(gate).for_each(|(x, &gate)| *x *= silu(gate));
            let scale = inverse_rms(x, op.eps);
            x.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x * scale * w);
        }
        Ok(())
    })
}
