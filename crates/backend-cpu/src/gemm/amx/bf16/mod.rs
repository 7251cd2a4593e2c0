//! Dense bf16 and FP8 weights by bf16 tiles, with activations split into three bf16 parts.
//!
//! # Math
//! With `x = high + middle + low`, all bf16, and codes `c` that are exact in bf16:
//!
//! ```text
//! part[m][n] = Σ_k high·c + Σ_k middle·c + Σ_k low·c               over the columns of one step
//! sum[m][n] ← sum[m][n] + scale[n]·part[m][n]                      steps in order
//! sum[m][n] ← sum[m][n] + offset[n]·Σ_k x[m][k]                    where there are offsets
//! ```
//!
//! # Numerics
//! The three parts hold all 24 bits of `x`, unless it is below 2⁻¹¹⁰. Products of two bf16 are exact in f32; all sums
//! are f32. A step is 32 columns, or 16 where groups are not a multiple of 32. What happens in a step, and the order of
//! steps, depends on the weight alone: a tile computes its rows independently of each other. Dense weights have no
//! scales, so their sums stay in tiles over all columns, see [`dense`].
//!
//! # Shape
//! [`MAX_PANELS`] panels at a time; [`STEPS`] steps of them are unpacked and used by all tiles of rows before the next
//! steps. Sums wait in scratch between blocks, which changes none of their bits.

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
use dense::DenseBlock;
use forerun_base::Format;
use pack::{PARTS, PackBf16Task, PackedBf16, packed_len};
use scaled::{RESULTS, STACKED, ScaledBlock};
use std::array::from_fn;
use std::ops::Range;
use unpack::{Decoder, TILE};

/// Most steps of a block: 32 KiB of weights of four panels stay in a 48 KiB L1 cache while the activations of all rows
/// stream by. Measured on a Sapphire Rapids core; loading and storing sums more often costs more.
const STEPS: usize = 8;
/// f32 of a tile of weights.
const WEIGHTS: usize = TILE / 4;
/// f32 of a block's scales and offsets: at most one of each per half step.
const SCALES: usize = 2 * STEPS * 2 * LANES;
/// f32 of the sums of a tile of rows and a panel.
const SUMS: usize = LANES * LANES;

/// f32 of scratch for a product of `rows` rows; `packs` where they are not packed yet.
pub(crate) fn scratch_len(weight: &PackedWeight, rows: usize, packs: bool) -> usize {
    let own = if packs { packed_len(rows, weight.cols()) } else { 0 };
    let tiles = rows.div_ceil(LANES).min(l2_tiles(weight));
    panels::gathered_len(weight)
        + own
        + RESULTS
        + MAX_PANELS * (STEPS * WEIGHTS + SCALES + tiles * SUMS)
}

/// Tiles of rows that share unpacked weights.
fn l2_tiles(weight: &PackedWeight) -> usize {
    tile::l2_tiles(packed_len(LANES, weight.cols()))
}

/// A product with its activations packed, and its scratch divided. Only [`run`] makes one, so its contract holds for
/// every method.
struct Bf16Gemm<'a> {
    product: &'a Product<'a, PackedWeight>,
    decoder: Decoder,
    packed: PackedBf16<'a>,
    /// The tile of the product's first row.
    first: usize,
    /// Tiles that share unpacked weights.
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Computes and stores a product.
///
/// # Safety
/// As for [`Product::run`], with [`scratch_len`] of scratch; the value proves the instructions.
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
    // SAFETY: the `Amx` proves AMX; a task configures tiles only here and drops the configuration at its end.
    let _configured =
        unsafe { Configured::new(config_rows, if decoder.half_steps() { 8 } else { 16 }) };
    let tiles = first..first;
    let mut run =
        Bf16Gemm { product, decoder, packed, first, tiles, results, weights, scales, sums };
    for from in (first..end).step_by(l2_tiles(weight)) {
        run.tiles = from..end.min(from + l2_tiles(weight));
        let together = if run.tiles.len() > 1 || dense { MAX_PANELS } else { 1 };
        // SAFETY: rows are packed and outputs are this thread's (contract above); `for_each_panels` gives panels of the
        // product, and tiles are configured.
        for_each_panels(product, together, gathered, |panels| unsafe { run.panels(panels) });
    }
}

