//! The gated delta rule. See [`forerun_backend::op::DeltaRule`] for the math.
//!
//! # Layout
//! A task is one span, some value heads one after the other, and up to 64 value channels. Pending and certain rows change that part of the state
//! `[dk][dv]` where it lies when it is contiguous or the rows are few; else it is copied to scratch, where it is contiguous and stays
//! in the first-level cache, and back. Guesses run on a copy. The log is written after all tasks: every head reads it.
//!
//! # Numerics
//! f32, one row after the other. Per channel, sums over `dk` run in two interleaved chains (even and odd), added at
//! the end. Recall is taken before the decay and multiplied by it: `decay·(Sᵀk)`. A pass over the state writes a row and recalls
//! for the next one, which reads the state once a row and changes no bit.

use super::Scratch;
use super::crew::Crew;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::pool::Shared;
use forerun_backend::op::{DeltaShape, SpanEntry};
use std::ops::Range;

/// Vectors of value channels in a task.
const WIDE: usize = 4;
/// Rows up to which scattered lines are changed where they lie.
const FEW_ROWS: u32 = 2;
/// Multiply-adds below which a task is not worth its start.
const SMALLEST: usize = 1 << 14;

/// Operands of the delta rule, checked.
pub(crate) struct Deltas<'a> {
    pub(crate) shape: DeltaShape,
    pub(crate) qkv: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
}

/// What one row writes into one head's memory, and what it asks for.
#[derive(Clone, Copy)]
struct Row<'a> {
    k: &'a [f32],
    /// The task's channels.
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

struct DeltaTask<'a> {
    op: &'a Deltas<'a>,
    states: Shared<'a, f32>,
    log: &'a [f32],
    out: Shared<'a, f32>,
    pieces: usize,
    /// Value heads of a task.
    heads: usize,
}

impl Task for DeltaTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let DeltaShape { value_heads, dv, .. } = self.op.shape;
        let (piece, rest) = (index % self.pieces, index / self.pieces);
        let groups = value_heads / self.heads;
        let (group, span) = (rest % groups, rest / groups);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        let first = piece * WIDE * LANES;
        let count = (WIDE * LANES).min(dv - first);
        for i in 0..self.heads {
            let head = group * self.heads + i;
            let more = i + 1 < self.heads;
            let part = DeltaPart { task: self, span, head, first, count, more };
            let scratch = scratch.floats();
            match count.div_ceil(LANES) {
                1 => simd.call(DeltaKernel::<1> { part, scratch }),
                2 => simd.call(DeltaKernel::<2> { part, scratch }),
                _ => simd.call(DeltaKernel::<WIDE> { part, scratch }),
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

    /// Row `i` of pending and own rows; those of its own have a question and a place for the answer.
    #[inline(always)]
    fn row(&self, i: u32) -> (Row<'_>, Option<&[f32]>, Option<usize>) {
        if i < self.span.pending {
            return (self.logged(i as usize), None, None);
        }
        let row = (self.span.first_row + i - self.span.pending) as usize;
        let DeltaShape { value_heads, dv, .. } = self.task.op.shape;
        let (write, q) = self.fresh(row);
        (write, Some(q), Some((row * value_heads + self.head) * dv + self.first))
    }

    /// Pending row `i` of the slot's log.
    fn logged(&self, i: usize) -> Row<'_> {
        let shape = self.task.op.shape;
        let DeltaShape { key_heads, value_heads, dk, dv } = shape;
        let at = (self.span.slot as usize * self.task.op.log_rows + i) * shape.log_len();
        let line = &self.task.log[at..at + shape.log_len()];
        let (keys, rest) = line.split_at(key_heads * dk);
        let (values, gates) = rest.split_at(value_heads * dv);
        Row {
            k: &keys[self.key_at()..self.key_at() + dk],
            v: &values[self.head * dv + self.first..][..self.count],
            decay: gates[self.head],
            beta: gates[value_heads + self.head],
        }
    }

    /// Batch row `row`, and its query.
    fn fresh(&self, row: usize) -> (Row<'_>, &[f32]) {
        let op = self.task.op;
        let DeltaShape { key_heads, value_heads, dk, dv } = op.shape;
        let line = &op.qkv[row * op.shape.channels()..(row + 1) * op.shape.channels()];
        let (queries, rest) = line.split_at(key_heads * dk);
        let (keys, values) = rest.split_at(key_heads * dk);
        let row = Row {
            k: &keys[self.key_at()..self.key_at() + dk],
            v: &values[self.head * dv + self.first..][..self.count],
            decay: op.decay[row * value_heads + self.head],
            beta: op.beta[row * value_heads + self.head],
        };
        (row, &queries[self.key_at()..self.key_at() + dk])
    }
}

