//! Rows times a range of a weight's channels: what one task of a linear operation computes.
//!
//! # Layout
//! GEMV (at most [`FUSED_ROWS`] rows): weights are decoded in registers and used at once, one pass over the stored
//! bytes. GEMM: the task's channels are decoded to scratch as `[N channels][step][N][16]`, then register blocks of rows
//! run over them. Both end in [`accumulate`], so both give the same bits. Packed
//! weights go to [`PackedWeight::product`].

use super::decode::{Decode, Decoded, WithDecode, padded_groups, with_decode};
use super::micro_kernel::{ChannelGroup, accumulate, fold, steps, stored};
use super::packed_weight::{PackedRows, PackedWeight};
use crate::pool::SharedSlice;
use crate::simd::embed::DecodeRow;
use crate::simd::isa::{Isa, Kernel, LANES, LARGEST_TILE};
use crate::weight::{Weight, WeightForm};
use forerun_backend::op::Store;
use forerun_base::Matrix;
use std::array::from_fn;
use std::ops::Range;

/// Up to this many rows a weight is decoded in registers for all rows together.
const FUSED_ROWS: usize = 16;
/// Rows of the widest kernel that decodes in registers: with two channels its accumulators fill half of 32 registers.
const WIDE_ROWS: usize = 8;

/// Most panels that a kernel call takes together.
pub(crate) const MAX_PANELS: usize = 4;

/// Steps of a block along K: six rows and four channels of it stay in a 48 KiB L1 cache.
const BLOCK_STEPS: usize = 64;

/// Which row of a matrix is row `i` of a task.
#[derive(Clone, Copy)]
pub(crate) enum RowMap<'a> {
    /// Row `i`.
    Identity,
    /// Row `i − start`.
    Offset(usize),
    /// Row `list[i] / per_row`.
    Gather { list: &'a [u32], per_row: usize },
}

impl RowMap<'_> {
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> usize {
        match self {
            Self::Identity => i,
            Self::Offset(start) => i - start,
            Self::Gather { list, per_row } => list[i] as usize / per_row,
        }
    }
}

/// Which row of the weight's matrix is an output channel.
#[derive(Clone, Copy)]
pub(crate) enum ChannelMap<'a> {
    /// Row `base + channel`.
    Offset(usize),
    /// Row `list[channel]`.
    Gather(&'a [u32]),
}

impl ChannelMap<'_> {
    #[inline(always)]
    fn row(&self, channel: usize) -> usize {
        match self {
            Self::Offset(base) => base + channel,
            Self::Gather(list) => list[channel] as usize,
        }
    }
}

/// Input rows.
#[derive(Clone, Copy)]
pub(crate) struct GemmInput<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_map: RowMap<'a>,
    /// The same rows, all of them, in the layout of a packed weight, where they were packed before.
    pub(crate) packed: Option<PackedRows<'a>>,
}

/// Where results go: `(row, channel)` to `data[row·stride + channel − first]`.
#[derive(Clone, Copy)]
pub(crate) struct GemmOutput<'a> {
    pub(crate) data: SharedSlice<'a, f32>,
    pub(crate) row_map: RowMap<'a>,
    pub(crate) stride: usize,
    pub(crate) first: usize,
    pub(crate) store: Store,
    /// One per channel of the matrix, or empty.
    pub(crate) bias: &'a [f32],
}

/// The product of some rows with some channels.
pub(crate) struct Product<'a, W = Weight> {
    pub(crate) matrix: &'a W,
    pub(crate) channel_map: ChannelMap<'a>,
    pub(crate) input: GemmInput<'a>,
    pub(crate) output: GemmOutput<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) channels: Range<usize>,
}

/// f32 of scratch that a product of this size needs; `packs` where its rows are not packed yet.
pub(crate) fn scratch_len(weight: &Weight, rows: usize, channels: usize, packs: bool) -> usize {
    let matrix = match &weight.0 {
        WeightForm::Canonical(matrix) => matrix,
        WeightForm::Packed(weight) => return weight.scratch_len(rows, packs),
    };
    let (most, wide) = LARGEST_TILE;
    let tile = channels.next_multiple_of(wide) * LANES * (steps(matrix.cols()) + most);
    tile + 2 * wide * padded_groups(matrix.format(), matrix.cols())
}

impl<'a, W> Product<'a, W> {
    /// The same product with the weight in its stored form.
    fn of<T>(&self, matrix: &'a T) -> Product<'a, T> {
        let Self { channel_map, input, output, .. } = *self;
        let (rows, channels) = (self.rows.clone(), self.channels.clone());
        Product { matrix, channel_map, input, output, rows, channels }
    }
}

impl Product<'_> {
    /// Computes and stores it.
    ///
    /// # Safety
    ///
    /// - For every row in `rows` and channel in `channels`, the element `output.row_map.at(row)·stride + channel −
    ///   first` lies in `output.data`, and no other thread reads or writes it until this returns.
    /// - Every input row `input.row_map.at(row)` lies in `input.data`, and packed rows (where given) are those rows,
    ///   completely written.
    /// - Every channel's row lies in the weight.
    /// - `scratch` has at least [`scratch_len`] elements and begins at a cache line.
    pub(crate) unsafe fn run<S: Isa>(&self, simd: S, scratch: &mut [f32]) {
        if self.rows.is_empty() || self.channels.is_empty() {
            return;
        }
        match &self.matrix.0 {
            WeightForm::Canonical(matrix) => {
                let product = &self.of(matrix);
                with_decode(matrix.format(), Bound { product, simd, scratch });
            }
            // SAFETY: outputs are this thread's, rows and channels exist, packed rows are completely written and
            // `scratch` is long enough (contract above): all that `PackedWeight::product` demands.
            WeightForm::Packed(weight) => unsafe {
                PackedWeight::product(&self.of(weight), scratch)
            },
        }
    }
}

