use super::linear::dot;
use super::{gated, index, sigmoid, softplus};
use crate::Memory;
use forerun_backend::op::{ExpertGroups, ExpertRows, Experts, HashRouter, Router, Scores, Store};
use forerun_backend::{BackendError, WeightId};

/// Indices of `scores`, the largest score first; of equal ones the lower index.
pub(super) fn best_first(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    // A stable sort keeps the lower index first.
    order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    order
}

/// What a router's logits become.
#[derive(Clone, Copy)]
struct RowScores {
    kind: Scores,
    /// The largest logit and the sum of a softmax.
    max: f32,
    sum: f32,
}

impl RowScores {
    fn new(kind: Scores, logits: &[f32]) -> Self {
        let (mut max, mut sum) = (0.0, 1.0);
        if kind == Scores::Softmax {
            max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            sum = logits.iter().map(|l| (l - max).exp()).sum();
        }
        Self { kind, max, sum }
    }

    fn of(&self, logit: f32) -> f32 {
        match self.kind {
            Scores::Softmax => (logit - self.max).exp() / self.sum,
            Scores::Sigmoid => sigmoid(logit),
            Scores::SqrtSoftplus => softplus(logit).sqrt(),
        }
    }
}

fn scores_of(kind: Scores, logits: &[f32]) -> Vec<f32> {
    let scores = RowScores::new(kind, logits);
    logits.iter().map(|&logit| scores.of(logit)).collect()
}

/// Ranks experts of all but the open groups below all others.
fn close_groups(groups: ExpertGroups, ranks: &mut [f32]) {
    let size = groups.size(ranks.len());
    let sum = |group: &[f32]| -> f32 {
        best_first(group)[..groups.ranked_by].iter().map(|&expert| group[expert as usize]).sum()
    };
    let sums: Vec<f32> = ranks.chunks_exact(size).map(sum).collect();
    for &closed in &best_first(&sums)[groups.open..] {
        ranks[closed as usize * size..][..size].fill(f32::NEG_INFINITY);
    }
}

pub(crate) fn router(memory: &mut Memory, op: Router) -> Result<(), BackendError> {
    let vector = |id: Option<WeightId>, absent: f32| {
        let mut numbers = vec![absent; op.experts];
        if let Some(id) = id {
            memory.vector(id, &mut numbers);
        }
        numbers
    };
    let (bias, scales) = (vector(op.bias, 0.0), vector(op.expert_scale, 1.0));
    memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
        let chosen = chosen.u32_mut(op.chosen).chunks_exact_mut(op.top_k);
        let weights = weights.f32_mut(op.weights).chunks_exact_mut(op.top_k);
        let rows = memory.f32(op.logits).chunks_exact(op.experts);
        for ((logits, chosen), weights) in rows.zip(chosen).zip(weights) {
            let scores = scores_of(op.scores, logits);
            let mut ranks = logits.to_vec();
            if op.ranks_scores() {
                ranks = scores.iter().zip(&bias).map(|(score, bias)| score + bias).collect();
            }
            if let Some(groups) = op.groups {
                close_groups(groups, &mut ranks);
            }
            chosen.copy_from_slice(&best_first(&ranks)[..op.top_k]);
            for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
                *weight = scores[expert as usize];
            }
            if let Some(added) = op.renormalise {
                let total = weights.iter().sum::<f32>() + added;
                weights.iter_mut().for_each(|w| *w /= total);
            }
            for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
                *weight = *weight * op.scale * scales[expert as usize];
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
                *hidden = gated(op.activation, gate, product(op.up, expert, channel, x));
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

pub(crate) fn hash_router(memory: &mut Memory, op: HashRouter) -> Result<(), BackendError> {
    memory.lend([op.chosen, op.weights], |memory, [chosen, weights]| {
        let table = memory.matrix(op.table);
        let chosen = chosen.u32_mut(op.chosen).chunks_exact_mut(op.top_k);
        let weights = weights.f32_mut(op.weights).chunks_exact_mut(op.top_k);
        let rows = memory.u32(op.ids).iter().zip(memory.f32(op.logits).chunks_exact(op.experts));
        for (((&id, logits), chosen), weights) in rows.zip(chosen).zip(weights) {
            // The table's line, which the weights replace.
            table.decode_row(index("hash_router", "ids", id, table.rows())?, weights);
            let scores = RowScores::new(op.scores, logits);
            for (chosen, weight) in chosen.iter_mut().zip(&mut *weights) {
                let expert = *weight;
                let whole = expert >= 0.0 && expert < op.experts as f32 && expert.fract() == 0.0;
                if !whole {
                    let what = "the table names an expert that there is not";
                    return Err(BackendError::Parameter { op: "hash_router", what });
                }
                *chosen = expert as u32;
                *weight = scores.of(logits[expert as usize]);
            }
            if let Some(added) = op.renormalise {
                let total = weights.iter().sum::<f32>() + added;
                weights.iter_mut().for_each(|w| *w /= total);
            }
            weights.iter_mut().for_each(|w| *w *= op.scale);
        }
        Ok(())
    })
}
