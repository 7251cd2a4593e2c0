//! Products with weights, cut into tasks of channels and, when there are many rows, of rows.

use super::crew::Crew;
use super::elementwise::activate;
use super::isa::{Isa, Task};
use super::packing::Rows;
use super::pieces::Pieces;
use super::product::{Input, Output, Places, Product, Source, TOGETHER, scratch_len};
use super::{Scratch, Tiled, isa::LANES};
use crate::pool::Shared;
use crate::weight::{Form, Weight};
use forerun_backend::op::{Activation, Linears, Store};
use std::ops::Range;

/// Channels of a task are a multiple of this, whatever the instruction set's tile.
const GRAIN: usize = 4;
/// Multiply-adds below which a task is not worth its start.
const SMALLEST: usize = 1 << 15;
/// f32 of decoded weights in a task: an eighth of a 2 MiB second-level cache.
const TILE: usize = 1 << 16;
/// Rows below which the channels are not decoded a second time to have more tasks.
const ROW_CHUNK: usize = 48;

/// How a product is cut.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    rows: Pieces,
    channels: Pieces,
    /// Whether some tasks bring their rows into the order of a weight, each for itself.
    packs: bool,
}

impl Cut {
    /// For `rows` rows and `channels` of width `k`.
    pub(super) fn new(crew: &Crew, weights: &[&Weight], [rows, channels, k]: [usize; 3]) -> Self {
        let recipe = tiled(weights).next().map(Tiled::recipe);
        let packs = tiled(weights).any(|tiled| Some(tiled.recipe()) != recipe);
        let apart = tiled(weights).map(Tiled::rows_apart).max();
        // Rows of a piece of a product with tiled weights are a multiple of a tile's.
        let tile_rows = tiled(weights).map(Tiled::tile_rows).max();
        let (tiled, threads) = (recipe.is_some(), crew.threads());
        let grain = match tiled {
            // Kernels walk several panels together, unless that leaves threads without work.
            true if channels >= 2 * threads * TOGETHER * LANES => TOGETHER * LANES,
            true => LANES,
            false => GRAIN,
        };
        let smallest = SMALLEST.div_ceil((rows * grain * k).max(1));
        let by_rows = threads > 1 && apart.is_some_and(|apart| rows >= threads * apart);
        let cut = match tiled {
            true if threads == 1 => Pieces::equal(channels, grain, 1),
            true if by_rows => Pieces::shrinking(channels, grain, 1, smallest),
            true => Pieces::shrinking(channels, grain, threads, smallest),
            false => {
                let count = channels.div_ceil(grain);
                let pieces = crew.pieces(count, smallest, 4).max(channels * k / TILE);
                Pieces::equal(channels, grain, pieces.clamp(1, count.max(1)))
            }
        };
        let wanted = (2 * threads).div_ceil(cut.count());
        let row_pieces = match threads {
            1 => 1,
            _ if by_rows => threads,
            _ => wanted.min(rows / ROW_CHUNK).max(1),
        };
        let row_grain = tile_rows.unwrap_or(1);
        Self { rows: Pieces::equal(rows, row_grain, row_pieces), channels: cut, packs }
    }

    /// As above, but never cut into rows, which tasks take from where they lie.
    pub(super) fn channels(crew: &Crew, weights: &[&Weight], shape: [usize; 3]) -> Self {
        let rows = Pieces::equal(shape[0], 1, 1);
        Self { rows, packs: true, ..Self::new(crew, weights, shape) }
    }

    /// Pieces that each row's channels are in.
    pub(super) fn channel_pieces(&self) -> usize {
        self.channels.count()
    }

    pub(super) fn tasks(&self) -> usize {
        self.rows.count() * self.channel_pieces()
    }

    /// Rows and channels of a task.
    #[inline(always)]
    pub(super) fn part(&self, index: usize) -> [Range<usize>; 2] {
        let (rows, channels) = (index / self.channel_pieces(), index % self.channel_pieces());
        [self.rows.part(rows), self.channels.part(channels)]
    }

