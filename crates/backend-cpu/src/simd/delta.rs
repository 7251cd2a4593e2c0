//! The gated delta rule. See [`forerun_backend::op::DeltaRule`] for the math, and [`forerun_backend::op::KdaRule`] for
//! the rule with a decay of each key channel, which differs in what a line of the state is multiplied by.
//!
//! # Layout
//! A task is one span, some value heads one after the other, and up to 64 value channels. Pending and confirmed rows
//! update that part of the state `[dk][dv]` in place if it is contiguous or the rows are few; else it is copied to
//! scratch, where it is contiguous and stays in L1, and back. Drafts run on a copy. The log is written after all
//! tasks: every head reads it.
//!
//! # Numerics
//! f32, one row after the other. Per channel, sums over `dk` run in two interleaved chains (even and odd), added at the
//! end. Recall is taken before the decay and multiplied by it: `decay·(Sᵀk)`; with a decay of each channel the key is
//! multiplied instead. A pass over the state writes a row and
//! recalls for the next one, which reads the state once a row and changes no bit.

use super::Scratch;
use super::delta_pass::{DeltaKeys, DeltaRow, StateRows, advance, error, lanes, recall};
use super::isa::{Isa, Kernel, LANES, Task};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::ExecCtx;
use forerun_backend::op::{DeltaShape, SpanEntry, kda_log_len};
use std::ops::Range;

/// Vectors of value channels in a task.
const WIDE: usize = 4;
/// Up to this many rows update a scattered state in place.
const FEW_ROWS: u32 = 2;
/// An operation with fewer multiply-adds stays on the calling thread.
const SMALLEST: usize = 1 << 14;

/// Operands of the delta rule, checked.
pub(crate) struct DeltaArgs<'a> {
    pub(crate) shape: DeltaShape,
    pub(crate) qkv: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
    /// Whether each key channel has a decay of its own.
    pub(crate) by_channel: bool,
}

impl DeltaArgs<'_> {
    /// Decays of a value head.
    fn decays(&self) -> usize {
        if self.by_channel { self.shape.dk } else { 1 }
    }

    /// Elements of a log row.
    fn log_len(&self) -> usize {
        if self.by_channel { kda_log_len(&self.shape) } else { self.shape.log_len() }
    }
}

struct DeltaTask<'a> {
    op: &'a DeltaArgs<'a>,
    states: SharedSlice<'a, f32>,
    log: &'a [f32],
    out: SharedSlice<'a, f32>,
    parts: usize,
    /// Value heads of a task.
    heads: usize,
}

impl Task for DeltaTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let DeltaShape { value_heads, dv, .. } = self.op.shape;
        let (part_of, rest) = (index % self.parts, index / self.parts);
        let groups = value_heads / self.heads;
        let (group, span) = (rest % groups, rest / groups);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        let first = part_of * WIDE * LANES;
        let count = (WIDE * LANES).min(dv - first);
        for i in 0..self.heads {
            let head = group * self.heads + i;
            let more = i + 1 < self.heads;
            let part = DeltaPart { task: self, span, head, first, count, more };
            let scratch = scratch.floats();
            match (count.div_ceil(LANES), self.op.by_channel) {
                (1, false) => simd.call(DeltaKernel::<1, false> { part, scratch }),
                (2, false) => simd.call(DeltaKernel::<2, false> { part, scratch }),
                (_, false) => simd.call(DeltaKernel::<WIDE, false> { part, scratch }),
                (1, true) => simd.call(DeltaKernel::<1, true> { part, scratch }),
                (2, true) => simd.call(DeltaKernel::<2, true> { part, scratch }),
                (_, true) => simd.call(DeltaKernel::<WIDE, true> { part, scratch }),
            }
        }
    }
}

/// One span, one value head, `count` value channels from `first` on.
struct DeltaPart<'a> {
    task: &'a DeltaTask<'a>,
    span: SpanEntry,
    head: usize,
    first: usize,
    count: usize,
    /// Whether the task goes on with the next head.
    more: bool,
}

