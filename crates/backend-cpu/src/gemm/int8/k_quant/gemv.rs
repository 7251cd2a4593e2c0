//! A few rows with one panel whose scales are nested: codes are unpacked in registers and used at once.

use super::{NestedScales, STEP, add_total, carry, factors};
use crate::gemm::decode::scales_at;
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::gemv::{Gemv, RowBlock, initial_sums};
use crate::gemm::int8::isa::ops::{Int8Isa, Int8Kernel, unpack};
use crate::gemm::int8::layout::{AUX_WORDS, CHUNK, PackedLimbs};
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Format, SUPERBLOCK, ScaleType};
use std::ptr::null;

/// A panel, and where the rows' digits and words begin.
#[derive(Clone, Copy)]
pub(crate) struct KQuantGemv {
    codes: *const u8,
    levels: NestedScales,
    /// Whether sums begin with the words of a part, see [`crate::gemm::int8::layout`].
    compensated: bool,
    /// Whether numbers are rounded to one byte.
    rounded: bool,
    limbs: *const u8,
    aux: *const f32,
    /// Rows of the tile.
    tile_rows: usize,
    /// Columns of a sum: 16 or 32.
    segment: usize,
    blocks: usize,
}

impl KQuantGemv {
    /// For the packed rows and weights of a format; of no panel and no tile yet.
    pub(crate) fn new(format: Format, packed: PackedLimbs<'_>) -> Self {
        let layout = packed.layout();
        Self {
            codes: null(),
            levels: NestedScales::new(format, [null(); 2]),
            compensated: layout.compensation != 0,
            rounded: layout.rounded,
            limbs: null(),
            aux: null(),
            tile_rows: packed.tile_rows(),
            segment: layout.segment(),
            blocks: layout.blocks(),
        }
    }
}

impl Gemv for KQuantGemv {
    fn set_tile(&mut self, (limbs, aux): (*const u8, *const f32)) {
        (self.limbs, self.aux) = (limbs, aux);
    }

    fn max_rows(&self) -> usize {
        4
    }

    unsafe fn rows<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        if self.rounded {
            self.by::<S, C, R, 1, 1>(simd, code, block);
        } else if const { S::SUM_PLANES == LIMBS } {
            self.by::<S, C, R, 3, 3>(simd, code, block);
        } else {
            self.by::<S, C, R, 3, 1>(simd, code, block);
        }
    }
}

impl KQuantGemv {
    /// As [`Gemv::rows`], of numbers that have `D` digits, `P` of them at a time.
    fn by<S: Int8Isa, C: Code, const R: usize, const D: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        let panel = *self;
        if self.segment < CHUNK {
            simd.call(KQuantKernel::<C, R, D, P, true> { panel, code, block });
        } else {
            simd.call(KQuantKernel::<C, R, D, P, false> { panel, code, block });
        }
    }

    /// Goes on with the panel whose codes, scales and offsets are there.
    #[inline(always)]
    fn set_panel(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.codes = codes;
        self.levels.set_panel([scales, offsets]);
    }
}

/// A block of rows whose numbers have `D` digits: three, or one where they are rounded. `P` planes at a time; parts
/// have 16 columns where `HALF_CHUNK`, else 32.
struct KQuantKernel<'a, C, const R: usize, const D: usize, const P: usize, const HALF_CHUNK: bool> {
    panel: KQuantGemv,
    code: C,
    block: &'a RowBlock<'a, R>,
}

impl<C: Code, const R: usize, const D: usize, const P: usize, const HALF_CHUNK: bool> Int8Kernel
    for KQuantKernel<'_, C, R, D, P, HALF_CHUNK>
{
    #[inline(always)]
    fn run<S: Int8Isa>(mut self, simd: S) {
        let (block, floats) = (self.block, simd.f32());
        for panel in 0..block.panels.count {
            self.panel.set_panel(block.panels.at(panel));
            block.prefetch_next_output(floats, panel);
            // SAFETY: the fields are as they say.
            unsafe { block.put(floats, panel, self.sums(simd)) };
        }
    }
}

