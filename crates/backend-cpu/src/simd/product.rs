//! Rows times a range of a weight's channels: one task of a linear operation.
//!
//! # Layout
//! Few rows (at most [`FUSED_ROWS`]): weights are decoded in registers and used at once, one pass over
//! the stored bytes. More rows: the task's channels are decoded to scratch as `[N channels][step][N][16]`, then
//! blocks of rows run over them. Both end in [`super::tile::accumulate`], so both give the same bits.

use super::codes::{Decode, Decoded, WithDecode, padded_groups, with_decode};
use super::decode::DecodeRow;
use super::isa::{Isa, Kernel, LANES, LARGEST_TILE};
use super::tile::{Channels, accumulate, fold, steps, stored};
use super::{Packed, Tiled};
use crate::pool::Shared;
use crate::weight::{Form, Weight};
use forerun_backend::op::Store;
use forerun_base::Matrix;
use std::array::from_fn;
use std::ops::Range;

/// Up to here a weight is decoded in registers for all rows together.
const FUSED_ROWS: usize = 16;
/// Rows of the widest kernel that decodes in registers: with two channels its sums fill half of 32 registers.
const WIDE_ROWS: usize = 8;

/// Most panels of a tiled weight that are walked together.
pub(super) const TOGETHER: usize = 4;

/// Steps of a block along K: six rows and four channels of it stay in a 48 KiB first-level cache.
const BLOCK_STEPS: usize = 64;

/// Which row of a matrix stands at place `i` of a list.
#[derive(Clone, Copy)]
pub(super) enum Places<'a> {
    /// Row `i`.
    Same,
    /// Row `i − start`.
    From(usize),
    /// Row `list[i] / share`.
    Picked { list: &'a [u32], share: usize },
}

impl Places<'_> {
    #[inline(always)]
    pub(super) fn at(&self, i: usize) -> usize {
        match self {
            Self::Same => i,
            Self::From(start) => i - start,
            Self::Picked { list, share } => list[i] as usize / share,
        }
    }
}

/// Which matrix row a channel is.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Row `base + channel`.
    From(usize),
    /// Row `list[channel]`.
    Picked(&'a [u32]),
}

impl Source<'_> {
    #[inline(always)]
    fn row(&self, channel: usize) -> usize {
        match self {
            Self::From(base) => base + channel,
            Self::Picked(list) => list[channel] as usize,
        }
    }
}

/// Input rows.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) data: &'a [f32],
    pub(super) places: Places<'a>,
    /// All rows from the first on as tiles want them, where they were packed before.
    pub(super) packed: Option<Packed<'a>>,
}

/// Where sums go: `(row, channel)` to `data[row·stride + channel − first]`.
#[derive(Clone, Copy)]
pub(super) struct Output<'a> {
    pub(super) data: Shared<'a, f32>,
    pub(super) places: Places<'a>,
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) store: Store,
    /// One per channel of the matrix, or empty.
    pub(super) bias: &'a [f32],
}

/// The product of some rows with some channels.
pub(super) struct Product<'a, W = Weight> {
    pub(super) matrix: &'a W,
    pub(super) source: Source<'a>,
    pub(super) input: Input<'a>,
    pub(super) output: Output<'a>,
    pub(super) rows: Range<usize>,
    pub(super) channels: Range<usize>,
}

/// f32 of scratch that a product of some rows with some channels of `weight` needs; `packs` where its rows were not packed before.
pub(super) fn scratch_len(weight: &Weight, [rows, channels]: [usize; 2], packs: bool) -> usize {
    let matrix = match &weight.0 {
        Form::Plain(matrix) => matrix,
        Form::Tiled(tiled) => return tiled.scratch_len(rows, packs),
    };
    let (most, wide) = LARGEST_TILE;
    let tile = channels.next_multiple_of(wide) * LANES * (steps(matrix.cols()) + most);
    tile + 2 * wide * padded_groups(matrix.format(), matrix.cols())
}

