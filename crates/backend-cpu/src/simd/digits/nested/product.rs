//! A task's rows and channels by tiles, cut into superblocks.
//!
//! # Shape
//! Fewer than sixteen rows meet words, see [`super::words`]. One tile of rows: while tiles multiply a superblock, vectors
//! unpack the next one, of the same panel or the next. More rows: a superblock of [`PANELS`] panels is unpacked and used by all
//! tiles of rows before the next.

use super::super::super::product::Product;
use super::super::super::tiled::Tiled;
use super::super::super::walk::{self, Panel, TOGETHER, walk};
use super::super::by_tiles::{SUMS, expect, store};
use super::super::bytes::AHEAD;
use super::super::code::{Code, excess};
use super::super::pack::Packed;
use super::tiles::{Block, Pipeline, RESULTS, configure, nothing};
use super::unpack::{FACTORS, Source, TILE};
use super::wide::STEPS;
use super::{Levels, words};
use forerun_base::{Format, SUPERBLOCK};
use std::ops::Range;

/// f32 of the weights of a superblock.
const WEIGHTS: usize = STEPS * 2 * TILE / 4;
/// Panels whose superblocks stay in a 48 KiB first-level cache beside a tile of activations and the results.
const PANELS: usize = 2;
/// Factors that are needed at a time: of what is unpacked, multiplied and added.
const STAGES: usize = 3;

/// f32 of scratch for `tiles` tiles of rows.
pub(in super::super) fn scratch_len(tiles: usize) -> usize {
    let bytes = RESULTS + PANELS * WEIGHTS + STAGES * FACTORS + PANELS * tiles * SUMS;
    bytes.max(words::SCRATCH)
}

