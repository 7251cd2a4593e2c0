//! Linear operations, partitioned into tasks of output channels and, when there are many rows, of rows. K is never
//! split between threads: partial sums would have to be added in an order that depends on the number of threads.

use super::packed_rows::InputRows;
use super::packed_weight::PackedWeight;
use super::product::{ChannelMap, GemmInput, GemmOutput, MAX_PANELS, Product, RowMap, scratch_len};
use crate::pool::SharedSlice;
use crate::simd::elementwise::activate;
use crate::simd::exec_ctx::ExecCtx;
use crate::simd::isa::{Isa, Task};
use crate::simd::partition::Partition;
use crate::simd::{Scratch, isa::LANES};
use crate::weight::{Weight, WeightForm};
use forerun_backend::op::{Activation, Channels, Linears, Store};
use std::ops::Range;

/// Channels of a task over canonical weights are a multiple of this, whatever the instruction set's register block.
const GRAIN: usize = 4;
/// Products of some channels begin at multiples of this: where kernels take their largest groups of panels.
pub(crate) const CUT_CHANNELS: usize = MAX_PANELS * LANES;
/// A task with fewer multiply-adds costs more to dispatch than it saves.
const SMALLEST: usize = 1 << 15;
/// f32 of decoded weights in a task: an eighth of a 2 MiB L2 cache.
const TILE: usize = 1 << 16;
/// A task has at least this many rows where rows are split as well: every row part decodes the weights again.
const ROW_CHUNK: usize = 48;

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(crate) struct GemmShape {
    pub(crate) rows: usize,
    pub(crate) channels: usize,
    /// Columns of the weight, or of both where a task multiplies two.
    pub(crate) k: usize,
}

/// How a product is partitioned into tasks: row parts times channel parts.
#[derive(Clone, Copy)]
pub(crate) struct GemmPartition {
    rows: Partition,
    channels: Partition,
    /// Whether some weight needs another activation layout than the first, so that tasks pack their rows themselves.
    packs: bool,
}

impl GemmPartition {
    /// For a product of this shape on the context's threads.
    pub(crate) fn new(ctx: &ExecCtx, weights: &[&Weight], shape: GemmShape) -> Self {
        let GemmShape { rows, channels, k } = shape;
        let layout = packed(weights).next().map(PackedWeight::layout);
        let packs = packed(weights).any(|packed| Some(packed.layout()) != layout);
        let apart = packed(weights).map(PackedWeight::row_split_threshold).max();
        // Row parts end where tiles of packed rows do.
        let max_tile_rows = packed(weights).map(PackedWeight::max_tile_rows).max();
        let (packed, threads) = (layout.is_some(), ctx.threads());
        let grain = match packed {
            // Kernels take several panels per call, unless that leaves threads without work.
            true if channels >= 2 * threads * MAX_PANELS * LANES => MAX_PANELS * LANES,
            true => LANES,
            false => GRAIN,
        };
        let smallest = SMALLEST.div_ceil((rows * grain * k).max(1));
        let by_rows = threads > 1 && apart.is_some_and(|apart| rows >= threads * apart);
        let partition = match packed {
            true if threads == 1 => Partition::equal(channels, grain, 1),
            true if by_rows => Partition::shrinking(channels, grain, 1, smallest),
            true => Partition::shrinking(channels, grain, threads, smallest),
            false => {
                let count = channels.div_ceil(grain);
                let parts = ctx.parts(count, smallest, 4).max(channels * k / TILE);
                Partition::equal(channels, grain, parts.clamp(1, count.max(1)))
            }
        };
        let wanted = (2 * threads).div_ceil(partition.count());
        let row_parts = match threads {
            1 => 1,
            _ if by_rows => threads,
            _ => wanted.min(rows / ROW_CHUNK).max(1),
        };
        let row_grain = max_tile_rows.unwrap_or(1);
        Self { rows: Partition::equal(rows, row_grain, row_parts), channels: partition, packs }
    }

    /// As above, but never split into row parts: tasks gather their rows, so there is no packed tile to align with.
    pub(crate) fn channels(ctx: &ExecCtx, weights: &[&Weight], shape: GemmShape) -> Self {
        let rows = Partition::equal(shape.rows, 1, 1);
        Self { rows, packs: true, ..Self::new(ctx, weights, shape) }
    }

    /// How many tasks a row's channels are spread over.
    pub(crate) fn channel_parts(&self) -> usize {
        self.channels.count()
    }

    pub(crate) fn tasks(&self) -> usize {
        self.rows.count() * self.channel_parts()
    }

