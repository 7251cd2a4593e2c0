//! A few rows with one panel whose scales are nested: codes are unpacked in registers and used at once.

use super::super::super::codes::scales_at;
use super::super::super::isa::{Isa, LANES};
use super::super::code::{Code, DIGITS};
use super::super::few::{Block, Few, begun};
use super::super::pack::{CHUNK, Packed, WORDS};
use super::super::whole::{Whole, WholeKernel, unpack};
use super::{Levels, STEP, add_total, carry, factors};
use forerun_base::{Format, SUPERBLOCK, ScaleType};
use std::ptr::null;

/// A panel, and where the rows' digits and words begin.
#[derive(Clone, Copy)]
pub(in super::super) struct Panel {
    codes: *const u8,
    levels: Levels,
    /// Whether sums begin with the words of a part, see [`super::super::pack`].
    lifted: bool,
    /// Whether numbers are rounded to one byte.
    rounded: bool,
    digits: *const u8,
    words: *const f32,
    /// Rows of the tile.
    class: usize,
    /// Columns of a sum: 16 or 32.
    part: usize,
    blocks: usize,
}

impl Panel {
    /// For the packed rows and weights of a format; of no panel and no tile yet.
    pub(in super::super) fn new(format: Format, packed: Packed<'_>) -> Self {
        let recipe = packed.recipe();
        Self {
            codes: null(),
            levels: Levels::new(format, [null(); 2]),
            lifted: recipe.lift != 0,
            rounded: recipe.rounded,
            digits: null(),
            words: null(),
            class: packed.class(),
            part: recipe.part(),
            blocks: recipe.blocks(),
        }
    }
}

impl Few for Panel {
    fn take(&mut self, (digits, words): (*const u8, *const f32)) {
        (self.digits, self.words) = (digits, words);
    }

    fn most(&self) -> usize {
        4
    }

    unsafe fn rows<S: Whole, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &Block<'_, R>,
    ) {
        if self.rounded {
            self.by::<S, C, R, 1, 1>(simd, code, block);
        } else if const { S::PLANES == DIGITS } {
            self.by::<S, C, R, 3, 3>(simd, code, block);
        } else {
            self.by::<S, C, R, 3, 1>(simd, code, block);
        }
    }
}

impl Panel {
    /// As [`Few::rows`], of numbers that have `D` digits, `P` of them at a time.
    fn by<S: Whole, C: Code, const R: usize, const D: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &Block<'_, R>,
    ) {
        let panel = *self;
        if self.part < CHUNK {
            simd.call(Rows::<C, R, D, P, true> { panel, code, block });
        } else {
            simd.call(Rows::<C, R, D, P, false> { panel, code, block });
        }
    }

    /// Goes on with the panel whose codes, scales and offsets are there.
    #[inline(always)]
    fn turn_to(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.codes = codes;
        self.levels.turn_to([scales, offsets]);
    }
}

/// A block of rows whose numbers have `D` digits: three, or one where they are rounded. `P` planes at a time; parts have 16 columns where `HALF`, else 32.
struct Rows<'a, C, const R: usize, const D: usize, const P: usize, const HALF: bool> {
    panel: Panel,
    code: C,
    block: &'a Block<'a, R>,
}

impl<C: Code, const R: usize, const D: usize, const P: usize, const HALF: bool> WholeKernel
    for Rows<'_, C, R, D, P, HALF>
{
    #[inline(always)]
    fn run<S: Whole>(mut self, simd: S) {
        let (block, floats) = (self.block, simd.floats());
        for panel in 0..block.panels.count {
            self.panel.turn_to(block.panels.at(panel));
            block.expect_after(floats, panel);
            // SAFETY: the fields are as they say.
            unsafe { block.put(floats, panel, self.sums(simd)) };
        }
    }
}

