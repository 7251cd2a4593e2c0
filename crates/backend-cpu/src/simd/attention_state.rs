//! Softmax over one chunk of keys, and chunks put together.

use super::attention_tile::Seeing;
use super::isa::{Isa, Kernel, LANES};
use super::math::exp_down;

/// Softmax-weighted values of the queries over some keys, not yet divided.
pub(super) struct State<'a> {
    /// `[query][wide]`.
    pub(super) values: &'a mut [f32],
    maxima: &'a mut [f32],
    /// Sums of weights; zero where a query saw nothing yet.
    pub(super) totals: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Numbers of a state of `queries` that are `wide` each, whole vectors.
    pub(super) fn len(queries: usize, wide: usize) -> usize {
        queries * wide + 2 * queries.next_multiple_of(LANES)
    }

    /// In the first numbers of `from`, whatever they hold.
    pub(super) fn new(from: &'a mut [f32], queries: usize, wide: usize) -> Self {
        let (values, rest) = from.split_at_mut(queries * wide);
        let (maxima, totals) = rest.split_at_mut(queries.next_multiple_of(LANES));
        Self { values, maxima: &mut maxima[..queries], totals: &mut totals[..queries] }
    }

    /// Of no keys.
    pub(super) fn clear(&mut self) {
        self.values.fill(0.0);
        self.maxima.fill(f32::NEG_INFINITY);
        self.totals.fill(0.0);
    }

    /// Adds later keys to those of this one.
    pub(super) fn merge<S: Isa>(&mut self, simd: S, later: &State<'_>) {
        simd.call(Merge { all: self, later });
    }
}

struct Merge<'a, 'b, 'c> {
    all: &'a mut State<'b>,
    later: &'a State<'c>,
}

impl Kernel for Merge<'_, '_, '_> {
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
            let a = exp_down(simd, simd.splat(a - max));
            let b = exp_down(simd, simd.splat(b - max));
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

/// Scores of a chunk to softmax weights, relative to their maxima; these and the sums of weights to the state.
pub(super) struct Weigh<'a, 'b> {
    /// Queries that see the chunk.
    pub(super) seeing: &'a [Seeing],
    /// Keys of a block, and what they are rounded up to among the scores.
    pub(super) block: [usize; 2],
    /// `[seeing query][wide]`, whole vectors; minus infinity in the vectors that a query sees in part, where it does
    /// not.
    pub(super) scores: &'a mut [f32],
    pub(super) wide: usize,
    pub(super) state: &'a mut State<'b>,
}

impl Kernel for Weigh<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { seeing, block: [block, keys], scores, wide, state } = self;
        for (&[query, _, start, end], scores) in seeing.iter().zip(scores.chunks_exact_mut(wide)) {
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
                    let weight = exp_down(simd, simd.sub(simd.load(at.as_ptr()), from));
                    sum = simd.add(sum, weight);
                    simd.store(at.as_mut_ptr(), weight);
                }
            }
            state.maxima[query as usize] = max;
            state.totals[query as usize] = simd.sum(sum);
        }
    }
}