    /// Rows and channels of a task.
    #[inline(always)]
    pub(crate) fn part(&self, index: usize) -> [Range<usize>; 2] {
        let (rows, channels) = (index / self.channel_parts(), index % self.channel_parts());
        [self.rows.part(rows), self.channels.part(channels)]
    }

    /// Most rows and channels of a task.
    pub(crate) fn largest(&self) -> (usize, usize) {
        (self.rows.largest(), self.channels.largest())
    }

    /// f32 of scratch for a task over `weight`, and for its results.
    pub(crate) fn scratch(&self, weight: &Weight) -> (usize, usize) {
        let (rows, channels) = self.largest();
        let results = (rows * channels).next_multiple_of(LANES);
        (scratch_len(weight, rows, channels, self.packs), results)
    }
}

/// The packed ones among the weights.
pub(crate) fn packed<'a>(weights: &'a [&Weight]) -> impl Iterator<Item = &'a PackedWeight> {
    weights.iter().filter_map(|weight| match &weight.0 {
        WeightForm::Packed(packed) => Some(packed),
        WeightForm::Canonical(_) => None,
    })
}

/// One weight of a product.
pub(crate) struct ProductPart<'a> {
    pub(crate) matrix: &'a Weight,
    /// The channels that are computed.
    pub(crate) channels: Channels,
    /// Empty, or a number for each channel of the weight.
    pub(crate) bias: &'a [f32],
    pub(crate) out: &'a mut [f32],
    pub(crate) store: Store,
}

/// Weights of a product.
pub(crate) type LinearParts<'a> = [Option<ProductPart<'a>>; Linears::MOST];

/// A weight among others that are partitioned together, as if their channels were one matrix.
#[derive(Clone, Copy)]
struct Placed<'a> {
    matrix: &'a Weight,
    output: GemmOutput<'a>,
    /// Its channels in that matrix.
    channels: [usize; 2],
}

struct LinearTask<'a> {
    parts: [Option<Placed<'a>>; Linears::MOST],
    input: GemmInput<'a>,
    partition: GemmPartition,
}

impl Task for LinearTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let [rows, all] = self.partition.part(index);
        for &Placed { matrix, output, channels: [first, end] } in self.parts.iter().flatten() {
            let channels = all.start.max(first)..all.end.min(end);
            if channels.is_empty() {
                continue;
            }
            let product = Product {
                matrix,
                channel_map: ChannelMap::Offset(0),
                input: self.input,
                output,
                rows: rows.clone(),
                channels: channels.start - first + output.first
                    ..channels.end - first + output.first,
            };
            // SAFETY: parts of a partition are disjoint, so no other task writes these rows and channels; the operation
            // was checked against its declared shapes before it ran, so rows lie in the input and channels in the
            // weight.
            unsafe { product.run(simd, scratch.floats()) };
        }
    }
}

/// `out (+)= x Wᵀ (+ bias)` for each of the parts. Weights that share an activation layout run as one job.
pub(crate) fn linears(ctx: &mut ExecCtx, mut x: InputRows<'_>, mut parts: LinearParts<'_>) {
    let layout = |part: &ProductPart<'_>| packed(&[part.matrix]).next().map(PackedWeight::layout);
    while let Some(first) = parts.iter().flatten().next().map(layout) {
        let alike = |part: &&mut Option<ProductPart<'_>>| part.as_ref().map(layout) == Some(first);
        let mut now = [const { None }; Linears::MOST];
        for (place, part) in now.iter_mut().zip(parts.iter_mut().filter(alike)) {
            *place = part.take();
        }
        side_by_side(ctx, x, now);
        // SAFETY: the job above ran the norm's tasks for all rows and has ended, so nothing writes the normed rows any
        // more.
        x = unsafe { x.made() };
    }
}

/// One job of [`linears`]: all of these weights share an activation layout.
fn side_by_side(ctx: &mut ExecCtx, x: InputRows<'_>, mut parts: LinearParts<'_>) {
    let Some(ProductPart { matrix: first, channels, out, .. }) = &parts[0] else { return };
    let (first, rows) = (*first, out.len().checked_div(channels.count));
    let mut end: usize = 0;
    let parts = parts.each_mut().map(|part| {
        let ProductPart { matrix, channels, bias, out, store } = part.as_mut()?;
        // Every weight starts at a multiple of sixteen, so that parts end where panels do.
        let start = end.next_multiple_of(LANES);
        let Channels { first, count } = *channels;
        end = start + count;
        let (data, row_map) = (SharedSlice::new(out), RowMap::Identity);
        let output = GemmOutput { data, row_map, stride: count, first, store: *store, bias };
        Some(Placed { matrix, output, channels: [start, end] })
    });
    // With no channels the output is empty and does not tell the number of rows; nothing will be computed then.
    let rows = rows.unwrap_or(x.data.len() / first.cols());
    let partition =
        GemmPartition::new(ctx, &[first], GemmShape { rows, channels: end, k: first.cols() });
    let scratch = parts.iter().flatten().map(|part| partition.scratch(part.matrix).0).max();
    ctx.reserve(scratch.unwrap_or(0), 0);
    ctx.with_rows(&[first], x, |ctx, input, before| {
        ctx.run_with_prologue(before, partition.tasks(), &LinearTask { parts, input, partition });
    });
}

