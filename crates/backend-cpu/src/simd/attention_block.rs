//! The two products of attention within one block of keys: queries with keys, weights with values.
//!
//! # Numerics
//! A score is a sum in lanes ([`super::tile`]). A mixed value is its old content times the shrink factor, then one
//! fused multiply-add per key in ascending order. How many heads share registers does not enter a result.

use super::codes::Decode;
use super::isa::{Isa, LANES};
use super::tile::{Channels, accumulate, fold, steps};
use std::array::from_fn;

/// `count` stored vectors of `head_dim` in a row.
pub(super) struct Vectors<D> {
    pub(super) decode: D,
    pub(super) at: *const u8,
    pub(super) head_dim: usize,
    pub(super) count: usize,
}

impl<D: Decode> Vectors<D> {
    const SIZE: usize = D::STEP_BYTES / LANES;

    #[inline(always)]
    fn vector(&self, i: usize) -> *const u8 {
        self.at.wrapping_add(i * self.head_dim * Self::SIZE)
    }

    /// Lanes `at..at + lanes` of vector `i`, zeros above.
    ///
    /// # Safety
    /// The vectors are there, and the lanes are inside `head_dim`.
    #[inline(always)]
    unsafe fn load<S: Isa>(&self, simd: S, i: usize, at: usize, lanes: usize) -> S::F {
        let from = self.vector(i).wrapping_add(at * Self::SIZE);
        let group = self.decode.group(simd, 1.0, 0.0);
        // SAFETY: the caller's promise; a partial vector is decoded from a copy.
        unsafe {
            if lanes == LANES {
                return self.decode.weights(simd, from, group);
            }
            let mut copy = [0_u8; 64];
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), lanes * Self::SIZE);
            self.decode.weights(simd, copy.as_ptr(), group)
        }
    }
}

/// Scores as `[head][key]`, `wide` from head to head.
struct Table<'a> {
    scores: &'a mut [f32],
    wide: usize,
}

/// `scores[g·wide + key] = q[g]·k[key]` for all queries and keys.
///
/// # Safety
/// The vectors are there.
#[inline(always)]
pub(super) unsafe fn score<S: Isa, D: Decode>(
    simd: S,
    keys: &Vectors<D>,
    q: &[f32],
    scores: &mut [f32],
    wide: usize,
) {
    let group = q.len() / keys.head_dim;
    let together = if group > 2 && S::TILE.1 == 4 { 4 } else { 2 };
    for first in (0..group).step_by(together) {
        // SAFETY: the caller's promise.
        unsafe {
            match together {
                4 => score_heads::<S, D, 4, 4>(simd, keys, q, first, Table { scores, wide }),
                _ => score_heads::<S, D, 2, 2>(simd, keys, q, first, Table { scores, wide }),
            }
        }
    }
}

/// The scores of up to `M` heads from `first` on, `N` keys at a time; the last head or key is repeated where
/// there are no more.
///
/// # Safety
/// The vectors are there.
#[inline(always)]
unsafe fn score_heads<S: Isa, D: Decode, const M: usize, const N: usize>(
    simd: S,
    keys: &Vectors<D>,
    q: &[f32],
    first: usize,
    table: Table<'_>,
) {
    let dim = keys.head_dim;
    let heads = q.len() / dim;
    let x = from_fn(|m| q[(first + m).min(heads - 1) * dim..].as_ptr());
    let nothing = [0.0_f32];
    for key in (0..keys.count).step_by(N) {
        let channels = Channels {
            decode: keys.decode,
            rows: from_fn(|n| keys.vector((key + n).min(keys.count - 1))),
            ahead: N * dim * Vectors::<D>::SIZE,
            tail_bytes: dim % LANES * Vectors::<D>::SIZE,
            group_steps: usize::MAX,
            scales: [nothing.as_ptr(); N],
            offsets: [nothing.as_ptr(); N],
        };
        let mut sums: [[S::F; N]; M] = [[simd.splat(0.0); N]; M];
        // SAFETY: a query has `dim` numbers, and so has a key by the caller's promise.
        unsafe { accumulate(simd, &mut sums, x, dim, &channels, 0..steps(dim)) };
        let sums = fold(simd, &sums);
        for (m, sums) in sums.iter().enumerate().take(heads - first) {
            let at = (first + m) * table.wide + key;
            let count = N.min(keys.count - key);
            table.scores[at..at + count].copy_from_slice(&sums[..count]);
        }
    }
}

