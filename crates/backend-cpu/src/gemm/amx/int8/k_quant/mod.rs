//! K-quants by AMX, cut into superblocks.
//!
//! # Shape
//! Fewer than sixteen rows meet 16-bit words, see [`small_batch`]. One tile of rows: while AMX multiplies a superblock,
//! vectors unpack the next one, of the same panel or the next. More rows: a superblock of [`PANELS`] panels is unpacked
//! and used by all tiles of rows before the next.

pub(crate) mod pipeline;
pub(crate) mod small_batch;
pub(crate) mod unpack;

use super::{SUMS, prefetch_outputs, store};
use crate::gemm::amx::int8::PREFETCH_BYTES;
use crate::gemm::int8::code::{Code, zero_point_log2};
use crate::gemm::int8::k_quant::NestedScales;
use crate::gemm::int8::layout::PackedLimbs;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use forerun_base::{Format, SUPERBLOCK};
use pipeline::{RESULTS, SuperblockPipeline, SuperblockProduct, configure, no_side_work};
use std::ops::Range;
use unpack::{BlockStep, FACTORS, PanelSource, STEPS, TILE};

/// f32 of the weights of a superblock.
const WEIGHTS: usize = STEPS * 2 * TILE / 4;
/// Panels whose superblocks stay in a 48 KiB L1 cache beside a tile of activations and the results.
const PANELS: usize = 2;
/// Superblocks whose factors are alive: the one being unpacked, multiplied and added.
const STAGES: usize = 3;

/// f32 of scratch for `tiles` tiles of rows.
pub(crate) fn scratch_len(tiles: usize) -> usize {
    let bytes = RESULTS + PANELS * WEIGHTS + STAGES * FACTORS + PANELS * tiles * SUMS;
    bytes.max(small_batch::SCRATCH)
}

/// Which slots of scratch a superblock uses.
#[derive(Clone, Copy)]
struct Slots {
    weights: usize,
    factors: usize,
    sums: usize,
}

