//! GEMV kernels for K-quants: superblocks are summed exactly, limb by limb, then scaled by their `d`.

use super::{NestedScales, STEP, add_total, carry, factors};
use crate::gemm::decode::scales_at;
use crate::gemm::int8::code::{Code, LIMBS};
use crate::gemm::int8::gemv::{Gemv, GemvKernel, PanelSums, RowBlock, TileRows, initial_sums};
use crate::gemm::int8::isa::{Int8Isa, unpack};
use crate::gemm::int8::layout::{AUX_WORDS, CHUNK, PackedLimbs};
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Format, SUPERBLOCK, ScaleType};
use std::ptr::null;

/// See the module's text.
#[derive(Clone, Copy)]
pub(crate) struct KQuantGemv {
    tile: TileRows,
    codes: *const u8,
    levels: NestedScales,
    /// Whether activations are rounded to int8.
    rounded: bool,
    /// Columns of a segment: 16 or 32.
    segment: usize,
    blocks: usize,
}

impl KQuantGemv {
    /// For packed rows and weights of a format; of no panel and no tile yet.
    pub(crate) fn new(format: Format, packed: PackedLimbs<'_>) -> Self {
        let layout = packed.layout();
        Self {
            tile: TileRows::new(packed),
            codes: null(),
            levels: NestedScales::new(format, [null(); 2]),
            rounded: layout.rounded,
            segment: layout.segment(),
            blocks: layout.blocks(),
        }
    }

    /// As [`Gemv::rows`], of integers that have `D` limbs, `P` of them at a time.
    fn with_limbs<S: Int8Isa, C: Code, const R: usize, const D: usize, const P: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    ) {
        let mut panel = *self;
        // Rows begin at the block's first one; a row of a step is `STEP` bytes.
        panel.tile.limbs = panel.tile.limbs.wrapping_add(block.first * STEP);
        panel.tile.aux = panel.tile.aux.wrapping_add(block.first);
        if self.segment < CHUNK {
            let sums = KQuantSums::<C, D, P, true> { panel, code };
            simd.call(GemvKernel { sums, block });
        } else {
            let sums = KQuantSums::<C, D, P, false> { panel, code };
            simd.call(GemvKernel { sums, block });
        }
    }
}

impl Gemv for KQuantGemv {
    fn set_tile(&mut self, (limbs, aux): (*const u8, *const f32)) {
        (self.tile.limbs, self.tile.aux) = (limbs, aux);
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
            self.with_limbs::<S, C, R, 1, 1>(simd, code, block);
        } else if const { S::SUM_PLANES == LIMBS } {
            self.with_limbs::<S, C, R, 3, 3>(simd, code, block);
        } else {
            self.with_limbs::<S, C, R, 3, 1>(simd, code, block);
        }
    }
}

/// Sums of rows whose integers have `D` limbs: three, or one where activations are rounded. `P` limb planes at a time;
/// segments have 16 columns where `HALF_CHUNK`, else 32. The tile begins at the first of the rows.
#[derive(Clone, Copy)]
struct KQuantSums<C, const D: usize, const P: usize, const HALF_CHUNK: bool> {
    panel: KQuantGemv,
    code: C,
}

