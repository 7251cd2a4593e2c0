//! Attention over the cache. See [`forerun_backend::op::Attention`] for the math.
//!
//! # Layout
//! A task is one row and one key head. Each block of keys and values is read once for all query heads of
//! the group; scores are `[query head][key]` in scratch.
//!
//! # Numerics
//! f32. Scores are sums over lanes as everywhere; a block's weights are summed in lanes by place among
//! the block's visible keys;
//! values are added key by key in ascending order. Blocks lie at absolute positions, so nothing depends on
//! how a prompt was cut or which rows share the call.

use super::Scratch;
use super::attention_block::{Vectors, Weights, mix, score};
use super::codes::{Decode, DenseBf16, DenseF16, DenseF32};
use super::crew::Crew;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::exp;
use crate::Storage;
use crate::pool::Shared;
use crate::reference::{cache_offset, index};
use forerun_backend::BackendError;
use forerun_backend::op::{Attention, CacheLayout};

/// Operands of attention; the sheet checked their sizes.
pub(crate) struct Attend<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a Storage,
    pub(crate) v: &'a Storage,
    /// First element of keys and values in their buffers.
    pub(crate) starts: [usize; 2],
    pub(crate) layout: CacheLayout,
    pub(crate) positions: &'a [u32],
    pub(crate) span_of: &'a [u32],
    pub(crate) tables: &'a [u32],
    pub(crate) table_width: usize,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
}

impl Attend<'_> {
    /// Whether every index of the row is inside what it points into.
    fn check(&self, row: usize) -> Result<(), BackendError> {
        let (op, width, block) = ("attention", self.table_width, self.layout.block);
        let line = index(op, "span_of", self.span_of[row], self.tables.len() / width)?;
        let position = index(op, "positions", self.positions[row], width * block)?;
        let first = Attention::first_key(self.window, position) / block;
        for &id in &self.tables[line * width + first..=line * width + position / block] {
            index(op, "tables", id, self.layout.blocks)?;
        }
        Ok(())
    }
}

struct AttendTask<'a> {
    operands: &'a Attend<'a>,
    out: Shared<'a, f32>,
}

impl Task for AttendTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let op = self.operands;
        let CacheLayout { kv_heads, head_dim, .. } = op.layout;
        let (row, head) = (index / kv_heads, index % kv_heads);
        let group = op.heads / kv_heads;
        let first = (row * op.heads + head * group) * head_dim;
        // SAFETY: a row's key head belongs to one task.
        let out = unsafe { self.out.part(first, group * head_dim) };
        let q = &op.q[first..first + group * head_dim];
        let scratch = scratch.floats();
        match (op.k, op.v) {
            (Storage::F32(k), Storage::F32(v)) => {
                let cache = Cache { decode: DenseF32, k: k.as_ptr().cast(), v: v.as_ptr().cast() };
                simd.call(AttendRow { op, row, head, q, out, scratch, cache });
            }
            (Storage::F16(k), Storage::F16(v)) => {
                let cache = Cache { decode: DenseF16, k: k.as_ptr().cast(), v: v.as_ptr().cast() };
                simd.call(AttendRow { op, row, head, q, out, scratch, cache });
            }
            (Storage::BF16(k), Storage::BF16(v)) => {
                let cache = Cache { decode: DenseBf16, k: k.as_ptr().cast(), v: v.as_ptr().cast() };
                simd.call(AttendRow { op, row, head, q, out, scratch, cache });
            }
            _ => unreachable!("`attention` refused caches of different types"),
        }
    }
}

/// Both caches as bytes.
#[derive(Clone, Copy)]
struct Cache<D> {
    decode: D,
    k: *const u8,
    v: *const u8,
}

/// One row's query heads over the cache of one key head. Made by [`AttendTask`] alone: `attention` has
/// checked the row's block ids.
struct AttendRow<'a, D> {
    op: &'a Attend<'a>,
    row: usize,
    head: usize,
    q: &'a [f32],
    out: &'a mut [f32],
    scratch: &'a mut [f32],
    cache: Cache<D>,
}