impl DeltaPart<'_> {
    fn key_at(&self) -> usize {
        let DeltaShape { key_heads, value_heads, dk, .. } = self.task.op.shape;
        self.head / (value_heads / key_heads) * dk
    }

    /// Row `i` of pending and own rows; own rows have a query and an output.
    #[inline(always)]
    fn row(&self, i: u32) -> (DeltaRow<'_>, Option<&[f32]>, Option<usize>) {
        if i < self.span.pending {
            return (self.logged(i as usize), None, None);
        }
        let row = (self.span.first_row + i - self.span.pending) as usize;
        let DeltaShape { value_heads, dv, .. } = self.task.op.shape;
        let (write, q) = self.fresh(row);
        (write, Some(q), Some((row * value_heads + self.head) * dv + self.first))
    }

    /// Pending row `i` of the slot's log.
    fn logged(&self, i: usize) -> DeltaRow<'_> {
        let (op, log_len) = (self.task.op, self.task.op.log_len());
        let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
        let at = (self.span.slot as usize * op.log_rows + i) * log_len;
        let line = &self.task.log[at..at + log_len];
        let (keys, rest) = line.split_at(key_heads * dk);
        let (values, gates) = rest.split_at(value_heads * dv);
        DeltaRow {
            k: &keys[self.key_at()..self.key_at() + dk],
            v: &values[self.head * dv + self.first..][..self.count],
            decay: &gates[self.head * op.decays()..][..op.decays()],
            beta: gates[value_heads * op.decays() + self.head],
        }
    }

    /// Batch row `row`, and its query.
    fn fresh(&self, row: usize) -> (DeltaRow<'_>, &[f32]) {
        let op = self.task.op;
        let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
        let line = &op.qkv[row * op.shape.channels()..(row + 1) * op.shape.channels()];
        let (queries, rest) = line.split_at(key_heads * dk);
        let (keys, values) = rest.split_at(key_heads * dk);
        let row = DeltaRow {
            k: &keys[self.key_at()..self.key_at() + dk],
            v: &values[self.head * dv + self.first..][..self.count],
            decay: &op.decay[(row * value_heads + self.head) * op.decays()..][..op.decays()],
            beta: op.beta[row * value_heads + self.head],
        };
        (row, &queries[self.key_at()..self.key_at() + dk])
    }
}

struct DeltaKernel<'a, const W: usize, const C: bool> {
    part: DeltaPart<'a>,
    scratch: &'a mut [f32],
}

impl<const W: usize, const C: bool> DeltaKernel<'_, W, C> {
    /// Where the task's channels of line `i` of the slot's state begin.
    #[inline(always)]
    fn place(&self, i: usize) -> usize {
        let DeltaShape { value_heads, dk, dv, .. } = self.part.task.op.shape;
        let head = self.part.span.slot as usize * value_heads + self.part.head;
        (head * dk + i) * dv + self.part.first
    }

    /// The task's channels of line `i` of the slot's state.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "stands for an exclusive borrow cut into parts")]
    fn line(&self, i: usize) -> &mut [f32] {
        // SAFETY: the slots of the spans differ, so these channels of this head are this task's alone; no caller keeps
        // a line while it takes the same one again.
        unsafe { self.part.task.states.part(self.place(i), self.part.count) }
    }

    /// Copies the slot's state to scratch, zeros past the task's channels.
    #[inline(always)]
    fn load_state<S: Isa>(&mut self, simd: S, dk: usize) {
        for i in 0..dk {
            for w in 0..W {
                let line = &*self.line(i);
                let from = line.as_ptr().wrapping_add(w * LANES);
                let lanes = lanes(line, w);
                let to = self.scratch[(i * W + w) * LANES..][..LANES].as_mut_ptr();
                // SAFETY: `lanes` elements are left in the line; `to` is sixteen f32.
                unsafe { simd.store(to, simd.load_part(from, lanes)) };
            }
        }
    }

    /// Copies the state back to its slot.
    #[inline(always)]
    fn write_back<S: Isa>(&self, simd: S, dk: usize) {
        for i in 0..dk {
            let line = self.line(i);
            for w in 0..W {
                let to = line.as_mut_ptr().wrapping_add(w * LANES);
                let from = self.scratch[(i * W + w) * LANES..][..LANES].as_ptr();
                // SAFETY: `lanes` elements are left in the line; `from` is sixteen f32.
                unsafe { simd.store_part(to, lanes(line, w), simd.load(from)) };
            }
        }
    }

    /// The slot's state, if rows should update it in place: a line is whole vectors, and either lines are contiguous or
    /// there are too few rows to be worth two copies.
    #[inline(always)]
    fn in_place(&self, dk: usize) -> Option<StateRows> {
        let SpanEntry { confirmed, pending, .. } = self.part.span;
        let (stride, whole) = (self.part.task.op.shape.dv, self.part.count == W * LANES);
        let few = confirmed + pending <= FEW_ROWS;
        let worthwhile = stride == W * LANES || few;
        let len = dk.saturating_sub(1) * stride + self.part.count;
        let at = || self.part.task.states.address(self.place(0), len);
        let prefetch_bytes = if few && self.part.more { dk * stride } else { 0 };
        (whole && worthwhile).then(|| StateRows { at: at(), stride, count: dk, prefetch_bytes })
    }

    /// The copy in scratch.
    #[inline(always)]
    fn copy(&mut self, dk: usize) -> StateRows {
        let at = self.scratch[..dk * W * LANES].as_mut_ptr();
        StateRows { at, stride: W * LANES, count: dk, prefetch_bytes: 0 }
    }

    /// Runs rows of the span, numbered from its first pending one.
    #[inline(always)]
    fn rows<S: Isa>(&self, simd: S, state: StateRows, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        // SAFETY: the state is `dk` lines of `W` vectors that no other thread uses.
        let mut recall = unsafe { recall::<S, W, C>(simd, state, &self.part.row(rows.start).0) };
        for i in rows.clone() {
            let (row, q, at) = self.part.row(i);
            // The last row's own key stands in, and what it recalls is dropped.
            let next = if i + 1 < rows.end { self.part.row(i + 1).0 } else { row };
            // A pending row has no query; its key stands in, and the answer is dropped.
            let keys = DeltaKeys { q: q.unwrap_or(row.k), row, next };
            let write = error::<S, W, C>(simd, &row, &recall);
            // SAFETY: the state is `dk` lines of `W` vectors that no other thread uses.
            let (answer, recalled) = unsafe { advance::<S, W, C>(simd, state, keys, &write) };
            recall = recalled;
            let Some(at) = at else { continue };
            // SAFETY: no two spans share a row, so this part of the output is this task's alone.
            let out = unsafe { self.part.task.out.part(at, self.part.count) };
            for w in 0..W {
                let to = out.as_mut_ptr().wrapping_add(w * LANES);
                // SAFETY: `lanes` elements are left in `out`.
                unsafe { simd.store_part(to, lanes(out, w), simd.add(answer[0][w], answer[1][w])) };
            }
        }
    }
}

