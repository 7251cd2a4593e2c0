//! The short convolution. See [`forerun_backend::op::ShortConv`] for the math and the state.
//!
//! # Layout
//! A task is one span and a range of channels, lanes along channels. It keeps the last `K` rows it has seen in scratch,
//! as a ring: first the rows before the span (window, pending log rows), then each row of the span times its gate. So
//! window and log may be written as soon as the ring has what they held.

use super::Scratch;
use super::conv::{AfterSum, convolve};
use super::isa::{Isa, Kernel, Task};
use super::math::{Times, zip};
use crate::pool::SharedSlice;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::SpanEntry;
use std::ops::Range;

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 12;

/// Operands that are read, checked.
pub(crate) struct ConvArgs<'a> {
    pub(crate) x: &'a [f32],
    /// Factors before and after.
    pub(crate) gates: Option<[&'a [f32]; 2]>,
    /// `[taps][channels]`.
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) silu: bool,
    pub(crate) channels: usize,
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
}

struct ConvTask<'a> {
    op: &'a ConvArgs<'a>,
    window: SharedSlice<'a, f32>,
    log: SharedSlice<'a, f32>,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for ConvTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (span, part) = (index / self.parts, index % self.parts);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let span = SpanEntry::from_words(words);
        let channels = part_of(self.op.channels, self.parts, 16, part);
        let ring = Ring { rows: scratch.floats(), width: channels.len(), taps: self.op.taps() };
        simd.call(ConvSlice { task: self, span, channels, ring });
    }
}

impl ConvArgs<'_> {
    fn taps(&self) -> usize {
        self.weight.len() / self.channels
    }
}

/// The newest rows, row `i` at `i mod taps`.
struct Ring<'a> {
    rows: &'a mut [f32],
    width: usize,
    taps: usize,
}

impl Ring<'_> {
    #[inline(always)]
    fn row(&self, i: usize) -> &[f32] {
        &self.rows[i % self.taps * self.width..][..self.width]
    }

    #[inline(always)]
    fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.rows[i % self.taps * self.width..][..self.width]
    }
}

/// Some channels of a span's rows.
struct ConvSlice<'a> {
    task: &'a ConvTask<'a>,
    span: SpanEntry,
    channels: Range<usize>,
    ring: Ring<'a>,
}

impl ConvSlice<'_> {
    /// The task's channels of row `row` in `all`, a buffer of rows of all channels.
    #[inline(always)]
    fn part<'s>(&self, all: SharedSlice<'s, f32>, row: usize) -> &'s mut [f32] {
        let at = row * self.task.op.channels + self.channels.start;
        // SAFETY: slots and rows of the spans differ and parts of channels are disjoint, so the part is this task's; no
        // caller keeps a part while it takes the same one again.
        unsafe { all.part(at, self.channels.len()) }
    }

    /// The task's channels of row `row` in `all`, rows or taps of all channels.
    #[inline(always)]
    fn of_row<'s>(&self, all: &'s [f32], row: usize) -> &'s [f32] {
        &all[row * self.task.op.channels..][self.channels.clone()]
    }

    /// Fills the ring with the rows before the span; the first of them is row 0.
    fn fill(&mut self) {
        let (task, span, keep) = (self.task, self.span, self.ring.taps - 1);
        let (slot, pending) = (span.slot as usize, span.pending as usize);
        for i in pending..pending + keep {
            let row = match i.checked_sub(keep) {
                Some(logged) => self.part(task.log, slot * task.op.log_rows + logged),
                None if span.start == 0 => {
                    self.ring.row_mut(i - pending).fill(0.0);
                    continue;
                }
                None => self.part(task.window, slot * keep + i),
            };
            self.ring.row_mut(i - pending).copy_from_slice(row);
        }
    }

    /// Moves the window on to the last rows in the ring, of which `count` came in.
    fn settle(&self, count: usize) {
        let (keep, slot) = (self.ring.taps - 1, self.span.slot as usize);
        for i in 0..keep {
            self.part(self.task.window, slot * keep + i).copy_from_slice(self.ring.row(count + i));
        }
    }
}

impl Kernel for ConvSlice<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let (task, span, keep) = (self.task, self.span, self.ring.taps - 1);
        let op = task.op;
        let (first, confirmed) = (span.first_row as usize, span.confirmed as usize);
        self.fill();
        if confirmed == 0 && (span.pending > 0 || span.start == 0) {
            self.settle(0);
        }
        let bias = op.bias.map(|bias| self.of_row(bias, 0));
        for i in 0..span.rows as usize {
            let row = self.ring.row_mut(keep + i);
            let x = &op.x[(first + i) * op.channels..][self.channels.clone()];
            row.copy_from_slice(x);
            let factor = op.gates.map(|[input, output]| {
                let at = (first + i) * op.channels;
                [input, output].map(|gate| &gate[at..][self.channels.clone()])
            });
            if let Some([input, _]) = factor {
                zip(simd, row, input, Times);
            }
            let after = AfterSum { bias, silu: op.silu, factor: factor.map(|[_, output]| output) };
            let tap = |j| [self.of_row(op.weight, j), self.ring.row(i + j)];
            convolve(simd, keep + 1, tap, after, self.part(task.out, first + i));
            if i + 1 == confirmed {
                self.settle(confirmed);
            }
            if let Some(draft) = i.checked_sub(confirmed) {
                let at = span.slot as usize * op.log_rows + draft;
                self.part(task.log, at).copy_from_slice(self.ring.row(keep + i));
            }
        }
    }
}

/// Computes the rows of all spans, and moves their windows and logs on.
pub(crate) fn short_conv(
    ctx: &mut ExecCtx,
    op: &ConvArgs<'_>,
    [window, log, out]: [&mut [f32]; 3],
) {
    let spans = op.spans.len() / SpanEntry::WORDS;
    let smallest = (SMALLEST * spans.max(1)).div_ceil((op.x.len() / op.channels).max(1));
    let parts = ctx.parts(op.channels, smallest, 2);
    ctx.reserve(op.taps() * op.channels.div_ceil(parts).next_multiple_of(16), 0);
    let [window, log, out] = [window, log, out].map(SharedSlice::new);
    ctx.run(spans * parts, &ConvTask { op, window, log, out, parts });
}
