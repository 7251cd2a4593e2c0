//! Integer codes by AMX, cut into blocks that stay in cache.
//!
//! # Shape
//! [`MAX_PANELS`] panels at a time: a block of their columns is unpacked and used by all tiles of rows before the next.
//! Sums wait in scratch between blocks, which changes none of their bits. With one or two tiles of rows, panels are
//! taken one after the other, as they lie in memory.
//!
//! | rows | 8-bit codes | other codes | K-quants |
//! |---|---|---|---|
//! | 1 | by vectors | by vectors | by vectors |
//! | 2 to 4 | [`stacked`] | by vectors | [`k_quant::small_batch`] |
//! | 5 to 8 | [`direct`] | [`grouped`] | [`k_quant::small_batch`] |
//! | more | [`direct`] | [`grouped`] | [`k_quant`] |

pub(crate) mod direct;
pub(crate) mod grouped;
pub(crate) mod k_quant;
pub(crate) mod stacked;

use self::k_quant::{KQuantGemm, small_batch::KQuantSmallBatch};
use super::tile::l2_tiles as near_tiles_of;
use crate::gemm::int8::Int8Product;
use crate::gemm::int8::code::{Code, GroupScales, zero_point_log2};
use crate::gemm::int8::isa::{Avx512Vnni, VECTORS, codes};
use crate::gemm::int8::layout::{PackLayout, PackedLimbs};
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use direct::Direct;
use forerun_base::Format;
use grouped::{RESULTS, SCALES, UNITS, UnitBlock, UnitPipeline, UnitRange, WEIGHTS};
use stacked::Stacked;
use std::arch::x86_64::*;
use std::ops::Range;

/// f32 of the sums of a tile of rows and a panel.
pub(crate) const SUMS: usize = LANES * LANES;

/// Up to this many tiles of rows, reading weights sequentially gains more than reading activations once for several
/// panels.
const FEW_TILES: usize = 2;

/// Tiles of rows that share unpacked weights.
pub(crate) fn l2_tiles(layout: PackLayout) -> usize {
    near_tiles_of(layout.packed_len(LANES))
}

/// f32 of scratch for a product of `rows` rows.
pub(crate) fn scratch_len(layout: PackLayout, rows: usize) -> usize {
    let tiles = rows.div_ceil(LANES).min(l2_tiles(layout));
    if layout.nested() {
        k_quant::scratch_len(tiles)
    } else {
        (RESULTS + MAX_PANELS * (WEIGHTS + SCALES + tiles * SUMS))
            .max(stacked::SCRATCH)
            .max(direct::SCRATCH)
    }
}

/// Computes and stores a product.
///
/// # Safety
/// AMX, AVX-512 VNNI and VBMI are there. `work` fulfils the contract of [`Product::run`], its rows are completely
/// packed, and its codes are of type `C`.
pub(crate) unsafe fn run<C: Code>(work: Int8Product<'_>, code: C) {
    let (layout, tile_rows) = (work.packed.layout(), work.packed.tile_rows());
    if layout.nested() {
        // SAFETY: the contract of this function is that of `nested`.
        unsafe { work.nested(code) };
    } else if stacked::stacks(layout, tile_rows) {
        let Int8Product { product, packed, tiles, gathered, scratch, .. } = work;
        // SAFETY: AMX is there, rows are packed and outputs are this thread's (contract above); fewer rows than sixteen
        // are one tile, and the layout says that codes are AMX-native.
        unsafe { Stacked { product, packed, tile: tiles.start }.run(gathered, scratch) };
    } else if layout.amx_native() {
        let Int8Product { product, packed, tiles, gathered, scratch, .. } = work;
        // SAFETY: AMX is there, rows are packed and outputs are this thread's (contract above); the layout says that
        // codes are AMX-native.
        unsafe { Direct { product, packed, tiles }.run(gathered, scratch) };
    } else {
        // SAFETY: the contract of this function is that of `grouped`.
        unsafe { work.grouped(code) };
    }
}

/// How far ahead codes are prefetched.
pub(crate) const PREFETCH_BYTES: usize = 4096;

/// The codes of 32 columns; what lies `prefetch_bytes` behind them is prefetched into L1.
///
/// # Safety
/// The CPU supports the instructions of [`Avx512Vnni`]; `from` is readable for `BITS` vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn unpack_bytes<C: Code>(
    code: C,
    from: *const u8,
    prefetch_bytes: usize,
) -> [__m512i; VECTORS] {
    // SAFETY: `BITS` vectors are readable at `from` (contract above); a prefetch may point anywhere.
    unsafe {
        for i in 0..C::BITS {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(prefetch_bytes + i * 64).cast());
        }
        codes(Avx512Vnni::new_unchecked(), code, from)
    }
}

/// Scales of a panel.
pub(crate) fn scales(weight: &PackedWeight, panel: &Panel, unit: usize) -> GroupScales {
    let [_, scales, offsets] = panel.planes;
    GroupScales::new(weight.format(), [scales, offsets], unit)
}