/// `out = act(x Gᵀ) · (x Uᵀ)`.
pub(crate) fn gated_linear(
    ctx: &mut ExecCtx,
    [gate, up]: [&Weight; 2],
    activation: Activation,
    x: InputRows<'_>,
    out: &mut [f32],
) {
    let (n, k) = (gate.rows(), gate.cols());
    let Some(rows) = out.len().checked_div(n) else { return };
    let partition = GemmPartition::new(ctx, &[gate, up], GemmShape { rows, channels: n, k: 2 * k });
    let (gate_scratch, results) = partition.scratch(gate);
    ctx.reserve(results + gate_scratch.max(partition.scratch(up).0), 0);
    let data = SharedSlice::new(out);
    let (row_map, store) = (RowMap::Identity, Store::Set);
    let output = GemmOutput { data, row_map, stride: n, first: 0, store, bias: &[] };
    ctx.with_rows(&[gate, up], x, |ctx, input, first| {
        let task = GatedTask { gate, up, input, output, partition, activation };
        ctx.run_with_prologue(first, partition.tasks(), &task);
    });
}

struct GatedTask<'a> {
    gate: &'a Weight,
    up: &'a Weight,
    input: GemmInput<'a>,
    output: GemmOutput<'a>,
    partition: GemmPartition,
    activation: Activation,
}

impl Task for GatedTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let [rows, channels] = self.partition.part(index);
        let gated = Gated {
            weights: [(self.gate, 0), (self.up, 0)],
            input: self.input,
            output: self.output,
            rows,
            channels,
            activation: self.activation,
        };
        // SAFETY: parts of a partition are disjoint, so no other task writes these rows and channels; the operation was
        // checked against its declared shapes before it ran, so rows lie in the input and channels in the weight.
        unsafe { gated.run(simd, scratch.floats()) };
    }
}

/// Some rows and channels of `act(x Gᵀ) · (x Uᵀ)`: each weight with the row of its matrix that is channel 0.
pub(crate) struct Gated<'a> {
    pub(crate) weights: [(&'a Weight, usize); 2],
    pub(crate) input: GemmInput<'a>,
    pub(crate) output: GemmOutput<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) channels: Range<usize>,
    pub(crate) activation: Activation,
}

impl Gated<'_> {
    /// Computes and stores it. The gate's product goes to the output, the other one to scratch.
    ///
    /// # Safety
    /// As for [`Product::run`], for both weights. `scratch` holds the results of one product and what each product
    /// needs ([`GemmPartition::scratch`]).
    pub(crate) unsafe fn run<S: Isa>(&self, simd: S, scratch: &mut [f32]) {
        let Self { weights: [gate, up], input, output, .. } = *self;
        let (start, wide) = (self.rows.start, self.channels.len());
        let len = self.rows.len() * wide;
        let (ups, scratch) = scratch.split_at_mut(len.next_multiple_of(LANES));
        let local = GemmOutput {
            data: SharedSlice::new(&mut ups[..len]),
            row_map: RowMap::Offset(start),
            stride: wide,
            first: self.channels.start,
            ..output
        };
        // Of a weight with itself, as relu squared is made of, one product is enough.
        let same = std::ptr::eq(gate.0, up.0) && gate.1 == up.1;
        let products = [(gate, output), (up, local)].into_iter().take(if same { 1 } else { 2 });
        for ((matrix, base), output) in products {
            let (rows, channels) = (self.rows.clone(), self.channels.clone());
            let channel_map = ChannelMap::Offset(base);
            // SAFETY: the gate writes the outputs that this function's contract gives to this thread; `local` is this
            // thread's scratch.
            unsafe {
                Product { matrix, channel_map, input, output, rows, channels }.run(simd, scratch)
            };
        }
        for row in self.rows.clone() {
            let at = output.row_map.at(row) * output.stride + self.channels.start - output.first;
            // SAFETY: these are the outputs that the gate's product has just written; no reference to them is left.
            let out = unsafe { output.data.part(at, wide) };
            let up = &mut ups[(row - start) * wide..(row - start + 1) * wide];
            if same {
                up.copy_from_slice(out);
            }
            activate(simd, self.activation, out, up);
        }
    }
}
