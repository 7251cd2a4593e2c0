use super::linear::dot;
use super::{activate, index};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{ExpertRows, Experts, Router, Store};

/// Indices of `scores`, the largest score first; of equal ones the lower index.
pub(super) fn best_first(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    // A stable sort keeps the lower index first.
    order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    order
}

pub(crate) fn router(memory: &mut Memory, op: Router) -> Result<(), BackendError> {
    let mut scales = vec![1.0; op.experts];
    if let Some(id) = op.expert_scale {
        memory.vector(id, &mut scales);
    }
    memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
        let chosen = chosen.u32_mut(op.chosen).chunks_exact_mut(op.top_k);
        let weights = weights.f32_mut(op.weights).chunks_exact_mut(op.top_k);
        let rows = memory.f32(op.logits).chunks_exact(op.experts);
        for ((logits, chosen), weights) in rows.zip(chosen).zip(weights) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|l| (l - max).exp()).sum();
            // Probabilities order as logits do.
            let order = best_first(logits);
            for ((chosen, weight), &expert) in chosen.iter_mut().zip(&mut *weights).zip(&order) {
                *chosen = expert;
                *weight = (logits[expert as usize] - max).exp() / sum;
            }
            if op.renormalise {
                let total: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|w| *w /= total);
            }
            for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
                *weight *= scales[expert as usize];
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
        let assignments = hidden.chunks_exact_mut(op.ffn).zip(partial.chunks_exact_mut(op.dim));
        for (assignment, (hidden, partial)) in assignments.enumerate() {
            let row = assignment / op.top_k;
            let x = &x[row * op.dim..(row + 1) * op.dim];
            let expert = index("experts", "chosen", chosen[assignment], op.experts)?;
            for (channel, hidden) in hidden.iter_mut().enumerate() {
                let gate = product(op.gate, expert, channel, x);
                *hidden = activate(op.activation, gate) * product(op.up, expert, channel, x);
            }
            for (channel, partial) in partial.iter_mut().enumerate() {
                *partial = product(op.down, expert, channel, hidden);
            }
        }
        let weights = memory.f32(op.weights);
        for (i, out) in out.f32_mut(op.out).iter_mut().enumerate() {
            let (row, channel) = (i / op.dim, i % op.dim);
            let assignments = row * op.top_k..(row + 1) * op.top_k;
            let sum: f32 = assignments.map(|p| weights[p] * partial[p * op.dim + channel]).sum();
            *out = if op.store == Store::Add { *out + sum } else { sum };
        }
        Ok(())
    })
}