impl Int8Product<'_> {
    /// Codes with nested scales.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn nested<C: Code>(self, code: C) {
        let Range { start, end } = self.tiles;
        if self.packed.layout().paired(self.packed.tile_rows()) {
            // SAFETY: AMX is there, and outputs are this thread's (contract above); fewer rows than sixteen are one
            // tile, packed in pairs.
            return unsafe {
                KQuantSmallBatch::new(self.product, self.packed, start, self.scratch)
                    .run(code, self.gathered)
            };
        }
        for from in (start..end).step_by(l2_tiles(self.packed.layout())) {
            let tiles = from..end.min(from + l2_tiles(self.packed.layout()));
            let mut nested =
                KQuantGemm::new(self.product, self.packed, (start, tiles), self.scratch);
            // SAFETY: AMX is there (contract above); the tiles are completely packed and the outputs belong to this
            // thread.
            unsafe { nested.run(code, self.gathered) };
        }
    }

    /// Codes with a scale for each group.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn grouped<C: Code>(self, code: C) {
        let layout = self.packed.layout();
        let (results, scratch) = self.scratch.split_at_mut(RESULTS);
        let (weights, scratch) = scratch.split_at_mut(MAX_PANELS * WEIGHTS);
        let (scales, sums) = scratch.split_at_mut(MAX_PANELS * SCALES);
        // SAFETY: AMX is there (contract above), and a task configures tiles only here; a tile has at most 16 rows.
        let _configured = unsafe { grouped::configure(layout, self.packed.tile_rows()) };
        let Range { start, end } = self.tiles;
        for from in (start..end).step_by(l2_tiles(layout)) {
            let mut run = GroupedGemm {
                product: self.product,
                packed: self.packed,
                first: start,
                tiles: from..end.min(from + l2_tiles(layout)),
                results,
                weights,
                scales,
                sums,
            };
            let few = run.tiles.len() <= FEW_TILES;
            for_each_panels(self.product, MAX_PANELS, self.gathered, |panels| {
                run.panels(code, panels, few)
            });
        }
    }
}

