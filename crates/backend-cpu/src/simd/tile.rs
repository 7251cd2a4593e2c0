//! The one inner loop of every product: `M` rows times `N` channels, accumulators in registers.
//!
//! # Math
//! `sum[m][n] = Σ_k x[m][k] · w[n][k]`.
//!
//! # Numerics
//! Lane `l` of an accumulator takes `k = l, l+16, …` in ascending order with fused multiply-add; past the
//! end of a row `x` counts as zero. `M`, `N`, the source of the weights (stored or decoded before) and the cut
//! of the steps into ranges do not enter the result.

use super::codes::{Decode, padded_groups, widen_scales};
use super::isa::{Isa, LANES};
use forerun_base::{Format, Matrix};
use std::array::from_fn;
use std::ops::Range;

/// Steps between looks at the group and fetches ahead.
const RUN: usize = 4;

/// Steps of sixteen columns, the last one perhaps partial.
pub(super) const fn steps(k: usize) -> usize {
    k.div_ceil(LANES)
}

/// `N` channels of a weight.
pub(super) struct Channels<D, const N: usize> {
    /// How a step is decoded.
    pub(super) decode: D,
    /// First byte of each channel: `K / 16` steps of `D::STEP_BYTES`, then `tail_bytes`.
    pub(super) rows: [*const u8; N],
    /// Bytes from here to what will be read next, to be fetched ahead; 0 where it is near already.
    pub(super) ahead: usize,
    /// Bytes of the partial step, if there is one.
    pub(super) tail_bytes: usize,
    /// Steps that share a scale.
    pub(super) group_steps: usize,
    /// One f32 per group of each channel.
    pub(super) scales: [*const f32; N],
    /// One f32 per group of each channel.
    pub(super) offsets: [*const f32; N],
}

impl<D: Decode, const N: usize> Channels<D, N> {
    /// What the columns of a group of channel `n` share.
    ///
    /// # Safety
    /// The group has a scale and an offset.
    #[inline(always)]
    unsafe fn group<S: Isa>(&self, simd: S, n: usize, group: usize) -> D::Group<S> {
        // SAFETY: the caller's promise.
        let (scale, offset) = unsafe { (*self.scales[n].add(group), *self.offsets[n].add(group)) };
        self.decode.group(simd, scale, offset)
    }
}

/// The matrix rows `rows` as they are stored. Their scales go to `scales`, which must stay as long as the channels
/// are used and have room for `2·N` times [`padded_groups`].
#[inline(always)]
pub(super) fn stored<S: Isa, D: Decode, const N: usize>(
    simd: S,
    decode: D,
    matrix: &Matrix,
    rows: [usize; N],
    scales: &mut [f32],
) -> Channels<D, N> {
    let k = matrix.cols();
    let row_bytes = matrix.format().row_bytes(k);
    let groups = padded_groups(matrix.format(), matrix.cols());
    for (&row, pair) in rows.iter().zip(scales.chunks_exact_mut(2 * groups)) {
        let (scales, offsets) = pair.split_at_mut(groups);
        widen_scales(simd, matrix, row, [scales, offsets]);
    }
    let codes = matrix.codes();
    Channels {
        decode,
        rows: rows.map(|row| codes[row * row_bytes..(row + 1) * row_bytes].as_ptr()),
        ahead: N * row_bytes,
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
/// Every pointer in `x` has `k` f32, `channels` is as its fields say for `k` columns, and `range` ends at
/// `steps(k)` at the latest.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Isa, D: Decode, const M: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::F; N]; M],
    x: [*const f32; M],
    k: usize,
    channels: &Channels<D, N>,
    range: Range<usize>,
) {
    let whole = k / LANES;
    let mut step = range.start;
    // Registers, not memory: the compiler keeps a local array there once its loops are unrolled.
    let mut acc = *sums;
    // SAFETY: groups and steps stay inside the channels by `range`, and a partial step is loaded
    // from copies.
    unsafe {
        while step < range.end {
            let group = step / channels.group_steps;
            let mut shared = [channels.group(simd, 0, group); N];
            for n in 1..N {
                shared[n] = channels.group(simd, n, group);
            }
            let group_end = (group + 1).saturating_mul(channels.group_steps);
            let end = group_end.min(range.end).min(whole).min(step + RUN);
            if channels.ahead > 0 {
                for n in 0..N {
                    for line in (0..RUN * D::STEP_BYTES).step_by(64) {
                        let at = channels.rows[n].wrapping_add(step * D::STEP_BYTES + line);
                        simd.prefetch(at.wrapping_add(channels.ahead));
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
/// As for [`accumulate`].
#[inline(always)]
unsafe fn partial<S: Isa, D: Decode, const N: usize>(
    simd: S,
    channels: &Channels<D, N>,
    n: usize,
    step: usize,
    group: D::Group<S>,
) -> S::F {
    let mut copy = [0_u8; 64];
    // SAFETY: a step has at most 64 bytes, of which `tail_bytes` exist.
    unsafe {
        let at = channels.rows[n].add(step * D::STEP_BYTES);
        std::ptr::copy_nonoverlapping(at, copy.as_mut_ptr(), channels.tail_bytes);
        channels.decode.weights(simd, copy.as_ptr(), group)
    }
}

/// The lanes of each accumulator, folded.
#[inline(always)]
pub(super) fn fold<S: Isa, const M: usize, const N: usize>(
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
/// `channel` is as its fields say for `k` columns; `out` has room for `steps(k)` steps.
#[inline(always)]
pub(super) unsafe fn decode_row<S: Isa, D: Decode>(
    simd: S,
    channel: &Channels<D, 1>,
    k: usize,
    out: *mut f32,
    stride: usize,
) {
    let whole = k / LANES;
    // SAFETY: the caller's promise.
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
