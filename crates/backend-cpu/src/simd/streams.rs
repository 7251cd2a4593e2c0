//! Residuals of several streams, and thresholds. See [`forerun_backend::op::PredictStreams`] and its neighbours for the
//! math.
//!
//! # Layout
//! A task has some rows, of all streams; lanes run along a row.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{Pairwise, squares, zip};
use crate::pool::SharedSlice;
use crate::reference::Coefficients;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::op::{Store, Streams};

/// A task with fewer elements costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 13;
/// The streams and the result.
const LENT: usize = Streams::MOST + 1;

/// What both operations on streams read.
#[derive(Clone, Copy)]
pub(crate) struct StreamMix<'a> {
    pub(crate) streams: &'a Streams,
    pub(crate) coefficients: Coefficients<'a>,
    /// `[rows, streams]`.
    pub(crate) router: &'a [f32],
}

impl StreamMix<'_> {
    fn rows(&self) -> usize {
        self.router.len() / self.streams.count()
    }

    /// Tasks for all rows.
    fn parts(&self, ctx: &ExecCtx) -> usize {
        let row = self.streams.dim * self.streams.count();
        ctx.parts(self.rows(), SMALLEST.div_ceil(row), 1)
    }

    /// The coefficients of a row, as many as `out` takes.
    fn of_row(&self, row: usize, out: &mut [f32]) {
        let count = self.streams.count();
        self.coefficients.of_row(&self.router[row * count..(row + 1) * count], out);
    }
}

/// A row of each stream, and of the result behind them; those of streams that are not there are empty.
type RowOfEach<'a> = [&'a mut [f32]; LENT];

/// # Safety
/// Nobody else has the row.
unsafe fn row_of<'a>(all: &[SharedSlice<'a, f32>; LENT], row: usize, dim: usize) -> RowOfEach<'a> {
    all.map(|slice| {
        let there = if slice.len() == 0 { 0 } else { dim };
        // SAFETY: nobody else has the row (contract above).
        unsafe { slice.part(row * there, there) }
    })
}

struct PredictTask<'a> {
    mix: StreamMix<'a>,
    lent: [SharedSlice<'a, f32>; LENT],
    parts: usize,
}

impl Task for PredictTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let (count, streams) = (self.mix.streams.count(), self.mix.streams);
        let mut mix = [0.0; Streams::MOST * Streams::MOST];
        let mix = &mut mix[..count * count];
        for row in part_of(self.mix.rows(), self.parts, 1, index) {
            self.mix.of_row(row, mix);
            // SAFETY: a row belongs to one task.
            let rows = unsafe { row_of(&self.lent, row, streams.dim) };
            simd.call(PredictRow { mix, rows, active: streams.active, count });
        }
    }
}

struct PredictRow<'a> {
    mix: &'a [f32],
    rows: RowOfEach<'a>,
    active: usize,
    count: usize,
}

impl Kernel for PredictRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { mix, rows, active, count } = self;
        let dim = rows[Streams::MOST].len();
        let at = rows.map(|row| row.as_mut_ptr());
        for first in (0..dim).step_by(LANES) {
            let lanes = LANES.min(dim - first);
            let mut old = [simd.splat(0.0); Streams::MOST];
            // SAFETY: rows that are there have `dim` elements, of which `lanes` are left from `first` on.
            unsafe {
                for j in 0..count {
                    old[j] = simd.load_part(at[j].add(first), lanes);
                }
                for i in 0..count {
                    let mut sum = simd.splat(0.0);
                    for j in 0..count {
                        sum = simd.fma(simd.splat(mix[i * count + j]), old[j], sum);
                    }
                    let new = simd.add(old[i], sum);
                    simd.store_part(at[i].add(first), lanes, new);
                    if i == active {
                        simd.store_part(at[Streams::MOST].add(first), lanes, new);
                    }
                }
            }
        }
    }
}

