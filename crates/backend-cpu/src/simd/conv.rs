//! The short convolution. See [`forerun_backend::op::Conv`] for the math and the state.
//!
//! # Layout
//! A task is one span and a range of channels, lanes along channels; the weight is `[taps][channels]`. What a
//! span sees is, oldest first: the window, the pending log rows, its own rows.

use super::Scratch;
use super::crew::{Crew, piece};
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::silu;
use crate::pool::Shared;
use forerun_backend::op::SpanEntry;
use std::array::from_fn;
use std::ops::Range;

/// Elements below which a task is not worth its start.
const SMALLEST: usize = 1 << 12;

/// Operands of the convolution, checked.
pub(crate) struct Convolve<'a> {
    pub(crate) x: &'a [f32],
    /// `[taps][channels]`.
    pub(crate) weight: &'a [f32],
    pub(crate) channels: usize,
    /// Span entries, no two of the same slot or row.
    pub(crate) spans: &'a [u32],
    pub(crate) log_rows: usize,
}

struct ConvTask<'a> {
    op: &'a Convolve<'a>,
    window: Shared<'a, f32>,
    log: Shared<'a, f32>,
    out: Shared<'a, f32>,
    pieces: usize,
}

impl Task for ConvTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (span, part) = (index / self.pieces, index % self.pieces);
        let words = &self.op.spans[span * SpanEntry::WORDS..(span + 1) * SpanEntry::WORDS];
        let channels = piece(self.op.channels, self.pieces, LANES, part);
        simd.call(ConvKernel { task: self, span: SpanEntry::from_words(words), channels });
    }
}

struct ConvKernel<'a> {
    task: &'a ConvTask<'a>,
    span: SpanEntry,
    channels: Range<usize>,
}

impl ConvKernel<'_> {
    fn keep(&self) -> usize {
        self.task.op.weight.len() / self.task.op.channels - 1
    }

    /// The task's channels of row `row` in `all`, a buffer of rows of all channels.
    #[inline(always)]
    fn part<'s>(&self, all: Shared<'s, f32>, row: usize) -> &'s mut [f32] {
        let at = row * self.task.op.channels + self.channels.start;
        // SAFETY: slots and rows of the spans differ and pieces of channels are disjoint, so the part is
        // this task's; no caller keeps a part while it takes the same one again.
        unsafe { all.part(at, self.channels.len()) }
    }

    /// Row `i` of what the span sees.
    #[inline(always)]
    fn seen(&self, i: usize) -> &[f32] {
        let (op, span, keep) = (self.task.op, &self.span, self.keep());
        let (slot, pending) = (span.slot as usize, span.pending as usize);
        if i < keep {
            return self.part(self.task.window, slot * keep + i);
        }
        if i < keep + pending {
            return self.part(self.task.log, slot * op.log_rows + i - keep);
        }
        self.fresh(span.first_row as usize + i - keep - pending)
    }

    /// The task's channels of tap `j`.
    #[inline(always)]
    fn tap(&self, j: usize) -> &[f32] {
        &self.task.op.weight[j * self.task.op.channels..][self.channels.clone()]
    }

    /// The task's channels of batch row `row`.
    #[inline(always)]
    fn fresh(&self, row: usize) -> &[f32] {
        &self.task.op.x[row * self.task.op.channels..][self.channels.clone()]
    }
}

impl Kernel for ConvKernel<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let (keep, span) = (self.keep(), self.span);
        let slot = span.slot as usize;
        if span.start == 0 {
            (0..keep).for_each(|i| self.part(self.task.window, slot * keep + i).fill(0.0));
        }
        let pending = span.pending as usize;
        for i in 0..span.rows as usize {
            let out = self.part(self.task.out, span.first_row as usize + i);
            convolve(simd, &self, pending + i, out);
        }
        // Sources lie at or after their targets, so ascending copies read before they overwrite.
        let settled = pending + span.certain as usize;
        if settled > 0 {
            for i in 0..keep {
                self.part(self.task.window, slot * keep + i)
                    .copy_from_slice(self.seen(settled + i));
            }
        }
        for i in 0..(span.rows - span.certain) as usize {
            let from = self.fresh((span.first_row + span.certain) as usize + i);
            self.part(self.task.log, slot * self.task.op.log_rows + i).copy_from_slice(from);
        }
    }
}

/// One output row: taps over the rows seen from `first` on.
#[inline(always)]
fn convolve<S: Isa>(simd: S, kernel: &ConvKernel<'_>, first: usize, out: &mut [f32]) {
    match kernel.keep() + 1 {
        // Every published model.
        4 => convolve_taps::<S, 4>(simd, kernel, first, out),
        taps => {
            for at in (0..out.len()).step_by(LANES) {
                let lanes = LANES.min(out.len() - at);
                let mut sum = simd.splat(0.0);
                for j in 0..taps {
                    let (w, x) = (&kernel.tap(j)[at..], &kernel.seen(first + j)[at..]);
                    // SAFETY: `lanes` elements are left in both slices, which are as long as `out`.
                    sum = unsafe { tap(simd, [w.as_ptr(), x.as_ptr()], lanes, sum) };
                }
                // SAFETY: `lanes` elements are left.
                unsafe { simd.store_part(out[at..].as_mut_ptr(), lanes, silu(simd, sum)) };
            }
        }
    }
}

/// The same sums with every tap's place looked up once a row.
#[inline(always)]
fn convolve_taps<S: Isa, const TAPS: usize>(
    simd: S,
    kernel: &ConvKernel<'_>,
    first: usize,
    out: &mut [f32],
) {
    let taps: [[&[f32]; 2]; TAPS] = from_fn(|j| {
        let both = [kernel.tap(j), kernel.seen(first + j)];
        assert!(both.iter().all(|row| row.len() == out.len()), "a row is as long as its output");
        both
    });
    for at in (0..out.len()).step_by(LANES) {
        let lanes = LANES.min(out.len() - at);
        // SAFETY: `lanes` elements are left in every slice, all of which are as long as `out`.
        unsafe {
            let mut sum = simd.splat(0.0);
            for row in &taps {
                sum = tap(simd, row.map(|row| row.as_ptr().add(at)), lanes, sum);
            }
            simd.store_part(out.as_mut_ptr().add(at), lanes, silu(simd, sum));
        }
    }
}

/// Adds weight times number.
///
/// # Safety
/// `lanes` elements at both places.
#[inline(always)]
unsafe fn tap<S: Isa>(simd: S, [w, x]: [*const f32; 2], lanes: usize, sum: S::F) -> S::F {
    // SAFETY: the caller's promise.
    unsafe { simd.fma(simd.load_part(w, lanes), simd.load_part(x, lanes), sum) }
}

/// Convolves all spans and moves their windows and logs on.
pub(crate) fn conv(
    crew: &mut Crew,
    op: &Convolve<'_>,
    window: &mut [f32],
    log: &mut [f32],
    out: &mut [f32],
) {
    let spans = op.spans.len() / SpanEntry::WORDS;
    let smallest = (SMALLEST * spans.max(1)).div_ceil((out.len() / op.channels).max(1));
    let pieces = crew.pieces(op.channels, smallest.max(LANES), 2);
    let (window, log, out) = (Shared::new(window), Shared::new(log), Shared::new(out));
    crew.run(spans * pieces, &ConvTask { op, window, log, out, pieces });
}