impl Product<'_, Matrix> {
    /// Input row of place `place`, or of the last place where there are no more: a kernel may be wider than what is
    /// left.
    #[inline(always)]
    fn x(&self, place: usize) -> *const f32 {
        let place = place.min(self.rows.end - 1);
        let (k, row) = (self.matrix.cols(), self.input.row_map.at(place));
        self.input.data[row * k..(row + 1) * k].as_ptr()
    }

    /// Stores the sums of up to `M` rows from place `row` on and up to `N` channels.
    ///
    /// # Safety
    /// As for [`Product::run`], for those rows and channels.
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
            let at = out.row_map.at(row + m) * out.stride + channel - out.first;
            // SAFETY: no other thread has the element of this row and channel (contract above), and distinct rows map
            // to distinct elements.
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
                let (row, out) = (self.channel_map.row(channel), &mut panel[n * LANES..]);
                simd.call(DecodeRow { decode, matrix, row, out, stride, scales });
            }
        }
    }

    /// Chooses between the GEMV kernel, and decoding once followed by one kernel per register block of rows.
    ///
    /// # Safety
    /// As for [`Product::run`], for those rows and channels.
    unsafe fn sized<S: Isa, D: Decode, const N: usize>(
        &self,
        simd: S,
        decode: D,
        scratch: &mut [f32],
    ) {
        let (product, rows) = (self, self.rows.clone());
        if S::FUSED && D::FUSED && rows.len() <= FUSED_ROWS {
            // Eight rows at a time only while they stay in a 32 KiB L1 cache.
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
                1..=3 => simd.call(DecodedTile::<3, N> { product, row, tile, kept }),
                _ => simd.call(DecodedTile::<6, N> { product, row, tile, kept }),
            }
        }
    }
}

/// `M` rows from place `row` on, weights decoded in registers. Only [`Product::sized`] makes one, so its contract (the
/// outputs belong to this thread) holds when the kernel runs.
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
            // The last channel is repeated where there are no more, and its result dropped.
            let last = product.channels.end - 1;
            let rows = from_fn(|n| product.channel_map.row((channel + n).min(last)));
            let mut channels = stored::<S, D, N>(simd, decode, product.matrix, rows, scratch);
            if let ChannelMap::Gather(_) = product.channel_map {
                // Gathered rows do not follow each other in memory, so prefetching the next bytes would be useless.
                channels.prefetch_bytes = 0;
            }
            let mut sums = [[simd.splat(0.0); N]; M];
            // SAFETY: `x` holds pointers to checked slices of `k` columns; `stored` describes checked rows of `k`
            // columns; the range ends at `steps(k)`.
            unsafe { accumulate(simd, &mut sums, x, k, &channels, 0..steps(k)) };
            // SAFETY: these rows and channels are within the product's, whose outputs belong to this thread (see the
            // struct).
            unsafe { product.put(fold(simd, &sums), row, channel) };
        }
    }
}

/// `M` rows from place `row` on over the decoded tile; `kept` holds accumulators between blocks of K. Only
/// [`Product::sized`] makes one, so its contract (the outputs belong to this thread) holds when the kernel runs.
struct DecodedTile<'a, const M: usize, const N: usize> {
    product: &'a Product<'a, Matrix>,
    row: usize,
    tile: &'a [f32],
    kept: &'a mut [f32],
}

impl<const M: usize, const N: usize> Kernel for DecodedTile<'_, M, N> {
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
                let channels = ChannelGroup {
                    decode: Decoded::<N>,
                    rows: from_fn(|n| panel[n * LANES..].as_ptr().cast()),
                    prefetch_bytes: 0,
                    tail_bytes: 64,
                    group_steps: usize::MAX,
                    scales: [one.as_ptr(); N],
                    offsets: [one.as_ptr(); N],
                };
                let kept = kept[i * M * N * LANES..(i + 1) * M * N * LANES].as_mut_ptr();
                let mut sums = [[simd.splat(0.0); N]; M];
                // SAFETY: `kept` is a checked slice of `M·N` vectors; `x` and the panel are checked slices of `k`
                // columns; the stored rows and channels are within the product's, whose outputs belong to this thread
                // (see the struct).
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

/// A product waiting for the decoder of its format.
struct Bound<'a, 'p, S> {
    product: &'a Product<'p, Matrix>,
    simd: S,
    scratch: &'a mut [f32],
}

impl<S: Isa> WithDecode for Bound<'_, '_, S> {
    fn run<D: Decode>(self, decode: D) {
        let Self { product, simd, scratch } = self;
        // SAFETY: only `Product::run` makes this struct, and it has the same contract as `sized`.
        unsafe {
            if S::TILE.1 == 4 {
                product.sized::<S, D, 4>(simd, decode, scratch);
            } else {
                product.sized::<S, D, 2>(simd, decode, scratch);
            }
        }
    }
}