impl<C: Code, const R: usize, const D: usize, const P: usize, const HALF_CHUNK: bool>
    KQuantKernel<'_, C, R, D, P, HALF_CHUNK>
{
    /// The rows' sums with a panel.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn sums<S: Int8Isa>(&self, simd: S) -> [<S::F32 as Isa>::F; R] {
        let (levels, floats) = (&self.panel.levels, simd.f32());
        let mut sums = [floats.splat(0.0); R];
        for block in 0..self.panel.blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let totals = self.totals(simd, block);
                let at = levels.d_at(block);
                levels.prefetch_scales(simd, at);
                let d = scales_at(floats, ScaleType::F16, at);
                let factors = factors(floats, d);
                let aux = self.aux(block * SUPERBLOCK);
                for r in 0..R {
                    if D == 1 {
                        let row_scales = *aux.add((AUX_WORDS - 1) * self.panel.tile_rows + r);
                        let factor = floats.mul(d, floats.splat(row_scales));
                        sums[r] = floats.fma(simd.to_f32(totals[r][0]), factor, sums[r]);
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
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn totals<S: Int8Isa>(&self, simd: S, block: usize) -> [[S::W; D]; R] {
        let mut totals = [[simd.splat(0); D]; R];
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            let column = chunk * CHUNK;
            // SAFETY: the caller's promise.
            unsafe {
                let codes = unpack(simd, self.code, self.panel.codes.add(chunk * C::BITS * 64));
                if HALF_CHUNK {
                    let [a, b, c, d, e, f, g, h] = codes;
                    self.add_segment(simd, column, &[a, b, c, d], &mut totals);
                    self.add_segment(simd, column + LANES, &[e, f, g, h], &mut totals);
                } else {
                    self.add_segment(simd, column, &codes, &mut totals);
                }
            }
        }
        totals
    }

    /// The words of the part of a column.
    #[inline(always)]
    fn aux(&self, column: usize) -> *const f32 {
        let segment = column >> if HALF_CHUNK { LANES.ilog2() } else { CHUNK.ilog2() };
        self.panel.aux.wrapping_add(segment * AUX_WORDS * self.panel.tile_rows + self.block.first)
    }

    /// Adds the part that begins with a column and has so many codes.
    ///
    /// # Safety
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn add_segment<S: Int8Isa, const N: usize>(
        &self,
        simd: S,
        column: usize,
        codes: &[S::W; N],
        totals: &mut [[S::W; D]; R],
    ) {
        let (panel, aux) = (&self.panel, self.aux(column));
        let step = column / STEP * D * STEP * panel.tile_rows + column % STEP;
        let first = panel.limbs.wrapping_add(step + self.block.first * STEP);
        // SAFETY: the caller's promise.
        let s = unsafe { simd.widen(panel.levels.s_at(column)) };
        for plane in (0..D).step_by(P) {
            let mut x = [first; P];
            for p in 0..P {
                x[p] = first.wrapping_add((plane + p) * panel.tile_rows * STEP);
            }
            // SAFETY: the caller's promise.
            let mut dots =
                unsafe { initial_sums(simd, panel.compensated, aux, panel.tile_rows, plane) };
            // SAFETY: the caller's promise.
            unsafe { simd.dots::<C, R, P, N>(&mut dots, codes, &x, STEP) };
            simd.interleave(&mut dots);
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
    /// As for [`Gemv::rows`].
    #[inline(always)]
    unsafe fn offsets<S: Int8Isa>(
        &self,
        simd: S,
        block: usize,
        sums: &mut [<S::F32 as Isa>::F; R],
    ) {
        let (levels, floats) = (&self.panel.levels, simd.f32());
        let Some(at) = levels.offset_d_at(block) else { return };
        levels.prefetch_scales(simd, at);
        // SAFETY: the caller's promise.
        let d = unsafe { scales_at(floats, ScaleType::F16, at) };
        let segment = if HALF_CHUNK { LANES } else { CHUNK };
        for column in (block * SUPERBLOCK..(block + 1) * SUPERBLOCK).step_by(segment) {
            // SAFETY: the caller's promise.
            unsafe {
                let s = simd.widen(levels.offset_s_at(column));
                let offset = floats.mul(d, simd.to_f32(s));
                let aux = self.aux(column);
                for r in 0..R {
                    sums[r] = floats.fma(floats.splat(*aux.add(r)), offset, sums[r]);
                }
            }
        }
    }
}
