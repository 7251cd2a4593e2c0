//! A row of the short convolution: weighted rows summed, and what follows the sum. Lanes run along channels.

use super::isa::{Isa, LANES};
use super::math::silu;
use std::array::from_fn;

/// What follows the sum: a bias, silu, a factor, in that order. Slices are as long as the row.
#[derive(Clone, Copy)]
pub(crate) struct AfterSum<'a> {
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) silu: bool,
    pub(crate) factor: Option<&'a [f32]>,
}

impl AfterSum<'_> {
    /// Silu and nothing else.
    pub(crate) const SILU: Self = Self { bias: None, silu: true, factor: None };

    fn fits(&self, len: usize) -> bool {
        [self.bias, self.factor].into_iter().flatten().all(|row| row.len() == len)
    }

    /// Of the sums of `lanes` channels from `at` on.
    ///
    /// # Safety
    /// `lanes ≤ 16` elements are left in the slices from `at` on.
    #[inline(always)]
    unsafe fn of<S: Isa>(&self, simd: S, mut sum: S::F, at: usize, lanes: usize) -> S::F {
        if let Some(bias) = self.bias {
            // SAFETY: `lanes` elements are left (contract above).
            sum = simd.add(sum, unsafe { simd.load_part(bias.as_ptr().add(at), lanes) });
        }
        if self.silu {
            sum = silu(simd, sum);
        }
        if let Some(factor) = self.factor {
            // SAFETY: `lanes` elements are left (contract above).
            sum = simd.mul(sum, unsafe { simd.load_part(factor.as_ptr().add(at), lanes) });
        }
        sum
    }
}

/// `out = after(Σ_j weight_j · row_j)` over `taps` pairs of weight and row, each as long as `out`.
#[inline(always)]
pub(crate) fn convolve<'a, S: Isa>(
    simd: S,
    taps: usize,
    tap: impl Fn(usize) -> [&'a [f32]; 2],
    after: AfterSum<'_>,
    out: &mut [f32],
) {
    // The published models have three or four.
    match taps {
        3 => return convolve_taps::<S, 3>(simd, from_fn(tap), after, out),
        4 => return convolve_taps::<S, 4>(simd, from_fn(tap), after, out),
        _ => assert!(after.fits(out.len()), "a bias is as long as its row"),
    }
    for at in (0..out.len()).step_by(LANES) {
        let lanes = LANES.min(out.len() - at);
        let mut sum = simd.splat(0.0);
        for j in 0..taps {
            let pair = tap(j).map(|row| row[at..].as_ptr());
            // SAFETY: `lanes` elements are left in both slices, which are as long as `out`.
            sum = unsafe { add(simd, pair, lanes, sum) };
        }
        // SAFETY: `lanes` elements are left, in what follows the sum as well (asserted above).
        unsafe {
            let sum = after.of(simd, sum, at, lanes);
            simd.store_part(out[at..].as_mut_ptr(), lanes, sum);
        }
    }
}

/// The same sums, with the slices of all taps looked up once per row.
#[inline(always)]
fn convolve_taps<S: Isa, const TAPS: usize>(
    simd: S,
    taps: [[&[f32]; 2]; TAPS],
    after: AfterSum<'_>,
    out: &mut [f32],
) {
    let whole = taps.iter().flatten().all(|row| row.len() == out.len()) && after.fits(out.len());
    assert!(whole, "a row is as long as its output");
    for at in (0..out.len()).step_by(LANES) {
        let lanes = LANES.min(out.len() - at);
        // SAFETY: `lanes` elements are left in every slice, all of which are as long as `out`.
        unsafe {
            let mut sum = simd.splat(0.0);
            for row in &taps {
                sum = add(simd, row.map(|row| row.as_ptr().add(at)), lanes, sum);
            }
            let sum = after.of(simd, sum, at, lanes);
            simd.store_part(out.as_mut_ptr().add(at), lanes, sum);
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
