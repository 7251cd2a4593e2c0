//! A few rows with one panel, by dot products of bytes: codes are unpacked in registers and used at once.

use super::super::isa::LANES;
use super::code::{Code, Scales, weights};
use super::pack::{CHUNK, WORDS};
use std::arch::x86_64::*;
use std::array::from_fn;

/// What multiplies a few rows with a panel.
pub(super) trait Few {
    /// Sums of the rows `first..first + R` with all channels.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the fields are as they say, for codes of type `C`.
    unsafe fn rows<C: Code, const R: usize>(
        &self,
        code: C,
        first: usize,
        out: &mut [[f32; LANES]; R],
    );
}

/// A panel, and where the rows' digits and words begin; both go from unit to unit by `unit_bytes` and 4·`class` words.
pub(super) struct Panel {
    pub(super) codes: *const u8,
    pub(super) scales: Scales,
    /// Whether stored codes are too large, see [`super::pack`].
    pub(super) raised: bool,
    /// Whether numbers have two digits of twelve bits.
    pub(super) long: bool,
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
    unsafe fn rows<C: Code, const R: usize>(
        &self,
        code: C,
        first: usize,
        out: &mut [[f32; LANES]; R],
    ) {
        // SAFETY: the caller's promise.
        let sums = unsafe {
            // Wider codes have no such digits, and no such code is made for them.
            match (self.unit < CHUNK, C::NARROW && self.long) {
                (true, true) => self.sums::<C, R, true, true>(code, first),
                (true, false) => self.sums::<C, R, true, false>(code, first),
                (false, true) => self.sums::<C, R, false, true>(code, first),
                (false, false) => self.sums::<C, R, false, false>(code, first),
            }
        };
        // SAFETY: sixteen f32 for each row.
        unsafe { (0..R).for_each(|r| _mm512_storeu_ps(out[r].as_mut_ptr(), sums[r])) };
    }
}

impl Panel {
    /// Where each plane of row `row` begins in a unit.
    pub(super) fn planes(&self, row: usize) -> [usize; PLANES] {
        // A slab holds one plane or two; divisions would take as long as a short row.
        let two = usize::from(self.slab > self.unit);
        from_fn(|plane| ((plane >> two) * self.class + row) * self.slab + (plane & two) * self.unit)
    }