/// Softmax weights as `[head][key]`, `wide` from head to head, and what each head's old sum is worth.
pub(super) struct Weights<'a> {
    pub(super) scores: &'a [f32],
    pub(super) shrinks: &'a [f32],
    pub(super) wide: usize,
}

/// `out[g] ← shrink[g]·out[g] + Σ_key weight[g][key]·v[key]`.
///
/// # Safety
/// The vectors are there.
#[inline(always)]
pub(super) unsafe fn mix<S: Isa, D: Decode>(
    simd: S,
    values: &Vectors<D>,
    weights: &Weights<'_>,
    out: &mut [f32],
) {
    let (dim, heads) = (values.head_dim, weights.shrinks.len());
    let (together, wide) = if S::TILE.1 == 4 { (4, 4) } else { (2, 2) };
    for head in (0..heads).step_by(together) {
        let mut at = 0;
        while at < dim {
            let whole = dim - at >= wide * LANES;
            // SAFETY: the caller's promise; `at` and the width stay inside `dim`.
            unsafe {
                match (whole, wide) {
                    (true, 4) => mix_heads::<S, D, 4, 4>(simd, values, weights, out, [head, at]),
                    (true, _) => mix_heads::<S, D, 2, 2>(simd, values, weights, out, [head, at]),
                    (false, 4) => mix_heads::<S, D, 4, 1>(simd, values, weights, out, [head, at]),
                    (false, _) => mix_heads::<S, D, 2, 1>(simd, values, weights, out, [head, at]),
                }
            }
            at += if whole { wide * LANES } else { LANES };
        }
    }
}

/// Up to `M` heads from `head` on, `W` vectors from element `at` on; with `W = 1` the vector may be partial.
///
/// # Safety
/// The vectors are there and reach to `at + 16·W`, or to `head_dim` with `W = 1`.
#[inline(always)]
unsafe fn mix_heads<S: Isa, D: Decode, const M: usize, const W: usize>(
    simd: S,
    values: &Vectors<D>,
    weights: &Weights<'_>,
    out: &mut [f32],
    [head, at]: [usize; 2],
) {
    let (dim, last) = (values.head_dim, weights.shrinks.len() - 1);
    let lanes = if W == 1 { LANES.min(dim - at) } else { LANES };
    let heads: [usize; M] = from_fn(|m| (head + m).min(last));
    let rows = heads.map(|h| weights.scores[h * weights.wide..][..values.count].as_ptr());
    // SAFETY: `lanes` elements from each place on lie in `out` and in every vector.
    unsafe {
        let mut acc = [[simd.splat(0.0); W]; M];
        for m in 0..M {
            let shrink = simd.splat(weights.shrinks[heads[m]]);
            for w in 0..W {
                let from = heads[m] * dim + at + w * LANES;
                let old = simd.load_part(out[from..from + lanes].as_ptr(), lanes);
                acc[m][w] = simd.mul(old, shrink);
            }
        }
        for key in 0..values.count {
            let mut v = [simd.splat(0.0); W];
            for w in 0..W {
                v[w] = values.load(simd, key, at + w * LANES, lanes);
            }
            for m in 0..M {
                let weight = simd.splat(*rows[m].add(key));
                for w in 0..W {
                    acc[m][w] = simd.fma(weight, v[w], acc[m][w]);
                }
            }
        }
        for m in 0..M.min(last + 1 - head) {
            for w in 0..W {
                let to = (head + m) * dim + at + w * LANES;
                simd.store_part(out[to..to + lanes].as_mut_ptr(), lanes, acc[m][w]);
            }
        }
    }
}
