//! The selective scan of Mamba-2. See [`forerun_backend::op::SelectiveScan`] for the math.
//!
//! # Layout
//! A task is one span, one head and a range of its channels, whose part of the state `[width][state]` is contiguous.
//! Pending and confirmed rows update it in place, drafts a copy in scratch. Many rows take few channels at a time, so
//! that their part stays in L1 from row to row. The log is written after all tasks: every head reads it.
//!
//! # Numerics
//! f32, one row after the other. A channel's answer is a sum over its line in sixteen lanes, taken as the line is
//! written. Lines do not depend on each other.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::pool::SharedSlice;
use crate::reference::softplus;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::{ScanShape, SpanEntry};
use std::ops::Range;

/// Lines that are updated together, for the sake of B and C, which they share.
const LINES: usize = 4;
/// f32 of state in a task of many rows.
const KEPT: usize = 1 << 12;
/// Up to this many rows run over a whole head.
const FEW_ROWS: usize = 4;
/// An operation with fewer multiply-adds stays on the calling thread.
const SMALLEST: usize = 1 << 14;
/// The same for steps and decays.
const FEWEST_GATES: usize = 1 << 8;

/// What steps and decays are made from, checked.
pub(crate) struct ScanGateArgs<'a> {
    pub(crate) rate: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) least: f32,
    pub(crate) most: f32,
}

struct GatesTask<'a> {
    op: &'a ScanGateArgs<'a>,
    step: SharedSlice<'a, f32>,
    decay: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for GatesTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let heads = self.op.rate.len();
        for row in part_of(self.step.len() / heads, self.parts, 1, index) {
            // SAFETY: a row belongs to one task.
            let (step, decay) = unsafe {
                (self.step.part(row * heads, heads), self.decay.part(row * heads, heads))
            };
            for head in 0..heads {
                let far = softplus(step[head] + self.op.bias[head]);
                step[head] = far.clamp(self.op.least, self.op.most);
                decay[head] = (self.op.rate[head] * step[head]).exp();
            }
        }
    }
}

/// Steps in place, and decays. A handful of numbers, so scalar functions serve.
pub(crate) fn scan_gates(ctx: &mut ExecCtx, op: &ScanGateArgs<'_>, [step, decay]: [&mut [f32]; 2]) {
    let heads = op.rate.len();
    let parts = ctx.parts(step.len() / heads, FEWEST_GATES.div_ceil(heads), 1);
    let [step, decay] = [step, decay].map(SharedSlice::new);
    ctx.run(parts, &GatesTask { op, step, decay, parts });
}

/// Operands of the scan, checked.
pub(crate) struct ScanArgs<'a> {
    pub(crate) shape: ScanShape,
    pub(crate) xbc: &'a [f32],
    pub(crate) step: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) skip: &'a [f32],
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
}

struct ScanTask<'a> {
    op: &'a ScanArgs<'a>,
    states: SharedSlice<'a, f32>,
    log: &'a [f32],
    out: SharedSlice<'a, f32>,
    /// Parts of a head.
    parts: usize,
}

impl Task for ScanTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let ScanShape { heads, width, .. } = self.op.shape;
        let (part, rest) = (index % self.parts, index / self.parts);
        let (head, span) = (rest % heads, rest / heads);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        let channels = part_of(width, self.parts, LINES, part);
        simd.call(ScanPart { task: self, span, head, channels, scratch: scratch.floats() });
    }
}

/// One span, one head, some of its channels.
struct ScanPart<'a> {
    task: &'a ScanTask<'a>,
    span: SpanEntry,
    head: usize,
    channels: Range<usize>,
    scratch: &'a mut [f32],
}

/// What one row does to some channels of one head, and what reads them.
#[derive(Clone, Copy)]
struct ScanRow<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    step: f32,
    decay: f32,
    skip: f32,
}