/// A product's tiles of rows that share unpacked weights, and scratch.
pub(crate) struct KQuantGemm<'a> {
    product: &'a Product<'a, PackedWeight>,
    packed: PackedLimbs<'a>,
    /// The tile of the product's first row.
    first: usize,
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    factors: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<'a> KQuantGemm<'a> {
    /// With [`scratch_len`] of scratch.
    pub(crate) fn new(
        product: &'a Product<'a, PackedWeight>,
        packed: PackedLimbs<'a>,
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
    /// AMX, AVX-512 VNNI and VBMI are there. As for [`Product::run`]; the product's rows are completely packed in tiles
    /// of sixteen.
    pub(crate) unsafe fn run<C: Code>(&mut self, code: C, gathered: &mut [f32]) {
        let product = self.product;
        // SAFETY: this function's contract; a task configures tiles only here, and panels are the product's.
        unsafe {
            let _configured = configure();
            if self.tiles.len() > 1 {
                for_each_panels(product, PANELS, gathered, |panels| self.many(code, panels));
            } else {
                for_each_panels(product, MAX_PANELS, gathered, |panels| self.few(code, panels));
            }
        }
    }

    fn source(&self, panel: &Panel) -> PanelSource {
        let (format, [codes, scales, offsets]) = (self.product.matrix.format(), panel.planes);
        let levels = NestedScales::new(format, [scales, offsets]);
        let len = self.product.matrix.panel(0)[0].len();
        let segment = self.packed.layout().segment();
        PanelSource {
            codes,
            len,
            prefetch_bytes: PREFETCH_BYTES,
            jump: 0,
            levels,
            zero_point_log2: zero_point_log2(format),
            segment,
        }
    }

    /// Superblock `block` of a tile of rows, with weights, factors and sums in the given slots.
    fn block(&mut self, tile: usize, block: usize, slots: Slots) -> SuperblockProduct {
        let offsets = matches!(self.product.matrix.format(), Format::Grouped { offset: true, .. });
        let segment = self.packed.layout().segment();
        SuperblockProduct {
            x: self.packed.unit(tile, block * STEPS),
            weights: self.weights[slots.weights * WEIGHTS..][..WEIGHTS].as_ptr().cast(),
            factors: self.factors[slots.factors * FACTORS..][..FACTORS].as_ptr(),
            segments: if offsets { SUPERBLOCK / segment } else { 0 },
            raised: false,
            sums: self.sums[slots.sums * SUMS..][..SUMS].as_mut_ptr(),
            fresh: block == 0,
        }
    }

    /// Where the weights and factors of a superblock are unpacked to, by their slots.
    fn unpack_dst(&mut self, weights: usize, factors: usize) -> (*mut u8, *mut f32) {
        (
            self.weights[weights * WEIGHTS..][..WEIGHTS].as_mut_ptr().cast(),
            self.factors[factors * FACTORS..][..FACTORS].as_mut_ptr(),
        )
    }

    /// Stores the sums in a slot for a tile of rows and a panel.
    ///
    /// # Safety
    /// The panel and the tile are the product's, as [`KQuantGemm::run`] demands.
    unsafe fn put(&self, panel: &Panel, tile: usize, sums: usize) {
        let rows = panels::rows_of(
            self.product,
            RowTile { index: tile, first: self.first, rows: self.packed.tile_rows() },
        );
        let sums = &self.sums[sums * SUMS..][..SUMS];
        // SAFETY: the tile is completely packed and the outputs belong to this thread (`run`'s contract).
        unsafe { store(self.product, panel, rows, (sums, self.packed.row_scales(tile))) };
    }

    /// One tile of sixteen rows with some panels.
    ///
    /// # Safety
    /// As for [`KQuantGemm::run`]; tiles are configured, `panels` are the product's and not empty.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn few<C: Code>(&mut self, code: C, panels: &[Panel]) {
        let (tile, blocks) = (self.tiles.start, self.packed.layout().blocks());
        let mut pipeline = SuperblockPipeline::new(self.results.as_mut_ptr());
        // SAFETY: this function's contract. A slot of weights or factors is overwritten only when the pipeline is past
        // it.
        unsafe {
            for item in 0..panels.len() * blocks {
                let (panel, block) = (item / blocks, item % blocks);
                if item == 0 {
                    let (source, dst) = (self.source(&panels[0]), self.unpack_dst(0, 0));
                    (0..STEPS)
                        .for_each(|step| source.step(code, BlockStep { block: 0, step }, dst));
                }
                let this = self.block(
                    tile,
                    block,
                    Slots { weights: item % PANELS, factors: item % STAGES, sums: panel % PANELS },
                );
                let next = item + 1;
                if next < panels.len() * blocks {
                    let source = self.source(&panels[next / blocks]);
                    let dst = self.unpack_dst(next % PANELS, next % STAGES);
                    let place = next % blocks;
                    pipeline.push(this, |step| {
                        source.step(code, BlockStep { block: place, step }, dst)
                    });
                } else {
                    pipeline.push(this, no_side_work);
                }
                // A push finishes the superblock before it.
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
    /// As for [`KQuantGemm::few`].
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn many<C: Code>(&mut self, code: C, panels: &[Panel]) {
        let (start, layout) = (self.tiles.start, self.packed.layout());
        let mut pipeline = SuperblockPipeline::new(self.results.as_mut_ptr());
        // SAFETY: this function's contract; the pipeline is finished before weights and factors are overwritten.
        unsafe {
            let blocks = layout.blocks();
            for block in 0..blocks {
                for (i, panel) in panels.iter().enumerate() {
                    let (source, dst) = (self.source(panel), self.unpack_dst(i, i));
                    (0..STEPS).for_each(|step| source.step(code, BlockStep { block, step }, dst));
                }
                for tile in self.tiles.clone() {
                    let rows = panels::rows_of(
                        self.product,
                        RowTile { index: tile, first: self.first, rows: self.packed.tile_rows() },
                    );
                    for (i, panel) in panels.iter().enumerate() {
                        let this = self.block(
                            tile,
                            block,
                            Slots { weights: i, factors: i, sums: (tile - start) * PANELS + i },
                        );
                        if block + 1 == blocks {
                            prefetch_outputs(self.product, panel, rows.clone());
                        }
                        pipeline.push(this, no_side_work);
                    }
                    // A push finishes the superblock before it.
                    if block + 1 == blocks && tile > start {
                        self.put_all(panels, tile - 1);
                    }
                }
                pipeline.finish();
            }
            self.put_all(panels, self.tiles.end - 1);
        }
    }

    /// Stores a tile's sums with several panels.
    ///
    /// # Safety
    /// The panel and the tile are the product's, as [`KQuantGemm::run`] demands.
    unsafe fn put_all(&self, panels: &[Panel], tile: usize) {
        for (i, panel) in panels.iter().enumerate() {
            // SAFETY: the panel and the tile are the product's (contract above); the slot holds their sums.
            unsafe { self.put(panel, tile, (tile - self.tiles.start) * PANELS + i) };
        }
    }
}
