//! A few rows with one panel whose groups have scales of their own.

use super::super::code::{Code, weights};
use super::super::pack::CHUNK;
use super::super::vnni::{Few, Panel};
use super::{DIGITS, Dots, Half, Pair, codes, put};
use crate::simd::avx2::widen;
use crate::simd::isa::LANES;
use std::arch::x86_64::*;
use std::array::from_fn;

impl Few for Half<Panel> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<C: Code, const R: usize>(
        &self,
        _code: C,
        first: usize,
        out: &mut [[f32; LANES]; R],
    ) {
        let panel = &self.0;
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        let planes = panel.planes(first);
        // Steps of the codes in a unit, or the part of a step that a unit is.
        let (chunks, half) = ((panel.unit / CHUNK).max(1), panel.unit < CHUNK);
        for unit in 0..panel.units {
            // SAFETY: the caller's promise.
            unsafe {
                let words = panel.words(unit, first);
                let mut dots = Dots::<R, DIGITS>::begun(panel.raised, words, [panel.class, 0]);
                let x = panel.digits.wrapping_add(unit * DIGITS * panel.unit * panel.class);
                let x: [_; DIGITS] = from_fn(|p| x.wrapping_add(planes[p]));
                for chunk in 0..chunks {
                    let step = if half { unit / 2 } else { unit * chunks + chunk };
                    let all = codes::<C>(panel.codes.add(step * C::BITS * 64));
                    let x = x.map(|x| x.wrapping_add(chunk * CHUNK));
                    if half {
                        let some: [_; 4] = from_fn(|j| all[unit % 2 * 4 + j]);
                        dots.add::<C, 4>(&some, x, panel.slab);
                    } else {
                        dots.add::<C, 8>(&all, x, panel.slab);
                    }
                }
                self.finish(unit, first, &dots, &mut sums);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { put(sums, out) };
    }
}

impl Half<Panel> {
    /// Adds a unit's exact sums to the rows'.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn finish<const R: usize>(
        &self,
        unit: usize,
        first: usize,
        dots: &Dots<R, DIGITS>,
        sums: &mut [Pair<__m256>; R],
    ) {
        let panel = &self.0;
        let (float, scales, offsets) = panel.scales.at(unit);
        // SAFETY: the caller's promise.
        unsafe {
            let words = panel.words(unit, first);
            let (scales, offsets) = (widen(float, scales), offsets.map(|at| widen(float, at)));
            for half in 0..2 {
                let factors = weights(false)
                    .map(|weight| _mm256_mul_ps(scales[half], _mm256_set1_ps(weight)));
                for r in 0..R {
                    let sum = &mut sums[r][half];
                    for i in 0..DIGITS {
                        let whole = _mm256_cvtepi32_ps(dots.0[r][i][half]);
                        *sum = _mm256_fmadd_ps(whole, factors[i], *sum);
                    }
                    if let Some(offsets) = offsets {
                        let of_row = _mm256_set1_ps(*words.add(r));
                        *sum = _mm256_fmadd_ps(of_row, offsets[half], *sum);
                    }
                }
            }
        }
    }
}