impl ScanPart<'_> {
    /// This head's part of x, and its group's of B or C.
    fn places(&self) -> (Range<usize>, Range<usize>) {
        let ScanShape { heads, groups, width, state } = self.task.op.shape;
        let (x, b) = (self.head * width, self.head / (heads / groups) * state);
        (x + self.channels.start..x + self.channels.end, b..b + state)
    }

    /// Pending row `i` of the slot's log. Nothing reads from it, so B stands in for C.
    fn logged(&self, i: usize) -> ScanRow<'_> {
        let shape = self.task.op.shape;
        let at = (self.span.slot as usize * self.task.op.log_rows + i) * shape.log_len();
        let line = &self.task.log[at..at + shape.log_len()];
        let (x, rest) = line.split_at(shape.inner());
        let (b, gates) = rest.split_at(shape.groups * shape.state);
        let (channels, group) = self.places();
        let (step, decay) = (gates[self.head], gates[shape.heads + self.head]);
        let b = &b[group];
        ScanRow { x: &x[channels], b, c: b, step, decay, skip: 0.0 }
    }

    /// Row `i` of the span.
    fn fresh(&self, i: u32) -> ScanRow<'_> {
        let op = self.task.op;
        let (shape, row) = (op.shape, (self.span.first_row + i) as usize);
        let line = &op.xbc[row * shape.channels()..(row + 1) * shape.channels()];
        let (x, rest) = line.split_at(shape.inner());
        let (b, c) = rest.split_at(shape.groups * shape.state);
        let (channels, group) = self.places();
        let gate = row * shape.heads + self.head;
        ScanRow {
            x: &x[channels],
            b: &b[group.clone()],
            c: &c[group],
            step: op.step[gate],
            decay: op.decay[gate],
            skip: op.skip[self.head],
        }
    }

    /// Where the answer of row `i` goes, in the output of all rows.
    fn answer<'s>(&self, out: SharedSlice<'s, f32>, i: u32) -> &'s mut [f32] {
        let ScanShape { width, .. } = self.task.op.shape;
        let row = (self.span.first_row + i) as usize;
        let at = row * self.task.op.shape.inner() + self.head * width + self.channels.start;
        // SAFETY: no two spans share a row, and parts of heads are disjoint, so this part of the output is this task's
        // alone; no caller keeps it while it takes the same one again.
        unsafe { out.part(at, self.channels.len()) }
    }
}

impl Kernel for ScanPart<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let ScanShape { heads, width, state, .. } = self.task.op.shape;
        let SpanEntry { slot, start, rows, confirmed, pending, .. } = self.span;
        let first = (slot as usize * heads + self.head) * width + self.channels.start;
        let len = self.channels.len() * state;
        // SAFETY: no two spans share a slot, and parts of heads are disjoint, so this part of the state is this task's.
        let kept = unsafe { self.task.states.part(first * state, len) };
        if start == 0 {
            kept.fill(0.0);
        }
        for i in 0..pending as usize {
            advance(simd, kept, &self.logged(i), None);
        }
        let out = self.task.out;
        for i in 0..confirmed {
            advance(simd, kept, &self.fresh(i), Some(self.answer(out, i)));
        }
        if confirmed == rows {
            return;
        }
        let scratch = std::mem::take(&mut self.scratch);
        let copy = &mut scratch[..len];
        copy.copy_from_slice(kept);
        for i in confirmed..rows {
            advance(simd, copy, &self.fresh(i), Some(self.answer(out, i)));
        }
    }
}

/// Moves lines of state on by a row, and answers it where that is wanted.
#[inline(always)]
fn advance<S: Isa>(simd: S, state: &mut [f32], row: &ScanRow<'_>, mut out: Option<&mut [f32]>) {
    let len = row.b.len();
    assert!(row.c.len() == len && state.len() == row.x.len() * len, "a line for each channel");
    assert!(out.as_ref().is_none_or(|out| out.len() == row.x.len()), "an answer of each channel");
    for (i, lines) in state.chunks_mut(LINES * len).enumerate() {
        let first = i * LINES;
        let (at, count) = (lines.as_mut_ptr(), lines.len() / len);
        let mut sums = [0.0; LINES];
        if count == LINES {
            let x = [row.x[first], row.x[first + 1], row.x[first + 2], row.x[first + 3]];
            // SAFETY: the chunk has four lines.
            sums = simd.sum4(unsafe { lines_on::<S, LINES>(simd, at, x, row) });
        } else {
            for j in 0..count {
                // SAFETY: the chunk has `count` lines.
                let [sum] = unsafe { lines_on(simd, at.add(j * len), [row.x[first + j]], row) };
                sums[j] = simd.sum(sum);
            }
        }
        if let Some(out) = &mut out {
            for j in 0..count {
                out[first + j] = sums[j] + row.skip * row.x[first + j];
            }
        }
    }
}