struct DeltaKernel<'a, const W: usize> {
    part: DeltaPart<'a>,
    scratch: &'a mut [f32],
}

impl<const W: usize> DeltaKernel<'_, W> {
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
        // SAFETY: the slots of the spans differ, so these channels of this head are this task's alone; no
        // caller keeps a line while it takes the same one again.
        unsafe { self.part.task.states.part(self.place(i), self.part.count) }
    }

    /// The slot's state to scratch, zeros past the task's channels.
    #[inline(always)]
    fn fetch<S: Isa>(&mut self, simd: S, dk: usize) {
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

    /// The state back to its slot.
    #[inline(always)]
    fn settle<S: Isa>(&self, simd: S, dk: usize) {
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

    /// The slot's state where it lies, if rows should change it there: a line is whole vectors, and either lines follow each other
    /// or there are too few rows to be worth two copies.
    #[inline(always)]
    fn in_place(&self, dk: usize) -> Option<Lines> {
        let SpanEntry { certain, pending, .. } = self.part.span;
        let (stride, whole) = (self.part.task.op.shape.dv, self.part.count == W * LANES);
        let few = certain + pending <= FEW_ROWS;
        let worthwhile = stride == W * LANES || few;
        let len = dk.saturating_sub(1) * stride + self.part.count;
        let at = || self.part.task.states.address(self.place(0), len);
        let ahead = if few && self.part.more { dk * stride } else { 0 };
        (whole && worthwhile).then(|| Lines { at: at(), stride, count: dk, ahead })
    }

    /// The copy in scratch.
    #[inline(always)]
    fn copy(&mut self, dk: usize) -> Lines {
        let at = self.scratch[..dk * W * LANES].as_mut_ptr();
        Lines { at, stride: W * LANES, count: dk, ahead: 0 }
    }

    /// Runs rows of the span, numbered from its first pending one.
    #[inline(always)]
    fn rows<S: Isa>(&self, simd: S, state: Lines, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        // SAFETY: the state is `dk` lines that nobody else uses.
        let mut recall = unsafe { recall::<S, W>(simd, state, self.part.row(rows.start).0.k) };
        for i in rows.clone() {
            let (row, q, at) = self.part.row(i);
            // The last row's own key stands in, and what it recalls is dropped.
            let next = if i + 1 < rows.end { self.part.row(i + 1).0.k } else { row.k };
            // Without a question the key stands in for it, and the answer is dropped.
            let keys = Keys { k: row.k, q: q.unwrap_or(row.k), next };
            let write = error::<S, W>(simd, &row, &recall);
            // SAFETY: the state is `dk` lines that nobody else uses.
            let (answer, recalled) = unsafe { advance::<S, W>(simd, state, keys, &write) };
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

/// `count` lines of state, `stride` f32 apart.
#[derive(Clone, Copy)]
struct Lines {
    at: *mut f32,
    stride: usize,
    count: usize,
    /// How many f32 behind each line lies the one to ask for meanwhile; 0 for none.
    ahead: usize,
}

/// Elements of vector `w` that a line has.
#[inline(always)]
fn lanes(line: &[f32], w: usize) -> usize {
    line.len().saturating_sub(w * LANES).min(LANES)
}

impl<const W: usize> Kernel for DeltaKernel<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let dk = self.part.task.op.shape.dk;
        let SpanEntry { start, rows, certain, pending, .. } = self.part.span;
        if start == 0 {
            (0..dk).for_each(|i| self.line(i).fill(0.0));
        }
        let in_place = self.in_place(dk);
        let state = in_place.unwrap_or_else(|| {
            self.fetch(simd, dk);
            self.copy(dk)
        });
        self.rows(simd, state, 0..pending + certain);
        if in_place.is_none() && pending + certain > 0 {
            self.settle(simd, dk);
        }
        if certain < rows {
            if in_place.is_some() {
                self.fetch(simd, dk);
            }
            let copy = self.copy(dk);
            self.rows(simd, copy, pending + certain..pending + rows);
        }
    }
}

/// What a row asks of every line.
struct Keys<'a> {
    k: &'a [f32],
    q: &'a [f32],
    /// The key of the next row.
    next: &'a [f32],
}

/// What a row does to every line.
struct Change<F, const W: usize> {
    decay: F,
    error: [F; W],
}

/// Sums over the even and the odd lines.
type Chains<F, const W: usize> = [[F; W]; 2];

/// What the state `[dk][16·W]` has for a key.
///
/// # Safety
/// The lines are `W` vectors each, and nobody else changes them.
#[inline(always)]
unsafe fn recall<S: Isa, const W: usize>(simd: S, state: Lines, k: &[f32]) -> Chains<S::F, W> {
    assert_eq!(state.count, k.len(), "the state has a line for each key");
    let mut recall = [[simd.splat(0.0); W]; 2];
    for (i, k) in k.chunks(2).enumerate() {
        let line = state.at.wrapping_add(2 * i * state.stride);
        // SAFETY: the caller's promise; there is a line for each key.
        unsafe {
            recall_line(simd, line, k[0], &mut recall[0]);
            if let Some(&k) = k.get(1) {
                recall_line(simd, line.wrapping_add(state.stride), k, &mut recall[1]);
            }
        }
    }
    recall
}

/// `recall += line · k`.
///
/// # Safety
/// The line is `W` vectors.
#[inline(always)]
unsafe fn recall_line<S: Isa, const W: usize>(
    simd: S,
    line: *const f32,
    k: f32,
    recall: &mut [S::F; W],
) {
    let k = simd.splat(k);
    for w in 0..W {
        // SAFETY: vector `w` of `W`.
        let s = unsafe { simd.load(line.add(w * LANES)) };
        recall[w] = simd.fma(s, k, recall[w]);
    }
}

/// What a row writes, given what the state had for its key.
#[inline(always)]
fn error<S: Isa, const W: usize>(
    simd: S,
    row: &Row<'_>,
    recall: &Chains<S::F, W>,
) -> Change<S::F, W> {
    let (decay, beta) = (simd.splat(row.decay), simd.splat(row.beta));
    let mut error = [simd.splat(0.0); W];
    for w in 0..W {
        let recalled = simd.mul(decay, simd.add(recall[0][w], recall[1][w]));
        let from = row.v.as_ptr().wrapping_add(w * LANES);
        // SAFETY: `lanes` elements are left in `v`.
        let v = unsafe { simd.load_part(from, lanes(row.v, w)) };
        error[w] = simd.mul(beta, simd.sub(v, recalled));
    }
    Change { decay, error }
}

/// Forgets, writes the row, answers its question from the new state `[dk][16·W]`, and tells what that has for the next row's key.
///
/// # Safety
/// The lines are `W` vectors each, and nobody else uses them.
#[inline(always)]
unsafe fn advance<S: Isa, const W: usize>(
    simd: S,
    state: Lines,
    Keys { k, q, next }: Keys<'_>,
    change: &Change<S::F, W>,
) -> (Chains<S::F, W>, Chains<S::F, W>) {
    let count = state.count;
    assert!(
        [k, q, next].iter().all(|keys| keys.len() == count),
        "the state has a line for each key"
    );
    let mut answer = [[simd.splat(0.0); W]; 2];
    let mut recall = [[simd.splat(0.0); W]; 2];
    for i in (0..count).step_by(2) {
        let line = state.at.wrapping_add(i * state.stride);
        if state.ahead > 0 {
            for w in 0..2 * W {
                let line = line.wrapping_add(state.ahead + w / W * state.stride);
                simd.prefetch(line.wrapping_add(w % W * LANES).cast());
            }
        }
        // SAFETY: the caller's promise; there is a line for each key.
        unsafe {
            let sums = (&mut answer[0], &mut recall[0]);
            write_line(simd, line, [k[i], q[i], next[i]], change, sums);
            if i + 1 < count {
                let sums = (&mut answer[1], &mut recall[1]);
                let odd = line.wrapping_add(state.stride);
                write_line(simd, odd, [k[i + 1], q[i + 1], next[i + 1]], change, sums);
            }
        }
    }
    (answer, recall)
}

/// `line ← decay·line + k·error`, then `answer += line · q` and `recall += line · next`.
///
/// # Safety
/// The line is `W` vectors that nobody else uses.
#[inline(always)]
unsafe fn write_line<S: Isa, const W: usize>(
    simd: S,
    line: *mut f32,
    keys: [f32; 3],
    change: &Change<S::F, W>,
    (answer, recall): (&mut [S::F; W], &mut [S::F; W]),
) {
    let [k, q, next] = [simd.splat(keys[0]), simd.splat(keys[1]), simd.splat(keys[2])];
    for w in 0..W {
        let at = line.wrapping_add(w * LANES);
        // SAFETY: vector `w` of `W`.
        unsafe {
            let new = simd.fma(k, change.error[w], simd.mul(change.decay, simd.load(at)));
            simd.store(at, new);
            answer[w] = simd.fma(new, q, answer[w]);
            recall[w] = simd.fma(new, next, recall[w]);
        }
    }
}

/// Runs all spans, then writes the guesses to the log.
pub(crate) fn delta_rule(
    crew: &mut Crew,
    op: &Deltas<'_>,
    states: &mut [f32],
    log: &mut [f32],
    out: &mut [f32],
) {
    let DeltaShape { value_heads, dk, dv, .. } = op.shape;
    let pieces = dv.div_ceil(WIDE * LANES);
    let spans = op.spans.len() / SpanEntry::WORDS;
    // A task that goes on with the next head asks for its state early; with few spans there would be too few tasks.
    let heads = if spans * pieces >= 4 * crew.threads() { value_heads.max(1) } else { 1 };
    let tasks = spans * (value_heads / heads) * pieces;
    crew.reserve(dk * WIDE * LANES, 0);
    let (states, out) = (Shared::new(states), Shared::new(out));
    let task = DeltaTask { op, states, log, out, pieces, heads };
    let work = op.decay.len() * dk * dv;
    crew.run_where(work >= SMALLEST, tasks, &task);
    for words in op.spans.chunks_exact(SpanEntry::WORDS) {
        keep_guesses(op, &SpanEntry::from_words(words), log);
    }
}

/// Copies k, v, decay and beta of a span's guesses to its slot's log.
fn keep_guesses(op: &Deltas<'_>, span: &SpanEntry, log: &mut [f32]) {
    let DeltaShape { key_heads, value_heads, dk, .. } = op.shape;
    let (channels, log_len) = (op.shape.channels(), op.shape.log_len());
    let certain = span.certain as usize;
    for i in certain..span.rows as usize {
        let row = span.first_row as usize + i;
        let at = (span.slot as usize * op.log_rows + i - certain) * log_len;
        let (kv, gates) = log[at..at + log_len].split_at_mut(log_len - 2 * value_heads);
        kv.copy_from_slice(&op.qkv[row * channels + key_heads * dk..(row + 1) * channels]);
        let heads = row * value_heads..(row + 1) * value_heads;
        gates[..value_heads].copy_from_slice(&op.decay[heads.clone()]);
        gates[value_heads..].copy_from_slice(&op.beta[heads]);
    }
}