impl<C: Code, const R: usize, const D: usize, const P: usize, const HALF_CHUNK: bool> PanelSums<R>
    for KQuantSums<C, D, P, HALF_CHUNK>
{
    #[inline(always)]
    fn set_panel(&mut self, [codes, scales, offsets]: [*const u8; 3]) {
        self.panel.codes = codes;
        self.panel.levels.set_panel([scales, offsets]);
    }

    #[inline(always)]
    unsafe fn sums<S: Int8Isa>(&self, simd: S) -> [<S::F32 as Isa>::F; R] {
        let (levels, floats) = (&self.panel.levels, simd.f32());
        let mut sums = [floats.splat(0.0); R];
        for block in 0..self.panel.blocks {
            // SAFETY: superblocks below `blocks` lie in the panel and in the tile, which are readable (contract of
            // `PanelSums::sums`), with four aux words per row and segment.
            unsafe {
                let totals = self.totals::<S, R>(simd, block);
                let at = levels.d_at(block);
                levels.prefetch_scales(simd, at);
                let d = scales_at(floats, ScaleType::F16, at);
                let factors = factors(floats, d);
                let aux = self.aux(block * SUPERBLOCK);
                for r in 0..R {
                    if D == 1 {
                        let block_scale = *aux.add((AUX_WORDS - 1) * self.panel.tile.tile_rows + r);
                        let factor = floats.mul(d, floats.splat(block_scale));
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
}

impl<C: Code, const D: usize, const P: usize, const HALF_CHUNK: bool>
    KQuantSums<C, D, P, HALF_CHUNK>
{
    /// Exact totals of a superblock, for each limb.
    ///
    /// # Safety
    /// `block` is a superblock of the panel and of the tile; both are readable, and the tile has `R` rows.
    #[inline(always)]
    unsafe fn totals<S: Int8Isa, const R: usize>(&self, simd: S, block: usize) -> [[S::W; D]; R] {
        let mut totals = [[simd.splat(0); D]; R];
        for chunk in block * SUPERBLOCK / CHUNK..(block + 1) * SUPERBLOCK / CHUNK {
            let column = chunk * CHUNK;
            // SAFETY: the chunk lies in the superblock; it has `BITS` vectors of codes and one or two segments.
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

    /// The aux words of the segment of a column.
    #[inline(always)]
    fn aux(&self, column: usize) -> *const f32 {
        let segment = column >> if HALF_CHUNK { LANES.ilog2() } else { CHUNK.ilog2() };
        let tile = &self.panel.tile;
        tile.aux.wrapping_add(segment * AUX_WORDS * tile.tile_rows)
    }

    /// Adds the products of the segment that begins with a column, times its sub-scale.
    ///
    /// # Safety
    /// `column` begins a segment of the panel and of the tile, of `4·N` columns; both are readable, and the tile has
    /// `R` rows.
    #[inline(always)]
    unsafe fn add_segment<S: Int8Isa, const R: usize, const N: usize>(
        &self,
        simd: S,
        column: usize,
        codes: &[S::W; N],
        totals: &mut [[S::W; D]; R],
    ) {
        let (panel, aux) = (&self.panel, self.aux(column));
        let tile_rows = panel.tile.tile_rows;
        let step = column / STEP * D * STEP * tile_rows + column % STEP;
        let first = panel.tile.limbs.wrapping_add(step);
        // SAFETY: the column's group has sixteen sub-scales.
        let s = unsafe { simd.widen(panel.levels.s_at(column)) };
        for plane in (0..D).step_by(P) {
            let mut x = [first; P];
            for p in 0..P {
                x[p] = first.wrapping_add((plane + p) * tile_rows * STEP);
            }
            // SAFETY: the segment has a compensation word for each limb and row.
            let mut dots = unsafe { initial_sums(simd, &panel.tile, aux, plane) };
            // SAFETY: each row has `STEP` bytes of each plane of the step, of which the segment is a part.
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

    /// Adds the offsets of a superblock, if the format has some.
    ///
    /// # Safety
    /// As for [`KQuantSums::totals`].
    #[inline(always)]
    unsafe fn offsets<S: Int8Isa, const R: usize>(
        &self,
        simd: S,
        block: usize,
        sums: &mut [<S::F32 as Isa>::F; R],
    ) {
        let (levels, floats) = (&self.panel.levels, simd.f32());
        let Some(at) = levels.offset_d_at(block) else { return };
        levels.prefetch_scales(simd, at);
        // SAFETY: the superblock has sixteen `d` of offsets.
        let d = unsafe { scales_at(floats, ScaleType::F16, at) };
        let segment = if HALF_CHUNK { LANES } else { CHUNK };
        // A constant number of turns, so that the loop is unrolled.
        for i in 0..SUPERBLOCK / segment {
            let column = block * SUPERBLOCK + i * segment;
            // SAFETY: the column's group has sixteen sub-scales of offsets, and its segment aux words for each row.
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
