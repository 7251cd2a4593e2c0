//! Choosing entries, and attention to what was chosen.
//!
//! # Numerics
//! f32. A score is one sum over a head in lanes; keys are taken in the order given, so that a row's bits do not depend
//! on others.

use super::Scratch;
use super::exec_ctx::{ExecCtx, part_of};
use super::isa::{Isa, Kernel, LANES, Task};
use crate::kernels::OpResult;
use crate::pool::SharedSlice;
use crate::reference::{EntryRows, SparseRows};
use forerun_backend::op::ChooseEntries;

/// A task with fewer entries costs more to dispatch than it saves.
const SMALLEST: usize = 256;

/// `Σ aᵢ·bᵢ` in lanes.
struct Dot<'a>(&'a [f32], &'a [f32]);

impl Kernel for Dot<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> f32 {
        let Self(a, b) = self;
        assert_eq!(a.len(), b.len(), "both sides have the same length");
        let mut sum = simd.splat(0.0);
        for at in (0..a.len()).step_by(LANES) {
            let count = LANES.min(a.len() - at);
            // SAFETY: `count` elements are left in both.
            unsafe {
                let a = simd.load_part(a.as_ptr().add(at), count);
                sum = simd.fma(a, simd.load_part(b.as_ptr().add(at), count), sum);
            }
        }
        simd.sum(sum)
    }
}

/// `out += factor · x`.
struct AddTimes<'a> {
    factor: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for AddTimes<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { factor, x, out } = self;
        assert_eq!(x.len(), out.len(), "both sides have the same length");
        let factor = simd.splat(factor);
        for at in (0..x.len()).step_by(LANES) {
            let count = LANES.min(x.len() - at);
            // SAFETY: `count` elements are left in both.
            unsafe {
                let to = out.as_mut_ptr().add(at);
                let x = simd.load_part(x.as_ptr().add(at), count);
                simd.store_part(to, count, simd.fma(factor, x, simd.load_part(to, count)));
            }
        }
    }
}

/// Softmax over scores, perhaps with a sink's among them, and the sum of values it weighs. `scores` are used up.
struct Mix<'a, V> {
    scores: &'a mut [f32],
    sink: Option<f32>,
    value: V,
    out: &'a mut [f32],
}

impl<'a, V: Fn(usize) -> &'a [f32]> Mix<'_, V> {
    fn run<S: Isa>(self, simd: S) {
        let Self { scores, sink, value, out } = self;
        let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
        out.fill(0.0);
        for (i, score) in scores.iter().enumerate() {
            let share = (score - max).exp();
            sum += share;
            simd.call(AddTimes { factor: share, x: value(i), out: &mut *out });
        }
        out.iter_mut().for_each(|out| *out /= sum);
    }
}

struct ScoreTask<'a> {
    rows: &'a EntryRows<'a>,
    row: usize,
    line: &'a [u32],
    scores: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for ScoreTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let part = part_of(self.scores.len(), self.parts, 1, index);
        // SAFETY: parts of a partition are disjoint.
        let scores = unsafe { self.scores.part(part.start, part.len()) };
        for (entry, score) in part.zip(scores) {
            // An entry that is not there was refused before the task began.
            let Ok(entry) = self.rows.entry(self.line, entry) else { continue };
            *score = self.rows.score(self.row, entry, |a, b| simd.call(Dot(a, b)));
        }
    }
}

/// The best entries of each row.
pub(crate) fn choose_entries(
    ctx: &mut ExecCtx,
    rows: &EntryRows<'_>,
    room: &mut Scratch,
    most: usize,
    chosen: &mut [u32],
) -> OpResult {
    for (row, chosen) in chosen.chunks_exact_mut(most).enumerate() {
        chosen.fill(ChooseEntries::NONE);
        let (complete, line) = rows.entries_of(row)?;
        if complete <= most {
            (0..complete as u32).zip(chosen).for_each(|(entry, to)| *to = entry);
            continue;
        }
        (0..complete).try_for_each(|entry| rows.entry(line, entry).map(|_| ()))?;
        room.reserve(complete, complete);
        let (scores, order) = room.parts();
        let (scores, order) = (&mut scores[..complete], &mut order[..complete]);
        let parts = ctx.parts(complete, SMALLEST, 1);
        ctx.run(
            parts,
            &ScoreTask { rows, row, line, scores: SharedSlice::new(&mut *scores), parts },
        );
        ChooseEntries::select(scores, most, order);
        order[..most].sort_unstable();
        chosen.copy_from_slice(&order[..most]);
    }
    Ok(())
}

