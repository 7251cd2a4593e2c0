//! Online softmax: the state of a chunk of keys, and merging chunks.

use super::attention_tile::VisibleQuery;
use super::isa::{Isa, Kernel, LANES};
use super::math::exp_nonpositive;

/// Softmax-weighted values of the queries over some keys, not yet divided by the sum of weights.
pub(crate) struct SoftmaxState<'a> {
    /// `[query][wide]`.
    pub(crate) values: &'a mut [f32],
    /// Largest scores.
    pub(crate) maxima: &'a mut [f32],
    /// Sums of weights; zero where a query saw nothing yet.
    pub(crate) totals: &'a mut [f32],
}

impl<'a> SoftmaxState<'a> {
    /// f32 of a state of `queries` that are `wide` each, whole vectors.
    pub(crate) fn len(queries: usize, wide: usize) -> usize {
        queries * wide + 2 * queries.next_multiple_of(LANES)
    }

    /// A state in the first elements of `from`, whatever they hold.
    pub(crate) fn new(from: &'a mut [f32], queries: usize, wide: usize) -> Self {
        let (values, rest) = from.split_at_mut(queries * wide);
        let (maxima, totals) = rest.split_at_mut(queries.next_multiple_of(LANES));
        Self { values, maxima: &mut maxima[..queries], totals: &mut totals[..queries] }
    }

    /// Resets to no keys.
    pub(crate) fn clear(&mut self) {
        self.values.fill(0.0);
        self.maxima.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
    }

    /// Merges later keys into this state.
    pub(crate) fn merge<S: Isa>(&mut self, simd: S, later: &SoftmaxState<'_>) {
        simd.call(PartialMerge { all: self, later });
    }
}

struct PartialMerge<'a, 'b, 'c> {
    all: &'a mut SoftmaxState<'b>,
    later: &'a SoftmaxState<'c>,
}

impl Kernel for PartialMerge<'_, '_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { all, later } = self;
        let wide = all.values.len() / all.totals.len();
        for query in 0..all.totals.len() {
            if later.totals[query] == 0.0 {
                continue;
            }
            let [a, b] = [all.maxima[query], later.maxima[query]];
            let max = a.max(b);
            let a = exp_nonpositive(simd, simd.splat(a - max));
            let b = exp_nonpositive(simd, simd.splat(b - max));
            let total = simd.mul(a, simd.splat(all.totals[query]));
            let total = simd.fma(b, simd.splat(later.totals[query]), total);
            (all.maxima[query], all.totals[query]) = (max, simd.largest(total));
            let values = all.values[query * wide..][..wide].chunks_exact_mut(LANES);
            for (to, from) in values.zip(later.values[query * wide..].chunks_exact(LANES)) {
                // SAFETY: chunks are sixteen f32.
                unsafe {
                    let old = simd.mul(a, simd.load(to.as_ptr()));
                    simd.store(to.as_mut_ptr(), simd.fma(b, simd.load(from.as_ptr()), old));
                }
            }
        }
    }
}

/// Turns the scores of a chunk into softmax weights relative to their maxima; these, and the sums of weights, go to the
/// state.
pub(crate) struct SoftmaxWeights<'a, 'b> {
    /// Queries that see the chunk.
    pub(crate) visible: &'a [VisibleQuery],
    /// Keys of a block, and the same rounded up to whole vectors.
    pub(crate) block: [usize; 2],
    /// `[visible query][wide]`, whole vectors; minus infinity in the vectors that a query sees in part, where it does
    /// not.
    pub(crate) scores: &'a mut [f32],
    pub(crate) wide: usize,
    pub(crate) state: &'a mut SoftmaxState<'b>,
}

impl Kernel for SoftmaxWeights<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { visible, block: [block, keys], scores, wide, state } = self;
        for (&[query, _, start, end], scores) in visible.iter().zip(scores.chunks_exact_mut(wide)) {
            // Vectors that the query does not see at all would add nothing.
            let (start, last) = (start as usize, end as usize - 1);
            let first = (start / block * keys + start % block) / LANES * LANES;
            let end = ((last / block * keys + last % block) / LANES + 1) * LANES;
            let scores = &mut scores[first..end];
            let mut max = simd.splat(f32::NEG_INFINITY);
            for at in scores.chunks_exact(LANES) {
                // SAFETY: a chunk is sixteen f32.
                max = simd.max(unsafe { simd.load(at.as_ptr()) }, max);
            }
            let max = simd.largest(max);
            let (from, mut sum) = (simd.splat(max), simd.splat(0.0));
            for at in scores.chunks_exact_mut(LANES) {
                // SAFETY: a chunk is sixteen f32.
                unsafe {
                    let weight = exp_nonpositive(simd, simd.sub(simd.load(at.as_ptr()), from));
                    sum = simd.add(sum, weight);
                    simd.store(at.as_mut_ptr(), weight);
                }
            }
            state.maxima[query as usize] = max;
            state.totals[query as usize] = simd.sum(sum);
        }
    }
}