/// The streams before a layer; the active one to the last of `lent`.
pub(crate) fn predict_streams(
    ctx: &mut ExecCtx,
    mix: StreamMix<'_>,
    lent: [SharedSlice<'_, f32>; LENT],
) {
    let parts = mix.parts(ctx);
    ctx.run(parts, &PredictTask { mix, lent, parts });
}

struct CorrectTask<'a> {
    mix: StreamMix<'a>,
    x: &'a [f32],
    scale: Option<&'a [f32]>,
    lent: [SharedSlice<'a, f32>; LENT],
    parts: usize,
}

impl Task for CorrectTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let Streams { dim, active, .. } = *self.mix.streams;
        let count = self.mix.streams.count();
        let mut mix = [0.0; Streams::MOST];
        let mix = &mut mix[..count];
        for row in part_of(self.mix.rows(), self.parts, 1, index) {
            self.mix.of_row(row, mix);
            let x = &self.x[row * dim..(row + 1) * dim];
            // SAFETY: a row belongs to one task.
            let rows = unsafe { row_of(&self.lent, row, dim) };
            simd.call(CorrectRow { mix, x, scale: self.scale, rows, active });
        }
    }
}

struct CorrectRow<'a> {
    mix: &'a [f32],
    x: &'a [f32],
    scale: Option<&'a [f32]>,
    rows: RowOfEach<'a>,
    active: usize,
}

impl Kernel for CorrectRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { mix, x, scale, rows, active } = self;
        let at = rows.map(|row| row.as_mut_ptr());
        for first in (0..x.len()).step_by(LANES) {
            let lanes = LANES.min(x.len() - first);
            // SAFETY: rows that are there, `x` and `scale` have as many elements, of which `lanes` are left from
            // `first` on.
            unsafe {
                let made = simd.load_part(x.as_ptr().add(first), lanes);
                let news = simd.sub(made, simd.load_part(at[active].add(first), lanes));
                for (i, &factor) in mix.iter().enumerate() {
                    let old = simd.load_part(at[i].add(first), lanes);
                    let new = simd.fma(simd.splat(factor), news, old);
                    simd.store_part(at[i].add(first), lanes, new);
                    if i == active {
                        let out = match scale {
                            Some(scale) => {
                                simd.mul(new, simd.load_part(scale.as_ptr().add(first), lanes))
                            }
                            None => new,
                        };
                        simd.store_part(at[Streams::MOST].add(first), lanes, out);
                    }
                }
            }
        }
    }
}

/// The streams after a layer that made `x`; the active one, times the scale, to the last of `lent`.
pub(crate) fn correct_streams(
    ctx: &mut ExecCtx,
    mix: StreamMix<'_>,
    (x, scale): (&[f32], Option<&[f32]>),
    lent: [SharedSlice<'_, f32>; LENT],
) {
    let parts = mix.parts(ctx);
    ctx.run(parts, &CorrectTask { mix, x, scale, lent, parts });
}

/// Rows, the rows whose size they are brought to, and how.
#[derive(Clone, Copy)]
pub(crate) struct MatchArgs<'a> {
    pub(crate) rows: [&'a [f32]; 2],
    pub(crate) dim: usize,
    pub(crate) floor: f32,
    pub(crate) scale: f32,
    pub(crate) store: Store,
}

struct MatchTask<'a> {
    args: MatchArgs<'a>,
    out: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for MatchTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let dim = self.args.dim;
        for row in part_of(self.out.len() / dim, self.parts, 1, index) {
            let rows = self.args.rows.map(|rows| &rows[row * dim..(row + 1) * dim]);
            // SAFETY: a row belongs to one task.
            let out = unsafe { self.out.part(row * dim, dim) };
            simd.call(MatchRow { args: &self.args, rows, out });
        }
    }
}

struct MatchRow<'a> {
    args: &'a MatchArgs<'a>,
    rows: [&'a [f32]; 2],
    out: &'a mut [f32],
}