/// Tiles of rows that share unpacked weights, and scratch. Only [`run`] makes one, so its contract holds for every
/// method.
struct GroupedGemm<'a> {
    product: &'a Product<'a, PackedWeight>,
    packed: PackedLimbs<'a>,
    /// The tile of the product's first row.
    first: usize,
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl GroupedGemm<'_> {
    /// All rows with some panels.
    fn panels<C: Code>(&mut self, code: C, panels: &[Panel], few: bool) {
        match (C::NARROW, few) {
            (true, true) => self.stream::<C, true>(code, panels),
            (true, false) => self.blocks::<C, true>(code, panels),
            (false, true) => self.stream::<C, false>(code, panels),
            (false, false) => self.blocks::<C, false>(code, panels),
        }
    }

    /// Stores a tile's sums with some panels.
    fn put(&self, panels: &[Panel], tile: usize) {
        for (i, panel) in panels.iter().enumerate() {
            let sums = &self.sums[self.place(tile, i)..][..SUMS];
            let rows = panels::rows_of(
                self.product,
                RowTile { index: tile, first: self.first, rows: self.packed.tile_rows() },
            );
            // SAFETY: AMX is there (contract above); the tiles are completely packed and the outputs belong to this
            // thread.
            unsafe { store(self.product, panel, rows, (sums, self.packed.row_scales(tile))) };
        }
    }

    /// All blocks of units, each of all panels before the next.
    fn blocks<C: Code, const NARROW: bool>(&mut self, code: C, panels: &[Panel]) {
        let units = self.packed.layout().units();
        let mut pipeline = UnitPipeline::<NARROW>::new(self.results.as_mut_ptr());
        for from in (0..units).step_by(UNITS) {
            let some = from..units.min(from + UNITS);
            for (i, panel) in panels.iter().enumerate() {
                self.unpack_units(code, panel, i, some.clone());
            }
            // SAFETY: tiles are configured for these rows and this layout; operands of blocks are in the packed tiles
            // and in this task's scratch, and the pipeline is finished before weights and scales are overwritten.
            unsafe {
                for tile in self.tiles.clone() {
                    let rows = panels::rows_of(
                        self.product,
                        RowTile { index: tile, first: self.first, rows: self.packed.tile_rows() },
                    );
                    for (i, panel) in panels.iter().enumerate() {
                        let block = self.block(tile, i, i, some.clone());
                        if some.end == units {
                            prefetch_outputs(self.product, panel, rows.clone());
                        }
                        pipeline.push(block);
                    }
                    // A push finishes the block before it.
                    if some.end == units && tile > self.tiles.start {
                        self.put(panels, tile - 1);
                    }
                }
                pipeline.finish();
            }
        }
        self.put(panels, self.tiles.end - 1);
    }

    /// All panels, each to its end before the next. A block is unpacked while the one before it is multiplied.
    fn stream<C: Code, const NARROW: bool>(&mut self, code: C, panels: &[Panel]) {
        let units = self.packed.layout().units();
        let each = units.div_ceil(UNITS);
        let step = |n: usize| (n / each, n % each * UNITS..units.min((n % each + 1) * UNITS));
        let mut pipeline = UnitPipeline::<NARROW>::new(self.results.as_mut_ptr());
        for n in 0..=each * panels.len() {
            if n < each * panels.len() {
                let (i, some) = step(n);
                self.unpack_units(code, &panels[i], n % MAX_PANELS, some);
            }
            let Some(n) = n.checked_sub(1) else { continue };
            let (i, some) = step(n);
            for tile in self.tiles.clone() {
                if some.end == units {
                    let rows = panels::rows_of(
                        self.product,
                        RowTile { index: tile, first: self.first, rows: self.packed.tile_rows() },
                    );
                    prefetch_outputs(self.product, &panels[i], rows);
                }
                let block = self.block(tile, i, n % MAX_PANELS, some.clone());
                // SAFETY: tiles are configured for these rows and this layout; operands of blocks are in the packed
                // tiles and in this task's scratch. A slot of weights and scales is overwritten only after at least two
                // further blocks.
                unsafe { pipeline.push(block) };
            }
        }
        // SAFETY: tiles are still configured, and the operands of the last block are not written before the next
        // panels.
        unsafe { pipeline.finish() };
        self.tiles.clone().for_each(|tile| self.put(panels, tile));
    }

    fn zero_point(&self) -> u8 {
        zero_point_log2(self.product.matrix.format()).map_or(0, |bit| 1 << bit)
    }

    /// Unpacks units of a panel, as tiles and f32 scales, to slot `at`.
    fn unpack_units<C: Code>(&mut self, code: C, panel: &Panel, at: usize, units: Range<usize>) {
        let (weight, unit) = (self.product.matrix, self.packed.layout().unit());
        let (codes, zero_point) = (panel.planes[0], self.zero_point());
        let to = self.weights[at * WEIGHTS..][..WEIGHTS].as_mut_ptr();
        let factors = self.scales[at * SCALES..][..SCALES].as_mut_ptr();
        let scales = scales(weight, panel, unit);
        let some = UnitRange { first: units.start, count: units.len(), columns: unit };
        // SAFETY: the units are the panel's, whose planes are readable; the slot has `WEIGHTS` and `SCALES` f32, enough
        // for a block.
        unsafe {
            grouped::unpack(code, (codes, zero_point), some, to);
            grouped::widen_scales::<C>(scales, some, factors);
        }
    }

    /// One tile of rows with panel number `i`, whose units were unpacked to slot `at`.
    fn block(&mut self, tile: usize, i: usize, at: usize, units: Range<usize>) -> UnitBlock {
        let sums = self.place(tile, i);
        let format = self.product.matrix.format();
        UnitBlock {
            layout: self.packed.layout(),
            tile_rows: self.packed.tile_rows(),
            signed: zero_point_log2(format).is_some(),
            offsets: matches!(format, Format::Grouped { offset: true, .. }),
            x: self.packed.unit(tile, units.start),
            weights: self.weights[at * WEIGHTS..].as_ptr().cast(),
            scales: self.scales[at * SCALES..].as_ptr(),
            units: units.len(),
            sums: self.sums[sums..][..SUMS].as_mut_ptr(),
            fresh: units.start == 0,
        }
    }

    /// Index of the sums of a tile and panel `i` of a block.
    fn place(&self, tile: usize, i: usize) -> usize {
        ((tile - self.tiles.start) * MAX_PANELS + i) * SUMS
    }
}

/// As [`Panel::prefetch_outputs`], for [`store`].
#[inline(always)]
pub(crate) fn prefetch_outputs(
    product: &Product<'_, PackedWeight>,
    panel: &Panel,
    rows: Range<usize>,
) {
    // SAFETY: a processor with AMX has AVX-512.
    panel.prefetch_outputs(unsafe { Avx512::new_unchecked() }, product, rows);
}

/// Stores the sums of a tile of rows and a panel.
///
/// # Safety
/// AVX-512 F is there. The outputs of `rows` and the panel's channels belong to this thread; `sums` and row scales have
/// sixteen numbers and one number for each row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn store(
    product: &Product<'_, PackedWeight>,
    panel: &Panel,
    rows: Range<usize>,
    (sums, row_scales): (&[f32], &[f32]),
) {
    for ((row, sums), &row_scales) in rows.zip(sums.as_chunks::<LANES>().0).zip(row_scales) {
        let mut out = [0.0; LANES];
        // SAFETY: sixteen sums on both sides; the outputs belong to this thread (contract above).
        unsafe {
            let sums = _mm512_loadu_ps(sums.as_ptr());
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_mul_ps(sums, _mm512_set1_ps(row_scales)));
            panel.put(product, row, &out);
        }
    }
}