impl<D: Decode> Kernel for AttendRow<'_, D> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { op, row, head, q, out, scratch, cache } = self;
        let CacheLayout { block, head_dim, .. } = op.layout;
        let (group, wide) = (q.len() / head_dim, block.next_multiple_of(LANES));
        let (scores, state) = scratch.split_at_mut(group * wide);
        let (maxima, state) = state.split_at_mut(group);
        let (totals, shrinks) = state.split_at_mut(group);
        maxima.fill(f32::NEG_INFINITY);
        totals.fill(0.0);
        out.fill(0.0);
        let keys = op.positions[row] as usize + 1;
        let line = op.span_of[row] as usize * op.table_width;
        let size = D::STEP_BYTES / LANES;
        let first = Attention::first_key(op.window, keys - 1);
        for b in first / block..keys.div_ceil(block) {
            let skipped = first.saturating_sub(b * block);
            let at = cache_offset(&op.layout, op.tables[line + b] as usize, head, skipped);
            let place = |base: *const u8, start: usize| base.wrapping_add((start + at) * size);
            let (k, v) = (place(cache.k, op.starts[0]), place(cache.v, op.starts[1]));
            let count = block.min(keys - b * block) - skipped;
            let decode = cache.decode;
            // SAFETY: the block id was checked, so both caches hold `block - skipped >= count`
            // vectors of `head_dim` from there on.
            unsafe { score(simd, &Vectors { decode, at: k, head_dim, count }, q, scores, wide) };
            for g in 0..group {
                let scores = &mut scores[g * wide..(g + 1) * wide];
                let max = weigh(simd, scores, count, op.scale, maxima[g]);
                let shrink = simd.largest(exp(simd, simd.splat(maxima[g] - max)));
                totals[g] = totals[g].mul_add(shrink, total(simd, scores));
                (maxima[g], shrinks[g]) = (max, shrink);
            }
            let weights = Weights { scores, shrinks: &shrinks[..group], wide };
            // SAFETY: as above.
            unsafe { mix(simd, &Vectors { decode, at: v, head_dim, count }, &weights, out) };
        }
        for (out, total) in out.chunks_exact_mut(head_dim).zip(totals) {
            out.iter_mut().for_each(|o| *o /= *total);
        }
    }
}

/// Scores to softmax weights, relative to the returned maximum, which is at least `before`. Places past
/// `count` get weight zero.
#[inline(always)]
fn weigh<S: Isa>(simd: S, scores: &mut [f32], count: usize, scale: f32, before: f32) -> f32 {
    let scale = simd.splat(scale);
    let mut max = simd.splat(before);
    scores[count..].fill(f32::NEG_INFINITY);
    for at in (0..count).step_by(LANES) {
        let (at, rest) = (scores[at..].as_mut_ptr(), LANES.min(count - at));
        // SAFETY: `rest` scores are left, and `scores` is whole vectors.
        unsafe {
            simd.store_part(at, rest, simd.mul(simd.load(at), scale));
            max = simd.max(simd.load(at), max);
        }
    }
    let max = simd.largest(max);
    for at in (0..scores.len()).step_by(LANES) {
        let at = scores[at..].as_mut_ptr();
        // SAFETY: `scores` is whole vectors.
        unsafe { simd.store(at, exp(simd, simd.sub(simd.load(at), simd.splat(max)))) };
    }
    max
}

/// The sum of whole vectors, in lanes.
#[inline(always)]
fn total<S: Isa>(simd: S, weights: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    for at in weights.chunks_exact(LANES) {
        // SAFETY: a chunk is sixteen f32.
        sum = simd.add(sum, unsafe { simd.load(at.as_ptr()) });
    }
    simd.sum(sum)
}

/// Causal attention of each row.
pub(crate) fn attention(
    crew: &mut Crew,
    operands: &Attend<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let layout = operands.layout;
    let same = matches!(
        (operands.k, operands.v),
        (Storage::F32(_), Storage::F32(_))
            | (Storage::F16(_), Storage::F16(_))
            | (Storage::BF16(_), Storage::BF16(_))
    );
    if !same {
        let what = "keys and values are stored in different types";
        return Err(BackendError::Parameter { op: "attention", what });
    }
    let rows = operands.positions.len();
    for row in 0..rows {
        operands.check(row)?;
    }
    let group = operands.heads / layout.kv_heads;
    crew.reserve(group * (layout.block.next_multiple_of(LANES) + 3), 0);
    crew.run(rows * layout.kv_heads, &AttendTask { operands, out: Shared::new(out) });
    Ok(())
}