impl<C: Code, const R: usize, const D: usize, const P: usize, const HALF: bool>
    Rows<'_, C, R, D, P, HALF>
{
    /// The rows' sums with a panel.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn sums<S: Whole>(&self, simd: S) -> [<S::Floats as Isa>::F; R] {
        let (levels, floats) = (&self.panel.levels, simd.floats());
        let mut sums = [floats.splat(0.0); R];
        for block in 0..self.panel.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let totals = self.totals(simd, block);
                let at = levels.factor_at(block);
                levels.ask(simd, at);
                let d = scales_at(floats, ScaleType::F16, at);
                let factors = factors(floats, d);
                let words = self.words(block * SUPERBLOCK);
                for r in 0..R {
                    if D == 1 {
                        let worth = *words.add((WORDS - 1) * self.panel.class + r);
                        let factor = floats.mul(d, floats.splat(worth));
                        sums[r] = floats.fma(simd.float(totals[r][0]), factor, sums[r]);
                        continue;
                    }
                    let total = carry(simd, [totals[r][0], totals[r][1 % D], totals[r][2 % D]]);
                    sums[r] = add_total(simd, sums[r], total, factors);
                }
                self.offsets(simd, block, &mut sums);
            }
        }
        sums
    }

    /// Exact totals of a superblock by digits.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn totals<S: Whole>(&self, simd: S, block: usize) -> [[S::W; D]; R] {
        let mut totals = [[simd.splat(0); D]; R];
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            let column = chunk * CHUNK;
            // SAFETY: the caller's promise.
            unsafe {
                let codes = unpack(simd, self.code, self.panel.codes.add(chunk * C::BITS * 64));
                if HALF {
                    let [a, b, c, d, e, f, g, h] = codes;
                    self.add_part(simd, column, &[a, b, c, d], &mut totals);
                    self.add_part(simd, column + LANES, &[e, f, g, h], &mut totals);
                } else {
                    self.add_part(simd, column, &codes, &mut totals);
                }
            }
        }
        totals
    }

    /// The words of the part of a column.
    #[inline(always)]
    fn words(&self, column: usize) -> *const f32 {
        let part = column >> if HALF { LANES.ilog2() } else { CHUNK.ilog2() };
        self.panel.words.wrapping_add(part * WORDS * self.panel.class + self.block.first)
    }

    /// Adds the part that begins with a column and has so many codes.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn add_part<S: Whole, const N: usize>(
        &self,
        simd: S,
        column: usize,
        codes: &[S::W; N],
        totals: &mut [[S::W; D]; R],
    ) {
        let (panel, words) = (&self.panel, self.words(column));
        let step = column / STEP * D * STEP * panel.class + column % STEP;
        let first = panel.digits.wrapping_add(step + self.block.first * STEP);
        // SAFETY: the caller's promise.
        let s = unsafe { simd.widen(panel.levels.whole_at(column)) };
        for plane in (0..D).step_by(P) {
            let mut x = [first; P];
            for p in 0..P {
                x[p] = first.wrapping_add((plane + p) * panel.class * STEP);
            }
            // SAFETY: the caller's promise.
            let mut dots = unsafe { begun(simd, panel.lifted, words, [panel.class, plane]) };
            // SAFETY: the caller's promise.
            unsafe { simd.dots::<C, R, P, N>(&mut dots, codes, &x, STEP) };
            simd.weave(&mut dots);
            for r in 0..R {
                for p in 0..P {
                    let total = &mut totals[r][plane + p];
                    *total = simd.add(*total, simd.mul(dots[r][p], s));
                }
            }
        }
    }

    /// Adds the offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`Few::rows`].
    #[inline(always)]
    unsafe fn offsets<S: Whole>(
        &self,
        simd: S,
        block: usize,
        sums: &mut [<S::Floats as Isa>::F; R],
    ) {
        let (levels, floats) = (&self.panel.levels, simd.floats());
        let Some(at) = levels.offset_factor_at(block) else { return };
        levels.ask(simd, at);
        // SAFETY: the caller's promise.
        let d = unsafe { scales_at(floats, ScaleType::F16, at) };
        let part = if HALF { LANES } else { CHUNK };
        for column in (block * SUPERBLOCK..(block + 1) * SUPERBLOCK).step_by(part) {
            // SAFETY: the caller's promise.
            unsafe {
                let s = simd.widen(levels.offset_whole_at(column));
                let offset = floats.mul(d, simd.float(s));
                let words = self.words(column);
                for r in 0..R {
                    sums[r] = floats.fma(floats.splat(*words.add(r)), offset, sums[r]);
                }
            }
        }
    }
}