    /// Most rows and channels of a task.
    pub(super) fn largest(&self) -> (usize, usize) {
        (self.rows.largest(), self.channels.largest())
    }

    /// f32 of scratch for a task over `weight`, and of its results.
    pub(super) fn scratch(&self, weight: &Weight) -> (usize, usize) {
        let (rows, channels) = self.largest();
        let results = (rows * channels).next_multiple_of(LANES);
        (scratch_len(weight, [rows, channels], self.packs), results)
    }
}

/// The weights that were repacked.
pub(super) fn tiled<'a>(weights: &'a [&Weight]) -> impl Iterator<Item = &'a Tiled> {
    weights.iter().filter_map(|weight| match &weight.0 {
        Form::Tiled(tiled) => Some(tiled),
        Form::Plain(_) => None,
    })
}

/// One weight of a product.
pub(crate) struct LinearPart<'a> {
    pub(crate) matrix: &'a Weight,
    /// The first so many channels are wanted.
    pub(crate) channels: usize,
    /// Empty, or a number for each channel of the weight.
    pub(crate) bias: &'a [f32],
    pub(crate) out: &'a mut [f32],
    pub(crate) store: Store,
}

/// Weights of a product.
pub(crate) type LinearParts<'a> = [Option<LinearPart<'a>>; Linears::MOST];

/// A weight among others that are cut together.
#[derive(Clone, Copy)]
struct Placed<'a> {
    matrix: &'a Weight,
    output: Output<'a>,
    /// Its channels among those of all.
    channels: [usize; 2],
}

struct LinearTask<'a> {
    parts: [Option<Placed<'a>>; Linears::MOST],
    input: Input<'a>,
    cut: Cut,
}

impl Task for LinearTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let [rows, all] = self.cut.part(index);
        for &Placed { matrix, output, channels: [first, end] } in self.parts.iter().flatten() {
            let channels = all.start.max(first)..all.end.min(end);
            if channels.is_empty() {
                continue;
            }
            let product = Product {
                matrix,
                source: Source::From(0),
                input: self.input,
                output,
                rows: rows.clone(),
                channels: channels.start - first..channels.end - first,
            };
            // SAFETY: tasks have their own rows and channels; the operation's desc checked the shapes.
            unsafe { product.run(simd, scratch.floats()) };
        }
    }
}

/// `out (+)= x Wᵀ (+ bias)` for each of the parts. Those whose weights want their rows alike are computed side by side.
pub(crate) fn linears(crew: &mut Crew, mut x: Rows<'_>, mut parts: LinearParts<'_>) {
    let recipe = |part: &LinearPart<'_>| tiled(&[part.matrix]).next().map(Tiled::recipe);
    while let Some(first) = parts.iter().flatten().next().map(recipe) {
        let alike = |part: &&mut Option<LinearPart<'_>>| part.as_ref().map(recipe) == Some(first);
        let mut now = [const { None }; Linears::MOST];
        for (place, part) in now.iter_mut().zip(parts.iter_mut().filter(alike)) {
            *place = part.take();
        }
        side_by_side(crew, x, now);
        // SAFETY: the first job has made them.
        x = unsafe { x.made() };
    }
}

/// What [`linears`] does with weights that want their rows alike.
fn side_by_side(crew: &mut Crew, x: Rows<'_>, mut parts: LinearParts<'_>) {
    let Some(LinearPart { matrix: first, channels, out, .. }) = &parts[0] else { return };
    let (first, rows) = (*first, out.len().checked_div(*channels));
    let mut end: usize = 0;
    let parts = parts.each_mut().map(|part| {
        let LinearPart { matrix, channels, bias, out, store } = part.as_mut()?;
        // Pieces end where panels do.
        let start = end.next_multiple_of(LANES);
        end = start + *channels;
        let (data, places) = (Shared::new(out), Places::Same);
        let output = Output { data, places, stride: *channels, first: 0, store: *store, bias };
        Some(Placed { matrix, output, channels: [start, end] })
    });
    // Of no channels at all nothing tells the number of rows, and nothing is to be done.
    let rows = rows.unwrap_or(x.data.len() / first.cols());
    let cut = Cut::new(crew, &[first], [rows, end, first.cols()]);
    let scratch = parts.iter().flatten().map(|part| cut.scratch(part.matrix).0).max();
    crew.reserve(scratch.unwrap_or(0), 0);
    crew.with_rows(&[first], x, |crew, input, before| {
        crew.run_after(before, cut.tasks(), &LinearTask { parts, input, cut });
    });
}

