//! The f32 micro-kernel: `M` rows times `N` channels, accumulators in registers (register blocking). Every product with
//! a canonical weight ends here.
//!
//! # Math
//! `sum[m][n] = Σ_k x[m][k] · w[n][k]`.
//!
//! # Numerics
//! Lane `l` of an accumulator takes `k = l, l+16, …` in ascending order with fused multiply-add; past the end of a row
//! `x` counts as zero. `M`, `N`, where weights come from (decoded in registers or before) and how steps are cut into
//! ranges do not enter the result.

use super::decode::{Decode, padded_groups, widen_scales};
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Format, Matrix};
use std::array::from_fn;
use std::ops::Range;

/// Steps between checks for a new group, and between prefetches.
const RUN: usize = 4;

/// Steps of sixteen columns, the last one perhaps partial.
pub(crate) const fn steps(k: usize) -> usize {
    k.div_ceil(LANES)
}

/// `N` channels of a weight.
pub(crate) struct ChannelGroup<D, const N: usize> {
    /// How a step of codes becomes f32.
    pub(crate) decode: D,
    /// First byte of each channel: `K / 16` steps of `D::STEP_BYTES`, then `tail_bytes`.
    pub(crate) rows: [*const u8; N],
    /// Bytes from the current read position to what will be read next, to be prefetched; 0 where that is in cache
    /// already.
    pub(crate) prefetch_bytes: usize,
    /// Bytes of the partial step, if there is one.
    pub(crate) tail_bytes: usize,
    /// Steps that share a scale.
    pub(crate) group_steps: usize,
    /// One f32 per group of each channel.
    pub(crate) scales: [*const f32; N],
    /// One f32 per group of each channel.
    pub(crate) offsets: [*const f32; N],
}

impl<D: Decode, const N: usize> ChannelGroup<D, N> {
    /// The decoder's state for a group of channel `n`.
    ///
    /// # Safety
    /// `group` is below the number of groups in a row, so that `scales[n]` and `offsets[n]` have an element there.
    #[inline(always)]
    unsafe fn group<S: Isa>(&self, simd: S, n: usize, group: usize) -> D::Group<S> {
        // SAFETY: `group` is within both arrays (contract above).
        let (scale, offset) = unsafe { (*self.scales[n].add(group), *self.offsets[n].add(group)) };
        self.decode.group(simd, scale, offset)
    }
}

/// The matrix rows `rows` as they are stored. Their scales are widened into `scales`, which must outlive the channels
/// and have room for `2·N` times [`padded_groups`].
#[inline(always)]
pub(crate) fn stored<S: Isa, D: Decode, const N: usize>(
    simd: S,
    decode: D,
    matrix: &Matrix,
    rows: [usize; N],
    scales: &mut [f32],
) -> ChannelGroup<D, N> {
    let k = matrix.cols();
    let row_bytes = matrix.format().row_bytes(k);
    let groups = padded_groups(matrix.format(), matrix.cols());
    for (&row, pair) in rows.iter().zip(scales.chunks_exact_mut(2 * groups)) {
        let (scales, offsets) = pair.split_at_mut(groups);
        widen_scales(simd, matrix, row, [scales, offsets]);
    }
    let codes = matrix.codes();
    ChannelGroup {
        decode,
        rows: rows.map(|row| codes[row * row_bytes..(row + 1) * row_bytes].as_ptr()),
        prefetch_bytes: N * row_bytes,
        tail_bytes: row_bytes - k / LANES * D::STEP_BYTES,
        group_steps: match matrix.format() {
            Format::Dense(_) => usize::MAX,
            Format::Grouped { group, .. } => group / LANES,
        },
        scales: from_fn(|n| scales[2 * n * groups..].as_ptr()),
        offsets: from_fn(|n| scales[(2 * n + 1) * groups..].as_ptr()),
    }
}