/// `y · factor`.
#[derive(Clone, Copy)]
struct Scaled(f32);

impl Pairwise for Scaled {
    #[inline(always)]
    fn of<S: Isa>(self, simd: S, _x: S::F, y: S::F) -> S::F {
        simd.mul(y, simd.splat(self.0))
    }
}

/// `x + y · factor`.
#[derive(Clone, Copy)]
struct PlusScaled(f32);

impl Pairwise for PlusScaled {
    #[inline(always)]
    fn of<S: Isa>(self, simd: S, x: S::F, y: S::F) -> S::F {
        simd.add(x, simd.mul(y, simd.splat(self.0)))
    }
}

impl Kernel for MatchRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { args, rows: [x, like], out } = self;
        let dim = args.dim as f32;
        let least = (squares(simd, x) / dim).max(args.floor);
        let factor = (squares(simd, like) / dim / least).sqrt() * args.scale;
        match args.store {
            Store::Set => zip(simd, out, x, Scaled(factor)),
            Store::Add => zip(simd, out, x, PlusScaled(factor)),
        }
    }
}

/// Rows brought to the size of others.
pub(crate) fn match_rms(ctx: &mut ExecCtx, args: MatchArgs<'_>, out: &mut [f32]) {
    let parts = ctx.parts(out.len() / args.dim, SMALLEST.div_ceil(args.dim), 1);
    ctx.run(parts, &MatchTask { args, out: SharedSlice::new(out), parts });
}

struct ThresholdTask<'a> {
    x: SharedSlice<'a, f32>,
    dim: usize,
    deviations: f32,
    parts: usize,
}

impl Task for ThresholdTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        for row in part_of(self.x.len() / self.dim, self.parts, 1, index) {
            // SAFETY: a row belongs to one task.
            let x = unsafe { self.x.part(row * self.dim, self.dim) };
            simd.call(ThresholdRow { x, deviations: self.deviations });
        }
    }
}

struct ThresholdRow<'a> {
    x: &'a mut [f32],
    deviations: f32,
}

/// Up to sixteen numbers, and `rest` in the lanes without one.
#[inline(always)]
fn filled<S: Isa>(simd: S, part: &[f32], rest: f32) -> S::F {
    let mut lanes = [rest; LANES];
    lanes[..part.len()].copy_from_slice(part);
    // SAFETY: there are sixteen.
    unsafe { simd.load(lanes.as_ptr()) }
}

impl Kernel for ThresholdRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { x, deviations } = self;
        let count = x.len() as f32;
        let mut sum = simd.splat(0.0);
        for part in x.chunks(LANES) {
            sum = simd.add(sum, filled(simd, part, 0.0));
        }
        let mean = simd.sum(sum) / count;
        let mut spread = simd.splat(0.0);
        for part in x.chunks(LANES) {
            let far = simd.sub(filled(simd, part, mean), simd.splat(mean));
            spread = simd.fma(far, far, spread);
        }
        let least = mean + deviations * (simd.sum(spread) / count).sqrt();
        for part in x.chunks_mut(LANES) {
            let (at, lanes) = (part.as_mut_ptr(), part.len());
            // SAFETY: exactly the elements of the chunk are loaded and stored.
            unsafe {
                let above = simd.sub(simd.load_part(at, lanes), simd.splat(least));
                // The second one where either is not a number, which so stays one.
                simd.store_part(at, lanes, simd.max(simd.splat(0.0), above));
            }
        }
    }
}

/// What of each row lies above its mean by so many standard deviations.
pub(crate) fn threshold(ctx: &mut ExecCtx, dim: usize, deviations: f32, x: &mut [f32]) {
    let parts = ctx.parts(x.len() / dim, SMALLEST.div_ceil(dim), 1);
    ctx.run(parts, &ThresholdTask { x: SharedSlice::new(x), dim, deviations, parts });
}
