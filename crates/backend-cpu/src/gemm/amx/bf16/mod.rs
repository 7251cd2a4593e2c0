//! A task's rows and channels, cut into blocks that stay near the core.
//!
//! # Shape
//! [`MAX_PANELS`] panels at a time; of these, [`STEPS`] steps are unpacked and used by all tiles of rows before the
//! next steps. Sums wait in scratch between blocks, which changes none of their bits.

pub(crate) mod dense;
pub(crate) mod pack;
pub(crate) mod scaled;
pub(crate) mod unpack;

use super::Amx;
use super::tile::{self, Configured};
use crate::gemm::packed_weight::{PackedRows, PackedWeight, STEP};
use crate::gemm::panels::{self, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::pool::SharedSlice;
use crate::simd::isa::LANES;
use dense::Dense;
use forerun_base::Format;
use pack::{PARTS, PackBf16Task, PackedBf16, packed_len};
use scaled::{RESULTS, STACKED, ScaledBlock};
use std::array::from_fn;
use std::ops::Range;
use unpack::{Decoder, TILE};

/// Most steps of a block: 32 KiB of weights of four panels stay in a 48 KiB first-level cache while the activations of
/// all rows pass by. Measured on a Sapphire Rapids core; sums that come and go more often cost more than that.
const STEPS: usize = 8;
/// f32 of a tile of weights.
const WEIGHTS: usize = TILE / 4;
/// f32 of a block's scales and offsets: at most one of each per half step.
const SCALES: usize = 2 * STEPS * 2 * LANES;
/// f32 of the sums of a tile of rows and a panel.
const SUMS: usize = LANES * LANES;

/// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
pub(crate) fn scratch_len(weight: &PackedWeight, rows: usize, packs: bool) -> usize {
    let own = if packs { packed_len(rows, weight.cols()) } else { 0 };
    let tiles = rows.div_ceil(LANES).min(l2_tiles(weight));
    panels::gathered_len(weight)
        + own
        + RESULTS
        + MAX_PANELS * (STEPS * WEIGHTS + SCALES + tiles * SUMS)
}

/// Tiles of rows that are used together.
fn l2_tiles(weight: &PackedWeight) -> usize {
    tile::l2_tiles(packed_len(LANES, weight.cols()))
}

/// A product with its activations packed and its scratch cut up.
struct Bf16Gemm<'a> {
    product: &'a Product<'a, PackedWeight>,
    decoder: Decoder,
    packed: PackedBf16<'a>,
    /// The tile of the product's first row.
    first: usize,
    /// Tiles that are used together.
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Computes and stores a product.
///
/// # Safety
/// The instructions of [`crate::gemm::amx::Amx`], and as for [`Product::run`].
pub(crate) unsafe fn run(amx: Amx, product: &Product<'_, PackedWeight>, scratch: &mut [f32]) {
    let (weight, rows) = (product.matrix, product.rows.clone());
    let (gathered, scratch) = scratch.split_at_mut(panels::gathered_len(weight));
    let given = product.input.packed.and_then(PackedRows::bf16);
    let own = if given.is_some() { 0 } else { packed_len(rows.len(), weight.cols()) };
    let (out, scratch) = scratch.split_at_mut(own);
    let (packed, first) = if let Some(packed) = given {
        (packed, rows.start / packed.tile_rows())
    } else {
        let out = SharedSlice::new(out);
        PackBf16Task::new(amx, product.input, rows.clone(), weight.cols(), out).run_all();
        (PackedBf16::new(out, rows.len(), weight.cols()), 0)
    };
    let (results, scratch) = scratch.split_at_mut(RESULTS);
    let (weights, scratch) = scratch.split_at_mut(MAX_PANELS * STEPS * WEIGHTS);
    let (scales, sums) = scratch.split_at_mut(MAX_PANELS * SCALES);
    let end = first + rows.len().div_ceil(packed.tile_rows());
    let decoder = Decoder::new(weight.format());
    let tile_rows = packed.tile_rows();
    let dense = matches!(weight.format(), Format::Dense(_));
    let config_rows = if tile_rows <= STACKED && !dense { PARTS * tile_rows } else { tile_rows };
    // SAFETY: the caller's promise; tasks hold tiles only here.
    let _configured =
        unsafe { Configured::new(config_rows, if decoder.half_steps() { 8 } else { 16 }) };
    let tiles = first..first;
    let mut run =
        Bf16Gemm { product, decoder, packed, first, tiles, results, weights, scales, sums };
    for from in (first..end).step_by(l2_tiles(weight)) {
        run.tiles = from..end.min(from + l2_tiles(weight));
        let together = if run.tiles.len() > 1 || dense { MAX_PANELS } else { 1 };
        // SAFETY: the caller's promise.
        for_each_panels(product, together, gathered, |panels| unsafe { run.panels(panels) });
    }
}

impl Bf16Gemm<'_> {
    /// All rows with some panels.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn panels(&mut self, panels: &[Panel]) {
        let steps = self.product.matrix.steps();
        let each = steps.div_ceil(steps.div_ceil(STEPS).max(1)).max(1);
        for from in (0..steps).step_by(each) {
            let to = steps.min(from + each);
            // SAFETY: the caller's promise; the steps are the panels'.
            unsafe {
                for (i, panel) in panels.iter().enumerate() {
                    self.unpack(panel, i, from..to);
                }
                for tile in self.tiles.clone() {
                    if let Format::Dense(_) = self.product.matrix.format() {
                        self.dense(panels, tile, from..to);
                        continue;
                    }
                    for i in 0..panels.len() {
                        self.block(tile, i, from..to);
                    }
                }
            }
        }
        for tile in self.tiles.clone() {
            for (i, panel) in panels.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.store(panel, tile, i) };
            }
        }
    }

    /// Columns that are scaled together and those of a group; the groups of some steps.
    fn groups(&self, steps: Range<usize>) -> ([usize; 2], Range<usize>) {
        let matrix = self.product.matrix;
        let Format::Grouped { group, .. } = matrix.format() else {
            unreachable!("dense numbers have no groups")
        };
        let end = matrix.cols().min(steps.end * STEP).div_ceil(group);
        let columns = if self.decoder.half_steps() { STEP / 2 } else { STEP };
        ([columns, group], steps.start * STEP / group..end)
    }

    /// Steps of a panel to tiles, for place `i` of a block.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn unpack(&mut self, panel: &Panel, i: usize, steps: Range<usize>) {
        let Some(scale) = self.decoder.scale() else { return };
        let weights = self.weights[i * STEPS * WEIGHTS..][..STEPS * WEIGHTS].as_mut_ptr();
        let scales = self.scales[i * SCALES..][..SCALES].as_mut_ptr();
        let (_, groups) = self.groups(steps.clone());
        let [codes, factors, offsets] = panel.planes;
        // SAFETY: the steps and their groups are the panel's; scratch has room for a block of both.
        unsafe {
            let codes = codes.add(steps.start * self.product.matrix.step_bytes());
            self.decoder.tiles(codes, weights.cast(), steps.len());
            let at = groups.start * LANES * scale.size();
            let from = [factors.wrapping_add(at), offsets.wrapping_add(at)];
            self.decoder.scales(from, scales, groups.len());
        }
    }

    /// One tile of rows with some steps of dense panels.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn dense(&mut self, panels: &[Panel], tile: usize, steps: Range<usize>) {
        let (first, last) = (self.place(tile, 0), panels.len() - 1);
        let sums = self.sums[first..][..MAX_PANELS * SUMS].as_mut_ptr();
        let dense = Dense {
            x: self.packed.tile(tile, steps.start).0,
            weights: from_fn(|i| panels[i.min(last)].planes[0].wrapping_add(steps.start * TILE)),
            sums: from_fn(|i| sums.wrapping_add(i * SUMS)),
            tile_rows: self.packed.tile_rows(),
            steps: steps.len(),
            prefetch_bytes: tile == self.tiles.start,
            fresh: steps.start == 0,
        };
        // SAFETY: the caller's promise; the fields are as they say.
        unsafe { dense.run() };
    }

    /// One tile of rows with place `i` of a block.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn block(&mut self, tile: usize, i: usize, steps: Range<usize>) {
        let matrix = self.product.matrix;
        let ([columns, group], groups) = self.groups(steps.clone());
        let last = matrix.cols().min(steps.end * STEP);
        let sums = self.place(tile, i);
        let block = ScaledBlock {
            x: self.packed.tile(tile, steps.start),
            weights: self.weights[i * STEPS * WEIGHTS..].as_ptr().cast(),
            scales: self.scales[i * SCALES..].as_ptr(),
            count: (last - steps.start * STEP).div_ceil(columns),
            group: group / columns,
            before: (steps.start * STEP - groups.start * group) / columns,
            sums: self.sums[sums..][..SUMS].as_mut_ptr(),
            fresh: steps.start == 0,
            results: self.results.as_mut_ptr(),
        };
        // SAFETY: the caller's promise; the fields are as they say.
        unsafe {
            match self.packed.tile_rows() {
                1 => self.sized::<1>(&block),
                2 => self.sized::<2>(&block),
                4 => self.sized::<4>(&block),
                8 => self.sized::<8>(&block),
                _ => self.sized::<16>(&block),
            }
        }
    }

    /// # Safety
    /// As for [`ScaledBlock::scaled`].
    unsafe fn sized<const M: usize>(&self, block: &ScaledBlock) {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.decoder.half_steps(), self.decoder.offsets()) {
                (false, false) => block.scaled::<M, false, false>(),
                (false, true) => block.scaled::<M, false, true>(),
                (true, false) => block.scaled::<M, true, false>(),
                (true, true) => block.scaled::<M, true, true>(),
            }
        }
    }

    /// First f32 of the sums of a tile and place `i` of a block.
    fn place(&self, tile: usize, i: usize) -> usize {
        ((tile - self.tiles.start) * MAX_PANELS + i) * SUMS
    }

    /// Stores the sums of a tile and a panel.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn store(&self, panel: &Panel, tile: usize, i: usize) {
        let tile_rows = self.packed.tile_rows();
        let sums = self.sums[self.place(tile, i)..][..SUMS].as_chunks::<LANES>().0;
        let rows = panels::rows_of(
            self.product,
            RowTile { index: tile, first: self.first, rows: tile_rows },
        );
        for (row, sum) in rows.zip(sums) {
            // SAFETY: the caller's promise.
            unsafe { panel.put(self.product, row, sum) };
        }
    }
}