/// Queries that share a key head, of all rows.
pub(crate) struct SparseQueries<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
}

struct SparseTask<'a> {
    rows: &'a SparseRows<'a>,
    queries: SparseQueries<'a>,
    /// Of each row: how many keys it sees, then their places.
    keys: &'a [u32],
    most: usize,
    out: SharedSlice<'a, f32>,
}

impl Task for SparseTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let SparseQueries { q, heads, kv_heads, dim, scale } = self.queries;
        let (row, head) = (index / kv_heads, index % kv_heads);
        let keys = &self.keys[row * (self.most + 1)..(row + 1) * (self.most + 1)];
        let keys = &keys[1..=keys[0] as usize];
        let (k, rest) = scratch.floats().split_at_mut(keys.len() * dim);
        let (v, rest) = rest.split_at_mut(keys.len() * dim);
        let scores = &mut rest[..keys.len()];
        self.rows.gather_to(keys, head, [&mut *k, &mut *v]);
        let (k, v) = (&*k, &*v);
        let group = heads / kv_heads;
        for i in 0..group {
            let at = (row * heads + head * group + i) * dim;
            let q = &q[at..at + dim];
            for (score, key) in scores.iter_mut().zip(k.chunks_exact(dim)) {
                *score = scale * simd.call(Dot(q, key));
            }
            // SAFETY: a key head's queries of a row belong to one task.
            let out = unsafe { self.out.part(at, dim) };
            let value = |key: usize| &v[key * dim..(key + 1) * dim];
            Mix { scores: &mut *scores, sink: None, value, out }.run(simd);
        }
    }
}

/// Attention of each row to the keys that were chosen for it.
pub(crate) fn sparse_attention(
    ctx: &mut ExecCtx,
    rows: &SparseRows<'_>,
    queries: SparseQueries<'_>,
    room: &mut Scratch,
    out: &mut [f32],
) -> OpResult {
    let (count, most) = (rows.positions.len(), rows.most_keys());
    room.reserve(0, count * (most + 1));
    let (_, keys) = room.parts();
    for (row, keys) in keys.chunks_exact_mut(most + 1).enumerate().take(count) {
        keys[0] = rows.keys_of(row, &mut keys[1..])? as u32;
    }
    ctx.reserve(most * (2 * queries.dim + 1), 0);
    let tasks = count * queries.kv_heads;
    ctx.run(tasks, &SparseTask { rows, queries, keys, most, out: SharedSlice::new(out) });
    Ok(())
}

struct CompressedTask<'a> {
    q: &'a [f32],
    keys: &'a [&'a [f32]],
    sinks: &'a [f32],
    scale: f32,
    dim: usize,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for CompressedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let dim = self.dim;
        let scores = &mut scratch.floats()[..self.keys.len()];
        for head in part_of(self.sinks.len(), self.parts, 1, index) {
            let q = &self.q[head * dim..(head + 1) * dim];
            for (score, key) in scores.iter_mut().zip(self.keys) {
                *score = self.scale * simd.call(Dot(q, key));
            }
            // SAFETY: a head belongs to one task.
            let out = unsafe { self.out.part(head * dim, dim) };
            let (sink, value) = (Some(self.sinks[head]), |key: usize| self.keys[key]);
            Mix { scores: &mut *scores, sink, value, out }.run(simd);
        }
    }
}

/// Attention of one row's heads to the same keys, which are their own values.
pub(crate) fn attend_to(
    ctx: &mut ExecCtx,
    [q, sinks]: [&[f32]; 2],
    keys: &[&[f32]],
    scale: f32,
    out: &mut [f32],
) {
    let dim = out.len() / sinks.len();
    ctx.reserve(keys.len(), 0);
    let parts = ctx.parts(sinks.len(), (1 << 15) / (keys.len() * dim).max(1), 1);
    let out = SharedSlice::new(out);
    ctx.run(parts, &CompressedTask { q, keys, sinks, scale, dim, out, parts });
}