impl<'a, W> Product<'a, W> {
    /// The same with the weight in its form.
    fn of<T>(&self, matrix: &'a T) -> Product<'a, T> {
        let Self { source, input, output, .. } = *self;
        let (rows, channels) = (self.rows.clone(), self.channels.clone());
        Product { matrix, source, input, output, rows, channels }
    }
}

impl Product<'_> {
    /// Computes and stores it.
    ///
    /// # Safety
    /// No other thread touches the outputs of these rows and channels meanwhile. Rows of the input lie
    /// in its data, rows of the channels in the matrix.
    pub(super) unsafe fn run<S: Isa>(&self, simd: S, scratch: &mut [f32]) {
        if self.rows.is_empty() || self.channels.is_empty() {
            return;
        }
        match &self.matrix.0 {
            Form::Plain(matrix) => {
                let product = &self.of(matrix);
                with_decode(matrix.format(), Bound { product, simd, scratch });
            }
            // SAFETY: the caller's promise.
            Form::Tiled(tiled) => unsafe { Tiled::product(&self.of(tiled), scratch) },
        }
    }
}

impl Product<'_, Matrix> {
    /// Input row `place`, or the last one where there are no more: a kernel may be wider than what is left.
    #[inline(always)]
    fn x(&self, place: usize) -> *const f32 {
        let place = place.min(self.rows.end - 1);
        let (k, row) = (self.matrix.cols(), self.input.places.at(place));
        self.input.data[row * k..(row + 1) * k].as_ptr()
    }

    /// Stores the sums of up to `M` rows from place `row` on and up to `N` channels.
    ///
    /// # Safety
    /// As for [`Product::run`].
    #[inline(always)]
    unsafe fn put<const M: usize, const N: usize>(
        &self,
        sums: [[f32; N]; M],
        row: usize,
        channel: usize,
    ) {
        let out = &self.output;
        let count = N.min(self.channels.end - channel);
        for (m, sums) in sums.iter().enumerate().take(self.rows.end - row) {
            let at = out.places.at(row + m) * out.stride + channel - out.first;
            // SAFETY: the caller's promise; each place is written by one row.
            let to = unsafe { out.data.part(at, count) };
            for (n, (to, &sum)) in to.iter_mut().zip(sums).enumerate() {
                let sum = if out.bias.is_empty() { sum } else { sum + out.bias[channel + n] };
                *to = if out.store == Store::Add { *to + sum } else { sum };
            }
        }
    }

    /// Decodes all channels to `tile`, the last one repeated to fill the last panel.
    fn unpack<S: Isa, D: Decode, const N: usize>(
        &self,
        simd: S,
        decode: D,
        tile: &mut [f32],
        scales: &mut [f32],
    ) {
        let (matrix, stride) = (self.matrix, N * LANES);
        for (i, panel) in tile.chunks_exact_mut(steps(matrix.cols()) * stride).enumerate() {
            for n in 0..N {
                let channel = (self.channels.start + i * N + n).min(self.channels.end - 1);
                let (row, out) = (self.source.row(channel), &mut panel[n * LANES..]);
                simd.call(DecodeRow { decode, matrix, row, out, stride, scales });
            }
        }
    }

    /// Plain code between kernels: the few-rows kernel, or a decode and one kernel per block of rows.
    ///
    /// # Safety
    /// As for [`Product::run`].
    unsafe fn sized<S: Isa, D: Decode, const N: usize>(
        &self,
        simd: S,
        decode: D,
        scratch: &mut [f32],
    ) {
        let (product, rows) = (self, self.rows.clone());
        if S::FUSED && D::FUSED && rows.len() <= FUSED_ROWS {
            // Wide only where its input rows stay in the first-level cache.
            let near = self.matrix.cols() * WIDE_ROWS * 4 <= 32 << 10;
            let most = if S::TILE.1 == 4 && near { WIDE_ROWS } else { 4 };
            for row in rows.clone().step_by(most) {
                let scratch = &mut *scratch;
                match most.min(rows.end - row) {
                    1 => simd.call(Fused::<D, 1, N> { product, row, decode, scratch }),
                    2 => simd.call(Fused::<D, 2, N> { product, row, decode, scratch }),
                    3 | 4 => simd.call(Fused::<D, 4, N> { product, row, decode, scratch }),
                    _ => simd.call(Fused::<D, WIDE_ROWS, 2> { product, row, decode, scratch }),
                }
            }
            return;
        }
        let wide = self.channels.len().next_multiple_of(N);
        let (tile, rest) = scratch.split_at_mut(wide * steps(self.matrix.cols()) * LANES);
        let (kept, scales) = rest.split_at_mut(LARGEST_TILE.0 * wide * LANES);
        self.unpack::<S, D, N>(simd, decode, tile, scales);
        let (tile, most) = (&*tile, S::TILE.0);
        for row in rows.clone().step_by(most) {
            match most.min(rows.end - row) {
                1..=3 => simd.call(Block::<3, N> { product, row, tile, kept }),
                _ => simd.call(Block::<6, N> { product, row, tile, kept }),
            }
        }
    }
}