/// `line ← decay·line + step·x·b` for some lines, and the lanes of `line · c`.
///
/// # Safety
/// `at` is readable and writable for `R` lines as long as `b`, which no other thread accesses; `c` is as long.
#[inline(always)]
unsafe fn lines_on<S: Isa, const R: usize>(
    simd: S,
    at: *mut f32,
    x: [f32; R],
    row: &ScanRow<'_>,
) -> [S::F; R] {
    let (len, decay) = (row.b.len(), simd.splat(row.decay));
    let mut write = [simd.splat(0.0); R];
    let mut sums = [simd.splat(0.0); R];
    for r in 0..R {
        write[r] = simd.splat(row.step * x[r]);
    }
    let whole = len / LANES * LANES;
    let (b_at, c_at) = (row.b.as_ptr(), row.c.as_ptr());
    // SAFETY: whole vectors end at `whole`, the rest is partial; lines, B and C have `len` elements (contract above).
    unsafe {
        for n in (0..whole).step_by(LANES) {
            let (b, c) = (simd.load(b_at.add(n)), simd.load(c_at.add(n)));
            for r in 0..R {
                let line = at.add(r * len + n);
                let new = simd.fma(write[r], b, simd.mul(decay, simd.load(line)));
                simd.store(line, new);
                sums[r] = simd.fma(new, c, sums[r]);
            }
        }
        if whole < len {
            let rest = len - whole;
            let b = simd.load_part(b_at.add(whole), rest);
            let c = simd.load_part(c_at.add(whole), rest);
            for r in 0..R {
                let line = at.add(r * len + whole);
                let new = simd.fma(write[r], b, simd.mul(decay, simd.load_part(line, rest)));
                simd.store_part(line, rest, new);
                sums[r] = simd.fma(new, c, sums[r]);
            }
        }
    }
    sums
}

/// Runs all spans, then writes the drafts to the log.
pub(crate) fn selective_scan(
    ctx: &mut ExecCtx,
    op: &ScanArgs<'_>,
    states: &mut [f32],
    log: &mut [f32],
    out: &mut [f32],
) {
    let ScanShape { heads, width, state, .. } = op.shape;
    let spans = op.spans.len() / SpanEntry::WORDS;
    let rows = op.step.len() / heads;
    // A part that is reused from row to row should fit L1; else the fewer tasks the better.
    let few = rows <= FEW_ROWS * spans.max(1);
    let parts = if few { 1 } else { (width * state).div_ceil(KEPT).min(width.div_ceil(LINES)) };
    ctx.reserve(width.div_ceil(parts).next_multiple_of(LINES) * state, 0);
    let (states, out) = (SharedSlice::new(states), SharedSlice::new(out));
    let task = ScanTask { op, states, log, out, parts };
    let work = rows * op.shape.state_len();
    ctx.run_if(work >= SMALLEST, spans * heads * parts, &task);
    for words in op.spans.chunks_exact(SpanEntry::WORDS) {
        keep_drafts(op, &SpanEntry::from_words(words), log);
    }
}

/// Copies x, B, step and decay of a span's drafts to its slot's log.
fn keep_drafts(op: &ScanArgs<'_>, span: &SpanEntry, log: &mut [f32]) {
    let (heads, log_len) = (op.shape.heads, op.shape.log_len());
    let confirmed = span.confirmed as usize;
    for i in confirmed..span.rows as usize {
        let row = span.first_row as usize + i;
        let at = (span.slot as usize * op.log_rows + i - confirmed) * log_len;
        let (inputs, gates) = log[at..at + log_len].split_at_mut(log_len - 2 * heads);
        inputs.copy_from_slice(&op.xbc[row * op.shape.channels()..][..inputs.len()]);
        gates[..heads].copy_from_slice(&op.step[row * heads..][..heads]);
        gates[heads..].copy_from_slice(&op.decay[row * heads..][..heads]);
    }
}
