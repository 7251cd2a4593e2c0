//! Inputs of the delta rule. See [`forerun_backend::op::DeltaInputs`] for the math and the state.
//!
//! # Layout
//! A task is one span and a range of channels that are whole heads, lanes along channels, and some of the span's rows
//! for their gates. What a span sees is, oldest first: the window, the pending log rows, its own rows.

use super::Scratch;
use super::conv::{AfterSum, convolve};
use super::delta_gates::{GateArgs, unit_heads};
use super::isa::{Isa, Kernel, Task};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::SpanEntry;
use std::ops::Range;

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 12;

/// Operands that are read, checked.
pub(crate) struct Projected<'a> {
    pub(crate) x: &'a [f32],
    /// `[taps][channels]`.
    pub(crate) weight: &'a [f32],
    pub(crate) gates: GateArgs<'a>,
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
}

/// Operands that are written.
pub(crate) struct DeltaRows<T> {
    pub(crate) window: T,
    pub(crate) log: T,
    pub(crate) qkv: T,
    pub(crate) decay: T,
    pub(crate) beta: T,
}

struct DeltaInputsTask<'a> {
    op: &'a Projected<'a>,
    to: DeltaRows<SharedSlice<'a, f32>>,
    parts: usize,
}

impl Task for DeltaInputsTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (span, part) = (index / self.parts, index % self.parts);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let (span, shape) = (SpanEntry::from_words(words), self.op.gates.shape);
        let channels = part_of(shape.channels(), self.parts, shape.dk, part);
        simd.call(ChannelSlice { task: self, span, channels });
        let first = span.first_row as usize;
        for row in part_of(span.rows as usize, self.parts, 1, part) {
            self.gates(first + row);
        }
    }
}

impl DeltaInputsTask<'_> {
    /// Decay and write strength of a row.
    fn gates(&self, row: usize) {
        let heads = self.op.gates.shape.value_heads;
        let at = row * heads;
        // SAFETY: the gates of a row belong to one task.
        let (decay, beta) =
            unsafe { (self.to.decay.part(at, heads), self.to.beta.part(at, heads)) };
        self.op.gates.of_row(row, decay, beta);
    }
}

/// Some channels of a span's rows.
struct ChannelSlice<'a> {
    task: &'a DeltaInputsTask<'a>,
    span: SpanEntry,
    channels: Range<usize>,
}

impl ChannelSlice<'_> {
    /// Rows in a window.
    fn keep(&self) -> usize {
        self.task.op.weight.len() / self.task.op.gates.shape.channels() - 1
    }

    /// The task's channels of row `row` in `all`, a buffer of rows of all channels.
    #[inline(always)]
    fn part<'s>(&self, all: SharedSlice<'s, f32>, row: usize) -> &'s mut [f32] {
        let at = row * self.task.op.gates.shape.channels() + self.channels.start;
        // SAFETY: slots and rows of the spans differ and parts of channels are disjoint, so the part is this task's; no
        // caller keeps a part while it takes the same one again.
        unsafe { all.part(at, self.channels.len()) }
    }

    /// Row `i` of what the span sees.
    #[inline(always)]
    fn seen(&self, i: usize) -> &[f32] {
        let (task, span, keep) = (self.task, &self.span, self.keep());
        let (slot, pending) = (span.slot as usize, span.pending as usize);
        if i < keep {
            return self.part(task.to.window, slot * keep + i);
        }
        if i < keep + pending {
            return self.part(task.to.log, slot * task.op.log_rows + i - keep);
        }
        self.of_row(task.op.x, span.first_row as usize + i - keep - pending)
    }

    /// The task's channels of row `row` in `all`, rows or taps of all channels.
    #[inline(always)]
    fn of_row<'s>(&self, all: &'s [f32], row: usize) -> &'s [f32] {
        &all[row * self.task.op.gates.shape.channels()..][self.channels.clone()]
    }

    /// Moves the window on by what is confirmed, and keeps drafts in the log.
    fn write_back(&self) {
        let (task, span, keep) = (self.task, &self.span, self.keep());
        let slot = span.slot as usize;
        let settled = (span.pending + span.confirmed) as usize;
        if settled > 0 {
            // Sources lie at or after their targets, so ascending copies read before they overwrite.
            for i in 0..keep {
                self.part(task.to.window, slot * keep + i).copy_from_slice(self.seen(settled + i));
            }
        }
        for i in 0..(span.rows - span.confirmed) as usize {
            let from = self.of_row(task.op.x, (span.first_row + span.confirmed) as usize + i);
            self.part(task.to.log, slot * task.op.log_rows + i).copy_from_slice(from);
        }
    }
}

impl Kernel for ChannelSlice<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (task, keep, span) = (self.task, self.keep(), self.span);
        if span.start == 0 {
            let first = span.slot as usize * keep;
            (first..first + keep).for_each(|i| self.part(task.to.window, i).fill(0.0));
        }
        for i in 0..span.rows as usize {
            let out = self.part(task.to.qkv, span.first_row as usize + i);
            let first = span.pending as usize + i;
            let tap = |j| [self.of_row(task.op.weight, j), self.seen(first + j)];
            convolve(simd, keep + 1, tap, AfterSum::SILU, out);
            let shape = task.op.gates.shape;
            unit_heads(simd, shape, self.channels.start / shape.dk, out);
        }
        self.write_back();
    }
}

/// Computes the rows of all spans, and moves their windows and logs on.
pub(crate) fn delta_inputs(ctx: &mut ExecCtx, op: &Projected<'_>, to: DeltaRows<&mut [f32]>) {
    let (spans, channels) = (op.spans.len() / SpanEntry::WORDS, op.gates.shape.channels());
    let smallest = (SMALLEST * spans.max(1)).div_ceil((op.x.len() / channels).max(1));
    let parts = ctx.parts(channels, smallest.max(op.gates.shape.dk), 2);
    let DeltaRows { window, log, qkv, decay, beta } = to;
    let to = DeltaRows {
        window: SharedSlice::new(window),
        log: SharedSlice::new(log),
        qkv: SharedSlice::new(qkv),
        decay: SharedSlice::new(decay),
        beta: SharedSlice::new(beta),
    };
    ctx.run(spans * parts, &DeltaInputsTask { op, to, parts });
}
