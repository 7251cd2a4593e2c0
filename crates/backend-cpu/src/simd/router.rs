//! The experts of each row. See [`forerun_backend::op::Router`] for the math.

use super::Scratch;
use super::exec_ctx::{ExecCtx, part_of};
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{exp, sigmoid};
use crate::pool::SharedSlice;
use crate::reference::softplus;
use forerun_backend::op::{ExpertGroups, Router, Scores};

/// How rows are routed.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) op: Router,
    pub(crate) logits: &'a [f32],
    /// One number per expert, or empty.
    pub(crate) bias: &'a [f32],
    /// One factor per expert, or empty.
    pub(crate) scales: &'a [f32],
}

struct RouteTask<'a> {
    route: Route<'a>,
    chosen: SharedSlice<'a, u32>,
    weights: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for RouteTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let Route { op, logits, .. } = self.route;
        let Router { experts, top_k, .. } = op;
        let (floats, words) = scratch.parts();
        let (scores, ranks) = floats[..2 * experts].split_at_mut(experts);
        for row in part_of(logits.len() / experts, self.parts, 1, index) {
            let logits = &logits[row * experts..(row + 1) * experts];
            // SAFETY: a row belongs to one task.
            let (chosen, weights) = unsafe {
                (self.chosen.part(row * top_k, top_k), self.weights.part(row * top_k, top_k))
            };
            scores.copy_from_slice(logits);
            simd.call(ScoresOf { kind: op.scores, logits: scores });
            if op.ranks_scores() {
                self.route.rank(scores, ranks, words);
                select(ranks, chosen);
            } else {
                select(logits, chosen);
            }
            self.route.weigh(scores, chosen, weights);
        }
    }
}

impl Route<'_> {
    /// What experts are chosen by: scores with the bias, minus infinity in closed groups.
    fn rank(&self, scores: &[f32], ranks: &mut [f32], words: &mut [u32]) {
        ranks.copy_from_slice(scores);
        ranks.iter_mut().zip(self.bias).for_each(|(rank, bias)| *rank += bias);
        let Some(ExpertGroups { count, open, ranked_by }) = self.op.groups else { return };
        let size = ranks.len() / count;
        let (best, rest) = words.split_at_mut(ranked_by);
        let (order, sums) = rest[..2 * count].split_at_mut(count);
        for (sum, group) in sums.iter_mut().zip(ranks.chunks_exact(size)) {
            select(group, best);
            *sum = best.iter().map(|&expert| group[expert as usize]).sum::<f32>().to_bits();
        }
        select_by(count, |group| f32::from_bits(sums[group]), order);
        for &closed in &order[open..] {
            ranks[closed as usize * size..][..size].fill(f32::NEG_INFINITY);
        }
    }

    /// What the chosen experts weigh.
    fn weigh(&self, scores: &[f32], chosen: &[u32], weights: &mut [f32]) {
        for (weight, &expert) in weights.iter_mut().zip(chosen) {
            *weight = scores[expert as usize];
        }
        if let Some(added) = self.op.renormalise {
            let total = weights.iter().sum::<f32>() + added;
            weights.iter_mut().for_each(|w| *w /= total);
        }
        weights.iter_mut().for_each(|w| *w *= self.op.scale);
        if !self.scales.is_empty() {
            for (weight, &expert) in weights.iter_mut().zip(chosen) {
                *weight *= self.scales[expert as usize];
            }
        }
    }
}

/// The largest scores, best first, ties to the lower index.
pub(crate) fn select(scores: &[f32], chosen: &mut [u32]) {
    select_by(scores.len(), |i| scores[i], chosen);
}

/// The same of `count` scores by number.
fn select_by(count: usize, score: impl Fn(usize) -> f32, chosen: &mut [u32]) {
    let mut filled = 0;
    for candidate in 0..count {
        let own = score(candidate);
        let better = |&other: &u32| own.total_cmp(&score(other as usize)).is_gt();
        let at = chosen[..filled].iter().position(better).unwrap_or(filled);
        if at < chosen.len() {
            filled = (filled + 1).min(chosen.len());
            chosen.copy_within(at..filled - 1, at + 1);
            chosen[at] = candidate as u32;
        }
    }
}

/// Logits to scores, in place.
struct ScoresOf<'a> {
    kind: Scores,
    logits: &'a mut [f32],
}

impl Kernel for ScoresOf<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { kind, logits } = self;
        match kind {
            Scores::Softmax => softmax(simd, logits),
            Scores::Sigmoid => {
                for part in logits.chunks_mut(LANES) {
                    let (at, count) = (part.as_mut_ptr(), part.len());
                    // SAFETY: a chunk is touched as far as it goes.
                    unsafe { simd.store_part(at, count, sigmoid(simd, simd.load_part(at, count))) };
                }
            }
            Scores::SqrtSoftplus => logits.iter_mut().for_each(|l| *l = softplus(*l).sqrt()),
        }
    }
}

#[inline(always)]
fn softmax<S: Isa>(simd: S, logits: &mut [f32]) {
    let max = simd.splat(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut sum = simd.splat(0.0);
    for part in logits.chunks_mut(LANES) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        lanes[..part.len()].copy_from_slice(part);
        // SAFETY: sixteen f32, and a chunk as far as it goes.
        unsafe {
            let power = exp(simd, simd.sub(simd.load(lanes.as_ptr()), max));
            sum = simd.add(sum, power);
            simd.store_part(part.as_mut_ptr(), part.len(), power);
        }
    }
    let sum = simd.splat(simd.sum(sum));
    for part in logits.chunks_mut(LANES) {
        let (at, count) = (part.as_mut_ptr(), part.len());
        // SAFETY: a chunk is touched as far as it goes.
        unsafe { simd.store_part(at, count, simd.div(simd.load_part(at, count), sum)) };
    }
}

/// The top experts of each row and their weights.
pub(crate) fn router(ctx: &mut ExecCtx, route: Route<'_>, chosen: &mut [u32], weights: &mut [f32]) {
    let Router { experts, groups, .. } = route.op;
    ctx.reserve(2 * experts, groups.map_or(0, |groups| groups.ranked_by + 2 * groups.count));
    let parts = ctx.parts(route.logits.len() / experts, 16, 2);
    let (chosen, weights) = (SharedSlice::new(chosen), SharedSlice::new(weights));
    ctx.run(parts, &RouteTask { route, chosen, weights, parts });
}
