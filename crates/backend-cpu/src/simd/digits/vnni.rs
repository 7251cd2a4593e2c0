//! A few rows with one panel, by dot products of bytes: codes are unpacked in registers and used at once.

use super::super::isa::LANES;
use super::code::{AHEAD, Code, Scales, weights};
use super::pack::CHUNK;
use std::arch::x86_64::*;

/// What multiplies a few rows with a panel.
pub(super) trait Few {
    /// Sums of the rows `first..first + R` with all channels.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the fields are as they say, for codes of type `C`.
    unsafe fn rows<C: Code, const R: usize>(&self, code: C, first: usize) -> [__m512; R];
}

/// A panel, and where the rows' digits and words begin; both go from unit to unit by `unit_bytes` and 4·`class` words.
pub(super) struct Panel {
    pub(super) codes: *const u8,
    pub(super) scales: Scales,
    /// What every stored code has too much.
    pub(super) excess: Option<u32>,
    pub(super) digits: *const u8,
    pub(super) words: *const f32,
    /// Rows of the tile.
    pub(super) class: usize,
    pub(super) unit: usize,
    pub(super) units: usize,
    /// Bytes of a row in a slab.
    pub(super) slab: usize,
}

impl Few for Panel {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn rows<C: Code, const R: usize>(&self, code: C, first: usize) -> [__m512; R] {
        // SAFETY: the caller's promise.
        unsafe {
            if self.unit < CHUNK {
                self.sums::<C, R, true>(code, first)
            } else {
                self.sums::<C, R, false>(code, first)
            }
        }
    }
}

impl Panel {
    /// Bytes of a plane of a row at a unit.
    #[inline(always)]
    fn plane(&self, unit: usize, planes: usize, plane: usize, row: usize) -> *const u8 {
        let at = plane * self.unit;
        let place = (at / self.slab * self.class + row) * self.slab + at % self.slab;
        self.digits.wrapping_add(unit * planes * self.unit * self.class + place)
    }

    /// Sums of the rows `first..first + R`; units have 16 columns where `HALF`, else a multiple of 32.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn sums<C: Code, const R: usize, const HALF: bool>(
        &self,
        code: C,
        first: usize,
    ) -> [__m512; R] {
        let mut sums = [_mm512_setzero_ps(); R];
        let planes = if C::NARROW { 4 } else { 3 };
        let mut dots = [[_mm512_setzero_si512(); 4]; R];
        let chunks = (self.units * self.unit).div_ceil(CHUNK);
        let per = (self.unit / CHUNK).max(1);
        for chunk in 0..chunks {
            // SAFETY: the caller's promise; a half unit past the end is not read.
            unsafe {
                let bytes = code.bytes(self.codes.add(chunk * C::BITS * 64), AHEAD);
                for half in 0..2 {
                    let unit = if HALF { 2 * chunk + half } else { chunk / per };
                    if HALF && unit >= self.units {
                        break;
                    }
                    let part = if HALF { 0 } else { chunk % per * CHUNK + half * LANES };
                    for r in 0..R {
                        for p in 0..planes {
                            let x = self.plane(unit, planes, p, first + r).add(part).cast::<i32>();
                            for j in 0..4 {
                                let x = _mm512_set1_epi32(x.add(j).read_unaligned());
                                dots[r][p] =
                                    _mm512_dpbusd_epi32(dots[r][p], bytes[4 * half + j], x);
                            }
                        }
                    }
                    if HALF || (half == 1 && (chunk + 1) % per == 0) {
                        self.finish::<C, R>(unit, first, &mut dots, &mut sums);
                    }
                }
            }
        }
        sums
    }

    /// Adds a unit's exact sums to the rows' and clears them.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn finish<C: Code, const R: usize>(
        &self,
        unit: usize,
        first: usize,
        dots: &mut [[__m512i; 4]; R],
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, offset) = self.scales.of(unit);
            let words = self.words.add(unit * 4 * self.class + first);
            for r in 0..R {
                let d = dots[r];
                let mut digits = [d[0], d[1], d[2]];
                if C::NARROW {
                    digits[0] = _mm512_add_epi32(_mm512_slli_epi32::<4>(d[0]), d[1]);
                    digits[1] = _mm512_add_epi32(_mm512_slli_epi32::<4>(d[2]), d[3]);
                }
                let count = if C::NARROW { 2 } else { 3 };
                for i in 0..count {
                    let mut digit = digits[i];
                    if let Some(excess) = self.excess {
                        let sum = *words.add((1 + i) * self.class + r).cast::<i32>() << excess;
                        digit = _mm512_sub_epi32(digit, _mm512_set1_epi32(sum));
                    }
                    let weight = weights(C::NARROW)[i];
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(weight));
                    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(digit), scale, sums[r]);
                }
                if self.scales.offsets.is_some() {
                    let sum = _mm512_set1_ps(*words.add(r));
                    sums[r] = _mm512_fmadd_ps(sum, offset, sums[r]);
                }
                dots[r] = [_mm512_setzero_si512(); 4];
            }
        }
    }
}