/// `M` rows from place `row` on, weights decoded in registers. Made by [`Product::sized`] alone, whose caller promises that
/// the outputs are this thread's.
struct Fused<'a, D, const M: usize, const N: usize> {
    product: &'a Product<'a, Matrix>,
    row: usize,
    decode: D,
    scratch: &'a mut [f32],
}

impl<D: Decode, const M: usize, const N: usize> Kernel for Fused<'_, D, M, N> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { product, row, decode, scratch } = self;
        let k = product.matrix.cols();
        let x: [*const f32; M] = from_fn(|m| product.x(row + m));
        for channel in product.channels.clone().step_by(N) {
            // The last channel is repeated where there are no more.
            let last = product.channels.end - 1;
            let rows = from_fn(|n| product.source.row((channel + n).min(last)));
            let mut channels = stored::<S, D, N>(simd, decode, product.matrix, rows, scratch);
            if let Source::Picked(_) = product.source {
                // What follows in the matrix is not what comes next.
                channels.ahead = 0;
            }
            let mut sums = [[simd.splat(0.0); N]; M];
            // SAFETY: `x` and `stored` took checked slices of `k` columns.
            unsafe { accumulate(simd, &mut sums, x, k, &channels, 0..steps(k)) };
            // SAFETY: the outputs are this thread's.
            unsafe { product.put(fold(simd, &sums), row, channel) };
        }
    }
}

/// `M` rows from place `row` on over the decoded tile. `kept` holds accumulators between blocks of K.
/// Made by [`Product::sized`] alone, whose caller promises that the outputs are this thread's.
struct Block<'a, const M: usize, const N: usize> {
    product: &'a Product<'a, Matrix>,
    row: usize,
    tile: &'a [f32],
    kept: &'a mut [f32],
}

impl<const M: usize, const N: usize> Kernel for Block<'_, M, N> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { product, row, tile, kept } = self;
        let k = product.matrix.cols();
        let x: [*const f32; M] = from_fn(|m| product.x(row + m));
        let (one, last) = ([1.0_f32], steps(k));
        for from in (0..last).step_by(BLOCK_STEPS) {
            let to = last.min(from + BLOCK_STEPS);
            for (i, panel) in tile.chunks_exact(N * last * LANES).enumerate() {
                let channels = Channels {
                    decode: Decoded::<N>,
                    rows: from_fn(|n| panel[n * LANES..].as_ptr().cast()),
                    ahead: 0,
                    tail_bytes: 64,
                    group_steps: usize::MAX,
                    scales: [one.as_ptr(); N],
                    offsets: [one.as_ptr(); N],
                };
                let kept = kept[i * M * N * LANES..(i + 1) * M * N * LANES].as_mut_ptr();
                let mut sums = [[simd.splat(0.0); N]; M];
                // SAFETY: `kept` has a vector for each of the `M·N` accumulators; `x` and the panel are
                // checked slices of `k` columns; the outputs are this thread's.
                unsafe {
                    if from > 0 {
                        for m in 0..M {
                            for n in 0..N {
                                sums[m][n] = simd.load(kept.add((m * N + n) * LANES));
                            }
                        }
                    }
                    accumulate(simd, &mut sums, x, k, &channels, from..to);
                    if to < last {
                        for m in 0..M {
                            for n in 0..N {
                                simd.store(kept.add((m * N + n) * LANES), sums[m][n]);
                            }
                        }
                    } else {
                        product.put(fold(simd, &sums), row, product.channels.start + i * N);
                    }
                }
            }
        }
    }
}

/// A product on its way to its decoder.
struct Bound<'a, 'p, S> {
    product: &'a Product<'p, Matrix>,
    simd: S,
    scratch: &'a mut [f32],
}

impl<S: Isa> WithDecode for Bound<'_, '_, S> {
    fn run<D: Decode>(self, decode: D) {
        let Self { product, simd, scratch } = self;
        // SAFETY: `Product::run`, the only maker of this struct, has the same contract.
        unsafe {
            if S::TILE.1 == 4 {
                product.sized::<S, D, 4>(simd, decode, scratch);
            } else {
                product.sized::<S, D, 2>(simd, decode, scratch);
            }
        }
    }
}
