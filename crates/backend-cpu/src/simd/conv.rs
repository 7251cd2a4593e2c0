//! A row of the short convolution: weighted rows summed, then silu. Lanes run along channels.

use super::isa::{Isa, LANES};
use super::math::silu;
use std::array::from_fn;

/// `out = silu(Σ_j weight_j · row_j)` over `taps` pairs of weight and row, each as long as `out`.
#[inline(always)]
pub(crate) fn convolve<'a, S: Isa>(
    simd: S,
    taps: usize,
    tap: impl Fn(usize) -> [&'a [f32]; 2],
    out: &mut [f32],
) {
    // Every published model has four.
    if taps == 4 {
        return convolve_taps::<S, 4>(simd, from_fn(tap), out);
    }
    for at in (0..out.len()).step_by(LANES) {
        let lanes = LANES.min(out.len() - at);
        let mut sum = simd.splat(0.0);
        for j in 0..taps {
            let pair = tap(j).map(|row| row[at..].as_ptr());
            // SAFETY: `lanes` elements are left in both slices, which are as long as `out`.
            sum = unsafe { add(simd, pair, lanes, sum) };
        }
        // SAFETY: `lanes` elements are left.
        unsafe { simd.store_part(out[at..].as_mut_ptr(), lanes, silu(simd, sum)) };
    }
}

/// The same sums, with the slices of all taps looked up once per row.
#[inline(always)]
fn convolve_taps<S: Isa, const TAPS: usize>(simd: S, taps: [[&[f32]; 2]; TAPS], out: &mut [f32]) {
    let whole = taps.iter().flatten().all(|row| row.len() == out.len());
    assert!(whole, "a row is as long as its output");
    for at in (0..out.len()).step_by(LANES) {
        let lanes = LANES.min(out.len() - at);
        // SAFETY: `lanes` elements are left in every slice, all of which are as long as `out`.
        unsafe {
            let mut sum = simd.splat(0.0);
            for row in &taps {
                sum = add(simd, row.map(|row| row.as_ptr().add(at)), lanes, sum);
            }
            simd.store_part(out.as_mut_ptr().add(at), lanes, silu(simd, sum));
        }
    }
}

/// Adds weight times number.
///
/// # Safety
/// `w` and `x` are readable for `lanes ≤ 16` elements.
#[inline(always)]
unsafe fn add<S: Isa>(simd: S, [w, x]: [*const f32; 2], lanes: usize, sum: S::F) -> S::F {
    // SAFETY: `lanes` elements are readable at both (contract above).
    unsafe { simd.fma(simd.load_part(w, lanes), simd.load_part(x, lanes), sum) }
}