impl Bf16Gemm<'_> {
    /// All rows with some panels.
    ///
    /// # Safety
    /// As for [`run`]; panels and tiles are the product's, steps the weight's, and tiles are configured.
    unsafe fn panels(&mut self, panels: &[Panel]) {
        let steps = self.product.matrix.steps();
        let each = steps.div_ceil(steps.div_ceil(STEPS).max(1)).max(1);
        for from in (0..steps).step_by(each) {
            let to = steps.min(from + each);
            // SAFETY: panels and tiles are the product's (contract above); the steps are below the weight's number of
            // steps.
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
                // SAFETY: the panel and the tile are the product's, whose outputs are this thread's (contract above).
                unsafe { self.store(panel, tile, i) };
            }
        }
    }

    /// Columns of a product that share a scale, and columns of a group; and the groups of some steps.
    fn groups(&self, steps: Range<usize>) -> ([usize; 2], Range<usize>) {
        let matrix = self.product.matrix;
        let Format::Grouped { group, .. } = matrix.format() else {
            unreachable!("dense numbers have no groups")
        };
        let end = matrix.cols().min(steps.end * STEP).div_ceil(group);
        let columns = if self.decoder.half_steps() { STEP / 2 } else { STEP };
        ([columns, group], steps.start * STEP / group..end)
    }

    /// Unpacks steps of a panel to slot `i` of the block.
    ///
    /// # Safety
    /// As for [`run`]; panels and tiles are the product's, steps the weight's, and tiles are configured.
    unsafe fn unpack(&mut self, panel: &Panel, i: usize, steps: Range<usize>) {
        let Some(scale) = self.decoder.scale() else { return };
        let weights = self.weights[i * STEPS * WEIGHTS..][..STEPS * WEIGHTS].as_mut_ptr();
        let scales = self.scales[i * SCALES..][..SCALES].as_mut_ptr();
        let (_, groups) = self.groups(steps.clone());
        let [codes, factors, offsets] = panel.planes;
        // SAFETY: the steps and their groups are the panel's; the slot has room for a block of both.
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
    /// As for [`run`]; panels and tiles are the product's, steps the weight's, and tiles are configured.
    unsafe fn dense(&mut self, panels: &[Panel], tile: usize, steps: Range<usize>) {
        let (first, last) = (self.place(tile, 0), panels.len() - 1);
        let sums = self.sums[first..][..MAX_PANELS * SUMS].as_mut_ptr();
        let dense = DenseBlock {
            x: self.packed.tile(tile, steps.start).0,
            weights: from_fn(|i| panels[i.min(last)].planes[0].wrapping_add(steps.start * TILE)),
            sums: from_fn(|i| sums.wrapping_add(i * SUMS)),
            tile_rows: self.packed.tile_rows(),
            steps: steps.len(),
            prefetch_bytes: tile == self.tiles.start,
            fresh: steps.start == 0,
        };
        // SAFETY: this function's contract; the operands point to these steps of the panels and of the packed tile, and
        // to this task's scratch.
        unsafe { dense.run() };
    }

    /// One tile of rows with slot `i` of the block.
    ///
    /// # Safety
    /// As for [`run`]; panels and tiles are the product's, steps the weight's, and tiles are configured.
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
        // SAFETY: this function's contract; the operands point to these steps of the panels and of the packed tile, and
        // to this task's scratch.
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
        // SAFETY: the same contract; the decoder says whether steps are halves and whether there are offsets.
        unsafe {
            match (self.decoder.half_steps(), self.decoder.offsets()) {
                (false, false) => block.scaled::<M, false, false>(),
                (false, true) => block.scaled::<M, false, true>(),
                (true, false) => block.scaled::<M, true, false>(),
                (true, true) => block.scaled::<M, true, true>(),
            }
        }
    }

    /// Index of the sums of a tile and slot `i` of a block.
    fn place(&self, tile: usize, i: usize) -> usize {
        ((tile - self.tiles.start) * MAX_PANELS + i) * SUMS
    }

    /// Stores the sums of a tile and a panel.
    ///
    /// # Safety
    /// As for [`run`]; panels and tiles are the product's, steps the weight's, and tiles are configured.
    unsafe fn store(&self, panel: &Panel, tile: usize, i: usize) {
        let tile_rows = self.packed.tile_rows();
        let sums = self.sums[self.place(tile, i)..][..SUMS].as_chunks::<LANES>().0;
        let rows = panels::rows_of(
            self.product,
            RowTile { index: tile, first: self.first, rows: tile_rows },
        );
        for (row, sum) in rows.zip(sums) {
            // SAFETY: the outputs of the product's rows and channels belong to this thread (`run`'s contract).
            unsafe { panel.put(self.product, row, sum) };
        }
    }
}
