//! A task's rows and channels, cut into blocks that stay near the core.
//!
//! # Shape
//! [`TOGETHER`] panels at a time; of these, [`STEPS`] steps are unpacked and used by all tiles of rows before the next steps.
//! Sums wait in scratch between blocks, which changes none of their bits.

use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::{Packed as Packs, STEP, Tiled};
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::Amx;
use super::dense::Dense;
use super::pack::{PARTS, PackTask, Packed, packed_len};
use super::sum::{Block, RESULTS, STACKED};
use super::tile::{self, Configured};
use super::unpack::{Decoder, TILE};
use crate::pool::Shared;
use forerun_base::Format;
use std::array::from_fn;
use std::ops::Range;

/// Most steps of a block: 32 KiB of weights of four panels stay in a 48 KiB first-level cache while the activations of all rows pass
/// by. Measured on a Sapphire Rapids core; sums that come and go more often cost more than that.
const STEPS: usize = 8;
/// f32 of a tile of weights.
const WEIGHTS: usize = TILE / 4;
/// f32 of a block's scales and offsets: at most one of each per half step.
const SCALES: usize = 2 * STEPS * 2 * LANES;
/// f32 of the sums of a tile of rows and a panel.
const SUMS: usize = LANES * LANES;

/// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
pub(super) fn scratch_len(tiled: &Tiled, rows: usize, packs: bool) -> usize {
    let own = if packs { packed_len(rows, tiled.cols()) } else { 0 };
    let tiles = rows.div_ceil(LANES).min(near_tiles(tiled));
    walk::room_len(tiled) + own + RESULTS + TOGETHER * (STEPS * WEIGHTS + SCALES + tiles * SUMS)
}

/// Tiles of rows that are used together.
fn near_tiles(tiled: &Tiled) -> usize {
    tile::near_tiles(packed_len(LANES, tiled.cols()))
}

/// A product with its activations packed and its scratch cut up.
struct Run<'a> {
    product: &'a Product<'a, Tiled>,
    decoder: Decoder,
    packed: Packed<'a>,
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
/// The instructions of [`super::Amx`], and as for [`Product::run`].
pub(super) unsafe fn run(amx: Amx, product: &Product<'_, Tiled>, scratch: &mut [f32]) {
    let (tiled, rows) = (product.matrix, product.rows.clone());
    let (gathered, scratch) = scratch.split_at_mut(walk::room_len(tiled));
    let given = product.input.packed.and_then(Packs::halves);
    let own = if given.is_some() { 0 } else { packed_len(rows.len(), tiled.cols()) };
    let (room, scratch) = scratch.split_at_mut(own);
    let (packed, first) = if let Some(packed) = given {
        (packed, rows.start / packed.class())
    } else {
        let room = Shared::new(room);
        PackTask::new(amx, product.input, rows.clone(), tiled.cols(), room).run_all();
        (Packed::new(room, rows.len(), tiled.cols()), 0)
    };
    let (results, scratch) = scratch.split_at_mut(RESULTS);
    let (weights, scratch) = scratch.split_at_mut(TOGETHER * STEPS * WEIGHTS);
    let (scales, sums) = scratch.split_at_mut(TOGETHER * SCALES);
    let end = first + rows.len().div_ceil(packed.class());
    let decoder = Decoder::new(tiled.format());
    let class = packed.class();
    let dense = matches!(tiled.format(), Format::Dense(_));
    let tile_rows = if class <= STACKED && !dense { PARTS * class } else { class };
    // SAFETY: the caller's promise; tasks hold tiles only here.
    let _configured = unsafe { Configured::new(tile_rows, if decoder.halves() { 8 } else { 16 }) };
    let tiles = first..first;
    let mut run = Run { product, decoder, packed, first, tiles, results, weights, scales, sums };
    for from in (first..end).step_by(near_tiles(tiled)) {
        run.tiles = from..end.min(from + near_tiles(tiled));
        let together = if run.tiles.len() > 1 || dense { TOGETHER } else { 1 };
        // SAFETY: the caller's promise.
        walk(product, together, gathered, |panels| unsafe { run.panels(panels) });
    }
}

impl Run<'_> {
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
                        self.block([tile, i], from..to);
                    }
                }
            }
        }
        for tile in self.tiles.clone() {
            for (i, panel) in panels.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.store(panel, [tile, i]) };
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
        let columns = if self.decoder.halves() { STEP / 2 } else { STEP };
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
        let sums = self.sums[first..][..TOGETHER * SUMS].as_mut_ptr();
        let dense = Dense {
            x: self.packed.tile(tile, steps.start).0,
            weights: from_fn(|i| panels[i.min(last)].planes[0].wrapping_add(steps.start * TILE)),
            sums: from_fn(|i| sums.wrapping_add(i * SUMS)),
            class: self.packed.class(),
            steps: steps.len(),
            ahead: tile == self.tiles.start,
            fresh: steps.start == 0,
        };
        // SAFETY: the caller's promise; the fields are as they say.
        unsafe { dense.run() };
    }

    /// One tile of rows with place `i` of a block.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn block(&mut self, [tile, i]: [usize; 2], steps: Range<usize>) {
        let matrix = self.product.matrix;
        let ([columns, group], groups) = self.groups(steps.clone());
        let last = matrix.cols().min(steps.end * STEP);
        let sums = self.place(tile, i);
        let block = Block {
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
            match self.packed.class() {
                1 => self.sized::<1>(&block),
                2 => self.sized::<2>(&block),
                4 => self.sized::<4>(&block),
                8 => self.sized::<8>(&block),
                _ => self.sized::<16>(&block),
            }
        }
    }

    /// # Safety
    /// As for [`Block::scaled`].
    unsafe fn sized<const M: usize>(&self, block: &Block) {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.decoder.halves(), self.decoder.offsets()) {
                (false, false) => block.scaled::<M, false, false>(),
                (false, true) => block.scaled::<M, false, true>(),
                (true, false) => block.scaled::<M, true, false>(),
                (true, true) => block.scaled::<M, true, true>(),
            }
        }
    }

    /// First f32 of the sums of a tile and place `i` of a block.
    fn place(&self, tile: usize, i: usize) -> usize {
        ((tile - self.tiles.start) * TOGETHER + i) * SUMS
    }

    /// Stores the sums of a tile and a panel.
    ///
    /// # Safety
    /// As for [`run`].
    unsafe fn store(&self, panel: &Panel, [tile, i]: [usize; 2]) {
        let class = self.packed.class();
        let sums = self.sums[self.place(tile, i)..][..SUMS].as_chunks::<LANES>().0;
        let rows = walk::rows_of(self.product, [tile, self.first, class]);
        for (row, sum) in rows.zip(sums) {
            // SAFETY: the caller's promise.
            unsafe { panel.put(self.product, row, sum) };
        }
    }
}