/// A product's tiles of rows that stay near, and scratch.
pub(in super::super) struct Nested<'a> {
    product: &'a Product<'a, Tiled>,
    packed: Packed<'a>,
    /// The tile of the product's first row.
    first: usize,
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    factors: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<'a> Nested<'a> {
    /// With [`scratch_len`] of scratch.
    pub(in super::super) fn new(
        product: &'a Product<'a, Tiled>,
        packed: Packed<'a>,
        (first, tiles): (usize, Range<usize>),
        scratch: &'a mut [f32],
    ) -> Self {
        let (results, scratch) = scratch.split_at_mut(RESULTS);
        let (weights, scratch) = scratch.split_at_mut(PANELS * WEIGHTS);
        let (factors, sums) = scratch.split_at_mut(STAGES * FACTORS);
        Self { product, packed, first, tiles, results, weights, factors, sums }
    }

    /// Computes and stores everything.
    ///
    /// # Safety
    /// The instructions of [`super::super::Units`] and tiles; as for [`Product::run`].
    pub(in super::super) unsafe fn run<C: Code>(&mut self, code: C, room: &mut [f32]) {
        let product = self.product;
        // SAFETY: the caller's promise; tasks hold tiles only here.
        unsafe {
            let _configured = configure();
            if self.tiles.len() > 1 {
                walk(product, PANELS, room, |panels| self.many(code, panels));
            } else {
                walk(product, TOGETHER, room, |panels| self.few(code, panels));
            }
        }
    }

    fn source(&self, panel: &Panel) -> Source {
        let (format, [codes, scales, offsets]) = (self.product.matrix.format(), panel.planes);
        let levels = Levels::new(format, [scales, offsets]);
        let len = self.product.matrix.panel(0)[0].len();
        let part = self.packed.recipe().part();
        Source { codes, len, ahead: AHEAD, jump: 0, levels, excess: excess(format), part }
    }

    /// Superblock `block` of a tile of rows, with weights, factors and sums at the given places.
    fn block(&mut self, [tile, block]: [usize; 2], [weights, factors, sums]: [usize; 3]) -> Block {
        let offsets = matches!(self.product.matrix.format(), Format::Grouped { offset: true, .. });
        let part = self.packed.recipe().part();
        Block {
            x: self.packed.unit(tile, block * STEPS),
            weights: self.weights[weights * WEIGHTS..][..WEIGHTS].as_ptr().cast(),
            factors: self.factors[factors * FACTORS..][..FACTORS].as_ptr(),
            parts: if offsets { SUPERBLOCK / part } else { 0 },
            raised: false,
            sums: self.sums[sums * SUMS..][..SUMS].as_mut_ptr(),
            fresh: block == 0,
        }
    }

    /// Where the weights and factors of a superblock are unpacked to.
    fn room(&mut self, weights: usize, factors: usize) -> (*mut u8, *mut f32) {
        (
            self.weights[weights * WEIGHTS..][..WEIGHTS].as_mut_ptr().cast(),
            self.factors[factors * FACTORS..][..FACTORS].as_mut_ptr(),
        )
    }

    /// Stores the sums at a place for a tile of rows and a panel.
    ///
    /// # Safety
    /// As for [`Nested::run`].
    unsafe fn put(&self, panel: &Panel, tile: usize, sums: usize) {
        let rows = walk::rows_of(self.product, [tile, self.first, self.packed.class()]);
        let sums = &self.sums[sums * SUMS..][..SUMS];
        // SAFETY: the caller's promise.
        unsafe { store(self.product, panel, rows, (sums, self.packed.worth(tile))) };
    }

    /// One tile of sixteen rows with some panels.
    ///
    /// # Safety
    /// As for [`Nested::run`]; tiles are configured.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn few<C: Code>(&mut self, code: C, panels: &[Panel]) {
        let (tile, blocks) = (self.tiles.start, self.packed.recipe().blocks());
        let mut pipeline = Pipeline::new(self.results.as_mut_ptr());
        // SAFETY: the caller's promise. A place of weights or factors is written again only when the pipeline is past it.
        unsafe {
            for item in 0..panels.len() * blocks {
                let (panel, block) = (item / blocks, item % blocks);
                if item == 0 {
                    let (source, room) = (self.source(&panels[0]), self.room(0, 0));
                    (0..STEPS).for_each(|step| source.step(code, [0, step], room));
                }
                let this =
                    self.block([tile, block], [item % PANELS, item % STAGES, panel % PANELS]);
                let next = item + 1;
                if next < panels.len() * blocks {
                    let source = self.source(&panels[next / blocks]);
                    let room = self.room(next % PANELS, next % STAGES);
                    let place = next % blocks;
                    pipeline.push(this, |step| source.step(code, [place, step], room));
                } else {
                    pipeline.push(this, nothing);
                }
                // A push finishes what was before it.
                if block == 0 && panel > 0 {
                    self.put(&panels[panel - 1], tile, (panel - 1) % PANELS);
                }
            }
            pipeline.finish();
            self.put(&panels[panels.len() - 1], tile, (panels.len() - 1) % PANELS);
        }
    }

    /// Many tiles of sixteen rows with up to [`PANELS`] panels.
    ///
    /// # Safety
    /// As for [`Nested::few`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn many<C: Code>(&mut self, code: C, panels: &[Panel]) {
        let (start, recipe) = (self.tiles.start, self.packed.recipe());
        let mut pipeline = Pipeline::new(self.results.as_mut_ptr());
        // SAFETY: the caller's promise; the pipeline is finished before weights and factors change.
        unsafe {
            let blocks = recipe.blocks();
            for block in 0..blocks {
                for (i, panel) in panels.iter().enumerate() {
                    let (source, room) = (self.source(panel), self.room(i, i));
                    (0..STEPS).for_each(|step| source.step(code, [block, step], room));
                }
                for tile in self.tiles.clone() {
                    let rows = walk::rows_of(self.product, [tile, self.first, self.packed.class()]);
                    for (i, panel) in panels.iter().enumerate() {
                        let this = self.block([tile, block], [i, i, (tile - start) * PANELS + i]);
                        if block + 1 == blocks {
                            expect(self.product, panel, rows.clone());
                        }
                        pipeline.push(this, nothing);
                    }
                    // A push finishes what was before it.
                    if block + 1 == blocks && tile > start {
                        self.put_all(panels, tile - 1);
                    }
                }
                pipeline.finish();
            }
            self.put_all(panels, self.tiles.end - 1);
        }
    }

    /// Stores a tile's sums of many.
    ///
    /// # Safety
    /// As for [`Nested::run`].
    unsafe fn put_all(&self, panels: &[Panel], tile: usize) {
        for (i, panel) in panels.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.put(panel, tile, (tile - self.tiles.start) * PANELS + i) };
        }
    }
}
