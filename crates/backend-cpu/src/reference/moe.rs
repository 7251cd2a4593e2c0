use super::linear::dot;
use super::{index, silu};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{ExpertRows, Experts, Router};

pub(crate) fn router(memory: &mut Memory, op: Router) -> Result<(), BackendError> {
    memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
        let chosen = chosen.u32_mut(op.chosen).chunks_exact_mut(op.top_k);
        let weights = weights.f32_mut(op.weights).chunks_exact_mut(op.top_k);
        let rows = memory.f32(op.logits).chunks_exact(op.experts);
        for ((logits, chosen), weights) in rows.zip(chosen).zip(weights) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|l| (l - max).exp()).sum();
            // Probabilities order as logits do; a stable sort keeps the lower index first.
            let mut order: Vec<u32> = (0..op.experts as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            for ((chosen, weight), &expert) in chosen.iter_mut().zip(&mut *weights).zip(&order) {
                *chosen = expert;
                *weight = (logits[expert as usize] - max).exp() / sum;
            }
            if op.renormalise {
                let total: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= total);
            }
        }
        Ok(())
    })
}

pub(crate) fn experts(memory: &mut Memory, op: Experts) -> Result<(), BackendError> {
    memory.lend([op.hidden, op.partial, op.out], |memory, [hidden, partial, out]| {
        let (x, chosen) = (memory.f32(op.x), memory.u32(op.chosen));
        let (hidden, partial) = (hidden.f32_mut(op.hidden), partial.f32_mut(op.partial));
        let mut line = vec![0.0; op.dim.max(op.ffn)];
        let mut product = |at: ExpertRows, expert: usize, channel: usize, x: &[f32]| {
            let line = &mut line[..x.len()];
            memory.matrix(at.weight).decode_row(at.first + expert * at.stride + channel, line);
            dot(x, line)
        };
        let picks = hidden.chunks_exact_mut(op.ffn).zip(partial.chunks_exact_mut(op.dim));
        for (pick, (hidden, partial)) in picks.enumerate() {
            let row = pick / op.top_k;
            let x = &x[row * op.dim..(row + 1) * op.dim];
            let expert = index("experts", "chosen", chosen[pick], op.experts)?;
            for (channel, hidden) in hidden.iter_mut().enumerate() {
                let gate = product(op.gate, expert, channel, x);
                *hidden = silu(gate) * product(op.up, expert, channel, x);
            }
            for (channel, partial) in partial.iter_mut().enumerate() {
                *partial = product(op.down, expert, channel, hidden);
            }
        }
        let weights = memory.f32(op.weights);
        for (i, out) in out.f32_mut(op.out).iter_mut().enumerate() {
            let (row, channel) = (i / op.dim, i % op.dim);
            let picks = row * op.top_k..(row + 1) * op.top_k;
            *out += picks.map(|p| weights[p] * partial[p * op.dim + channel]).sum::<f32>();
        }
        Ok(())
    })
}