/// `out = act(x Gᵀ) · (x Uᵀ)`.
pub(crate) fn gated_linear(
    crew: &mut Crew,
    [gate, up]: [&Weight; 2],
    activation: Activation,
    x: Rows<'_>,
    out: &mut [f32],
) {
    let (n, k) = (gate.rows(), gate.cols());
    let Some(rows) = out.len().checked_div(n) else { return };
    let cut = Cut::new(crew, &[gate, up], [rows, n, 2 * k]);
    let (gate_scratch, results) = cut.scratch(gate);
    crew.reserve(results + gate_scratch.max(cut.scratch(up).0), 0);
    let data = Shared::new(out);
    let (places, store) = (Places::Same, Store::Set);
    let output = Output { data, places, stride: n, first: 0, store, bias: &[] };
    crew.with_rows(&[gate, up], x, |crew, input, first| {
        let task = GatedTask { gate, up, input, output, cut, activation };
        crew.run_after(first, cut.tasks(), &task);
    });
}

struct GatedTask<'a> {
    gate: &'a Weight,
    up: &'a Weight,
    input: Input<'a>,
    output: Output<'a>,
    cut: Cut,
    activation: Activation,
}

impl Task for GatedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let [rows, channels] = self.cut.part(index);
        let gated = Gated {
            weights: [(self.gate, 0), (self.up, 0)],
            input: self.input,
            output: self.output,
            rows,
            channels,
            activation: self.activation,
        };
        // SAFETY: tasks have their own rows and channels; the operation's desc checked the shapes.
        unsafe { gated.run(simd, scratch.floats()) };
    }
}

/// Some rows and channels of `act(x Gᵀ) · (x Uᵀ)`; matrices with the row of their channel 0.
pub(super) struct Gated<'a> {
    pub(super) weights: [(&'a Weight, usize); 2],
    pub(super) input: Input<'a>,
    pub(super) output: Output<'a>,
    pub(super) rows: Range<usize>,
    pub(super) channels: Range<usize>,
    pub(super) activation: Activation,
}

impl Gated<'_> {
    /// Computes and stores it.
    ///
    /// # Safety
    /// As for [`Product::run`], for both matrices.
    pub(super) unsafe fn run<S: Isa>(&self, simd: S, scratch: &mut [f32]) {
        let Self { weights: [gate, up], input, output, .. } = *self;
        let (start, wide) = (self.rows.start, self.channels.len());
        let len = self.rows.len() * wide;
        let (ups, scratch) = scratch.split_at_mut(len.next_multiple_of(LANES));
        let local = Output {
            data: Shared::new(&mut ups[..len]),
            places: Places::From(start),
            stride: wide,
            first: self.channels.start,
            ..output
        };
        for ((matrix, base), output) in [(gate, output), (up, local)] {
            let (rows, channels) = (self.rows.clone(), self.channels.clone());
            let source = Source::From(base);
            // SAFETY: the caller's promise; `local` belongs to this thread.
            unsafe { Product { matrix, source, input, output, rows, channels }.run(simd, scratch) };
        }
        for row in self.rows.clone() {
            let at = output.places.at(row) * output.stride + self.channels.start - output.first;
            // SAFETY: the same outputs as the gate's, which is done.
            let out = unsafe { output.data.part(at, wide) };
            let up = &ups[(row - start) * wide..(row - start + 1) * wide];
            activate(simd, self.activation, out, up);
        }
    }
}