impl<const W: usize, const C: bool> Kernel for DeltaKernel<'_, W, C> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let dk = self.part.task.op.shape.dk;
        let SpanEntry { start, rows, confirmed, pending, .. } = self.part.span;
        if start == 0 {
            (0..dk).for_each(|i| self.line(i).fill(0.0));
        }
        let in_place = self.in_place(dk);
        let state = in_place.unwrap_or_else(|| {
            self.load_state(simd, dk);
            self.copy(dk)
        });
        self.rows(simd, state, 0..pending + confirmed);
        if in_place.is_none() && pending + confirmed > 0 {
            self.write_back(simd, dk);
        }
        if confirmed < rows {
            if in_place.is_some() {
                self.load_state(simd, dk);
            }
            let copy = self.copy(dk);
            self.rows(simd, copy, pending + confirmed..pending + rows);
        }
    }
}

/// Runs all spans, then writes the drafts to the log.
pub(crate) fn delta_rule(
    ctx: &mut ExecCtx,
    op: &DeltaArgs<'_>,
    states: &mut [f32],
    log: &mut [f32],
    out: &mut [f32],
) {
    let DeltaShape { value_heads, dk, dv, .. } = op.shape;
    let parts = dv.div_ceil(WIDE * LANES);
    let spans = op.spans.len() / SpanEntry::WORDS;
    // A task that goes on with the next head prefetches its state; with few spans there would be too few tasks.
    let heads = if spans * parts >= 4 * ctx.threads() { value_heads.max(1) } else { 1 };
    let tasks = spans * (value_heads / heads) * parts;
    ctx.reserve(dk * WIDE * LANES, 0);
    let (states, out) = (SharedSlice::new(states), SharedSlice::new(out));
    let task = DeltaTask { op, states, log, out, parts, heads };
    let work = op.beta.len() * dk * dv;
    ctx.run_if(work >= SMALLEST, tasks, &task);
    for words in op.spans.chunks_exact(SpanEntry::WORDS) {
        keep_drafts(op, &SpanEntry::from_words(words), log);
    }
}

/// Copies k, v, decay and beta of a span's drafts to its slot's log.
fn keep_drafts(op: &DeltaArgs<'_>, span: &SpanEntry, log: &mut [f32]) {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let (channels, log_len, decays) =
        (op.shape.channels(), op.log_len(), value_heads * op.decays());
    let confirmed = span.confirmed as usize;
    for i in confirmed..span.rows as usize {
        let row = span.first_row as usize + i;
        let at = (span.slot as usize * op.log_rows + i - confirmed) * log_len;
        let (kv, gates) = log[at..at + log_len].split_at_mut(log_len - decays - value_heads);
        kv.copy_from_slice(&op.qkv[row * channels + key_heads * dk..(row + 1) * channels]);
        let (decay, beta) = gates.split_at_mut(decays);
        decay.copy_from_slice(&op.decay[row * decays..(row + 1) * decays]);
        beta.copy_from_slice(&op.beta[row * value_heads..(row + 1) * value_heads]);
    }
}