    /// Sums of the rows `first..first + R`; units have 16 columns where `HALF`, else a multiple of 32. Digits are of twelve bits where
    /// `LONG`.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn sums<C: Code, const R: usize, const HALF: bool, const LONG: bool>(
        &self,
        code: C,
        first: usize,
    ) -> [__m512; R] {
        let mut sums = [_mm512_setzero_ps(); R];
        let count = if LONG { 4 } else { 3 };
        let bytes = count * self.unit * self.class;
        // Found once: inside the loops this would take longer than the products.
        let planes = self.planes(first);
        let (chunks, each) = if HALF { (1, 2) } else { (self.unit / CHUNK, 1) };
        for some in 0..self.units.div_ceil(each) {
            let x = self.digits.wrapping_add(some * each * bytes);
            let mut x = planes.map(|plane| x.wrapping_add(plane));
            // SAFETY: the caller's promise.
            let mut dots = unsafe { self.begun::<R, LONG>(some * each, first) };
            for chunk in some * chunks..(some + 1) * chunks {
                // SAFETY: the caller's promise.
                unsafe {
                    let codes = code.bytes_at_once(self.codes.add(chunk * C::BITS * 64));
                    let [low, high] = [0, 4].map(|i| from_fn(|j| codes[i + j]));
                    dots.add(low, &x[..count], self.slab, 0);
                    if HALF {
                        self.finish::<R, LONG>(some * each, first, &dots, &mut sums);
                        if some * each + 1 == self.units {
                            return sums;
                        }
                        dots = self.begun::<R, LONG>(some * each + 1, first);
                        x = x.map(|x| x.wrapping_add(bytes));
                    } else {
                        x = x.map(|x| x.wrapping_add(LANES));
                    }
                    dots.add(high, &x[..count], self.slab, 1);
                    x = x.map(|x| x.wrapping_add(LANES));
                }
            }
            let last = some * each + each - 1;
            // SAFETY: the caller's promise.
            unsafe { self.finish::<R, LONG>(last, first, &dots, &mut sums) };
        }
        sums
    }

    /// The words of a unit's rows from `first` on.
    #[inline(always)]
    pub(super) fn words(&self, unit: usize, first: usize) -> *const f32 {
        self.words.wrapping_add(unit * WORDS * self.class + first)
    }

    /// What a unit's sums begin with: what raised codes will be too much, less.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn begun<const R: usize, const LONG: bool>(&self, unit: usize, first: usize) -> Dots<R> {
        if LONG || !self.raised {
            return Dots::none();
        }
        // SAFETY: the caller's promise.
        unsafe { Dots::less(self.words(unit, first), self.class) }
    }

    /// Adds a unit's exact sums to the rows'.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn finish<const R: usize, const LONG: bool>(
        &self,
        unit: usize,
        first: usize,
        dots: &Dots<R>,
        sums: &mut [__m512; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, offset) = self.scales.of(unit);
            let words = self.words(unit, first);
            let count = if LONG { 2 } else { 3 };
            let mut factors = [scale; 3];
            for i in 0..count {
                factors[i] = _mm512_mul_ps(scale, _mm512_set1_ps(weights(LONG)[i]));
            }
            for r in 0..R {
                let d = dots.of(r);
                let mut digits = [d[0], d[1], d[2]];
                if LONG {
                    digits[0] = _mm512_add_epi32(_mm512_slli_epi32::<4>(d[0]), d[1]);
                    digits[1] = _mm512_add_epi32(_mm512_slli_epi32::<4>(d[2]), d[3]);
                    if self.raised {
                        for i in 0..count {
                            let less = *words.add((1 + i) * self.class + r).cast::<i32>();
                            digits[i] = _mm512_add_epi32(digits[i], _mm512_set1_epi32(less));
                        }
                    }
                }
                for i in 0..count {
                    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(digits[i]), factors[i], sums[r]);
                }
                if self.scales.offsets.is_some() {
                    let sum = _mm512_set1_ps(*words.add(r));
                    sums[r] = _mm512_fmadd_ps(sum, offset, sums[r]);
                }
            }
        }
    }
}

/// Most planes of a number.
const PLANES: usize = 4;
/// Dot products that wait for themselves alone: a single row has too few of them to keep the units busy.
const TURNS: usize = 2;

/// Exact sums of `R` rows by plane, those of one row in [`TURNS`] parts.
pub(super) struct Dots<const R: usize>([[[__m512i; TURNS]; PLANES]; R]);

impl<const R: usize> Dots<R> {
    #[inline(always)]
    pub(super) fn none() -> Self {
        // SAFETY: the callers have the instructions of [`super::Units`].
        Self([[[unsafe { _mm512_setzero_si512() }; TURNS]; PLANES]; R])
    }

    /// Sums of three planes that begin with the words behind the first of each row, for tiles of `class` rows.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    pub(super) unsafe fn less(words: *const f32, class: usize) -> Self {
        let mut dots = Self::none();
        for (r, row) in dots.0.iter_mut().enumerate() {
            for (p, plane) in row.iter_mut().enumerate().take(3) {
                // SAFETY: the caller's promise.
                unsafe {
                    let less = *words.add((1 + p) * class + r).cast::<i32>();
                    plane[0] = _mm512_set1_epi32(less);
                }
            }
        }
        dots
    }

    /// Adds sixteen columns whose planes are at `x`, rows `slab` bytes apart.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    pub(super) unsafe fn add(
        &mut self,
        codes: [__m512i; 4],
        planes: &[*const u8],
        slab: usize,
        turn: usize,
    ) {
        let turn = if R == 1 { turn } else { 0 };
        for (j, &codes) in codes.iter().enumerate() {
            for r in 0..R {
                for (p, x) in planes.iter().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let x = x.wrapping_add(r * slab + 4 * j).cast::<i32>();
                        let x = _mm512_set1_epi32(x.read_unaligned());
                        let dot = &mut self.0[r][p][turn];
                        *dot = _mm512_dpbusd_epi32(*dot, codes, x);
                    }
                }
            }
        }
    }

    /// Those of row `r`.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    pub(super) unsafe fn of(&self, r: usize) -> [__m512i; PLANES] {
        // SAFETY: the caller's promise.
        self.0[r].map(|[a, b]| if R == 1 { unsafe { _mm512_add_epi32(a, b) } } else { a })
    }
}