/// Adds the products of the steps in `range` to `sums`.
///
/// # Safety
/// Every pointer in `x` is readable for `k` f32. Every row of `channels` is readable for `k / 16` steps and
/// `tail_bytes`, with a scale and an offset for each group of `k` columns. `range.end ≤ steps(k)`.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Isa, D: Decode, const M: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::F; N]; M],
    x: [*const f32; M],
    k: usize,
    channels: &ChannelGroup<D, N>,
    range: Range<usize>,
) {
    let whole = k / LANES;
    let mut step = range.start;
    // A copy on purpose: the compiler keeps a local array in registers once its loops are unrolled.
    let mut acc = *sums;
    // SAFETY: a step below `range.end ≤ steps(k)` lies in every row and in a group that has a scale; the partial step
    // is loaded from copies of exactly the bytes and elements that exist.
    unsafe {
        while step < range.end {
            let group = step / channels.group_steps;
            let mut shared = [channels.group(simd, 0, group); N];
            for n in 1..N {
                shared[n] = channels.group(simd, n, group);
            }
            let group_end = (group + 1).saturating_mul(channels.group_steps);
            let end = group_end.min(range.end).min(whole).min(step + RUN);
            if channels.prefetch_bytes > 0 {
                for n in 0..N {
                    for line in (0..RUN * D::STEP_BYTES).step_by(64) {
                        let at = channels.rows[n].wrapping_add(step * D::STEP_BYTES + line);
                        simd.prefetch(at.wrapping_add(channels.prefetch_bytes));
                    }
                }
            }
            while step < end {
                let mut w = [simd.splat(0.0); N];
                for n in 0..N {
                    let at = channels.rows[n].add(step * D::STEP_BYTES);
                    w[n] = channels.decode.weights(simd, at, shared[n]);
                }
                for m in 0..M {
                    let x = simd.load(x[m].add(step * LANES));
                    for n in 0..N {
                        acc[m][n] = simd.fma(x, w[n], acc[m][n]);
                    }
                }
                step += 1;
            }
            if step == whole && step < range.end && step < group_end {
                for n in 0..N {
                    let w = partial(simd, channels, n, whole, shared[n]);
                    for m in 0..M {
                        let x = simd.load_part(x[m].add(step * LANES), k % LANES);
                        acc[m][n] = simd.fma(x, w, acc[m][n]);
                    }
                }
                step += 1;
            }
        }
    }
    *sums = acc;
}

/// The weights of a partial last step, decoded from a copy so that nothing past the row is read.
///
/// # Safety
/// Row `n` of `channels` has `step` whole steps and `tail_bytes ≤ 64` more bytes.
#[inline(always)]
unsafe fn partial<S: Isa, D: Decode, const N: usize>(
    simd: S,
    channels: &ChannelGroup<D, N>,
    n: usize,
    step: usize,
    group: D::Group<S>,
) -> S::F {
    let mut copy = [0_u8; 64];
    // SAFETY: `tail_bytes` bytes are readable behind the whole steps (contract above) and fit the copy of 64; the
    // decoder reads one step, at most 64 bytes, of the copy.
    unsafe {
        let at = channels.rows[n].add(step * D::STEP_BYTES);
        std::ptr::copy_nonoverlapping(at, copy.as_mut_ptr(), channels.tail_bytes);
        channels.decode.weights(simd, copy.as_ptr(), group)
    }
}

/// The lanes of each accumulator, folded.
#[inline(always)]
pub(crate) fn fold<S: Isa, const M: usize, const N: usize>(
    simd: S,
    sums: &[[S::F; N]; M],
) -> [[f32; N]; M] {
    let mut folded = [[0.0; N]; M];
    let place = |i: usize| (i / N, i % N);
    for first in (0..M * N).step_by(4) {
        if first + 4 <= M * N {
            let mut four = [sums[0][0]; 4];
            for (i, lanes) in four.iter_mut().enumerate() {
                let (m, n) = place(first + i);
                *lanes = sums[m][n];
            }
            for (i, sum) in simd.sum4(four).into_iter().enumerate() {
                let (m, n) = place(first + i);
                folded[m][n] = sum;
            }
        } else {
            for i in first..M * N {
                let (m, n) = place(i);
                folded[m][n] = simd.sum(sums[m][n]);
            }
        }
    }
    folded
}

/// Decodes one matrix row of `k` columns to whole steps at `out`, `stride` f32 from step to step.
///
/// # Safety
/// The row of `channel` is readable for `k / 16` steps and `tail_bytes`, with a scale and an offset for each group;
/// `out` is writable for `(steps(k) − 1)·stride + 16` f32.
#[inline(always)]
pub(crate) unsafe fn decode_row<S: Isa, D: Decode>(
    simd: S,
    channel: &ChannelGroup<D, 1>,
    k: usize,
    out: *mut f32,
    stride: usize,
) {
    let whole = k / LANES;
    // SAFETY: every step is below `steps(k)`, so its codes, its group's scale and its sixteen outputs exist (contract
    // above).
    unsafe {
        for first in (0..steps(k)).step_by(channel.group_steps.min(steps(k))) {
            let group = first / channel.group_steps;
            let shared = channel.group(simd, 0, group);
            let end = first.saturating_add(channel.group_steps);
            for step in first..end.min(whole) {
                let at = channel.rows[0].add(step * D::STEP_BYTES);
                simd.store(out.add(step * stride), channel.decode.weights(simd, at, shared));
            }
            if whole < steps(k) && end > whole {
                simd.store(out.add(whole * stride), partial(simd, channel, 0, whole, shared));
            }
        }
    }
}
