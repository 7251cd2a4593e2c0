//! A task's rows and channels by tiles, cut into blocks that stay near the core.
//!
//! # Shape
//! [`TOGETHER`] panels at a time: of these, a block of columns is unpacked and used by all tiles of rows before the next.
//! Sums wait in scratch between blocks, which changes none of their bits. Few tiles take a panel after the other, as it lies
//! in memory.

use super::super::amx::tile::near_tiles as near_tiles_of;
use super::super::avx512::Avx512;
use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::code::{Code, Scales, excess};
use super::direct::{self, Direct};
use super::nested::{self, Nested, Words};
use super::pack::{Packed, Recipe};
use super::product::Work;
use super::stacked::{self, Stacked};
use super::tiles::{self, Block, Pipeline, RESULTS, SCALES, UNITS, WEIGHTS};
use forerun_base::Format;
use std::arch::x86_64::{_mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps};
use std::ops::Range;

/// f32 of the sums of a tile of rows and a panel.
pub(super) const SUMS: usize = LANES * LANES;

/// Tiles of rows up to which reading the weights in their order is worth more than reading activations once for several panels.
const FEW_TILES: usize = 2;

/// Tiles of rows that are used together.
pub(super) fn near_tiles(recipe: Recipe) -> usize {
    near_tiles_of(recipe.packed_len(LANES))
}

/// f32 of scratch for a product of `rows` rows.
pub(super) fn scratch_len(recipe: Recipe, rows: usize) -> usize {
    let tiles = rows.div_ceil(LANES).min(near_tiles(recipe));
    if recipe.nested() {
        nested::scratch_len(tiles)
    } else {
        (RESULTS + TOGETHER * (WEIGHTS + SCALES + tiles * SUMS))
            .max(stacked::SCRATCH)
            .max(direct::SCRATCH)
    }
}

/// Computes and stores a product.
///
/// # Safety
/// The instructions of [`super::sets::Vnni`], and tiles; as for [`Product::run`].
pub(super) unsafe fn run<C: Code>(work: Work<'_>, code: C) {
    let (recipe, class) = (work.packed.recipe(), work.packed.class());
    if recipe.nested() {
        work.nested(code);
    } else if stacked::stacks(recipe, class) {
        let Work { product, packed, tiles, room, scratch, .. } = work;
        // SAFETY: the caller's promise; fewer rows than sixteen are one tile.
        unsafe { Stacked { product, packed, tile: tiles.start }.run(room, scratch) };
    } else if recipe.as_tiles() {
        let Work { product, packed, tiles, room, scratch, .. } = work;
        // SAFETY: the caller's promise.
        unsafe { Direct { product, packed, tiles }.run(room, scratch) };
    } else {
        work.by_tiles(code);
    }
}

/// Scales of a panel.
pub(super) fn scales(tiled: &Tiled, panel: &Panel, unit: usize) -> Scales {
    let [_, scales, offsets] = panel.planes;
    Scales::new(tiled.format(), [scales, offsets], unit)
}

impl Work<'_> {
    fn nested<C: Code>(self, code: C) {
        let Range { start, end } = self.tiles;
        if self.packed.recipe().pairs(self.packed.class()) {
            // SAFETY: `run`'s promise; fewer rows than sixteen are one tile.
            return unsafe {
                Words::new(self.product, self.packed, start, self.scratch).run(code, self.room)
            };
        }
        for from in (start..end).step_by(near_tiles(self.packed.recipe())) {
            let tiles = from..end.min(from + near_tiles(self.packed.recipe()));
            let mut nested = Nested::new(self.product, self.packed, (start, tiles), self.scratch);
            // SAFETY: `run`'s promise.
            unsafe { nested.run(code, self.room) };
        }
    }

    fn by_tiles<C: Code>(self, code: C) {
        let recipe = self.packed.recipe();
        let (results, scratch) = self.scratch.split_at_mut(RESULTS);
        let (weights, scratch) = scratch.split_at_mut(TOGETHER * WEIGHTS);
        let (scales, sums) = scratch.split_at_mut(TOGETHER * SCALES);
        // SAFETY: `run`'s promise; tasks hold tiles only here.
        let _configured = unsafe { tiles::configure(recipe, self.packed.class()) };
        let Range { start, end } = self.tiles;
        for from in (start..end).step_by(near_tiles(recipe)) {
            let mut run = Run {
                product: self.product,
                packed: self.packed,
                first: start,
                tiles: from..end.min(from + near_tiles(recipe)),
                results,
                weights,
                scales,
                sums,
            };
            let few = run.tiles.len() <= FEW_TILES;
            walk(self.product, TOGETHER, self.room, |panels| run.panels(code, panels, few));
        }
    }
}

/// Tiles of rows that stay near, and scratch.
struct Run<'a> {
    product: &'a Product<'a, Tiled>,
    packed: Packed<'a>,
    /// The tile of the product's first row.
    first: usize,
    tiles: Range<usize>,
    results: &'a mut [f32],
    weights: &'a mut [f32],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Run<'_> {
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
            let rows = walk::rows_of(self.product, [tile, self.first, self.packed.class()]);
            // SAFETY: `run`'s promise.
            unsafe { store(self.product, panel, rows, (sums, self.packed.worth(tile))) };
        }
    }

    /// All blocks of units, each of all panels before the next.
    fn blocks<C: Code, const NARROW: bool>(&mut self, code: C, panels: &[Panel]) {
        let units = self.packed.recipe().units();
        let mut pipeline = Pipeline::<NARROW>::new(self.results.as_mut_ptr());
        for from in (0..units).step_by(UNITS) {
            let some = from..units.min(from + UNITS);
            for (i, panel) in panels.iter().enumerate() {
                self.bring(code, panel, i, some.clone());
            }
            // SAFETY: tiles were configured for the class and the recipe; the fields of blocks are as they say, and the pipeline is
            // finished before weights and scales change.
            unsafe {
                for tile in self.tiles.clone() {
                    let rows = walk::rows_of(self.product, [tile, self.first, self.packed.class()]);
                    for (i, panel) in panels.iter().enumerate() {
                        let block = self.block([tile, i, i], some.clone());
                        if some.end == units {
                            expect(self.product, panel, rows.clone());
                        }
                        pipeline.push(block);
                    }
                    // A push finishes what was before it.
                    if some.end == units && tile > self.tiles.start {
                        self.put(panels, tile - 1);
                    }
                }
                pipeline.finish();
            }
        }
        self.put(panels, self.tiles.end - 1);
    }

    /// All panels, each to its end before the next. A block is brought near while the one before it is multiplied.
    fn stream<C: Code, const NARROW: bool>(&mut self, code: C, panels: &[Panel]) {
        let units = self.packed.recipe().units();
        let each = units.div_ceil(UNITS);
        let step = |n: usize| (n / each, n % each * UNITS..units.min((n % each + 1) * UNITS));
        let mut pipeline = Pipeline::<NARROW>::new(self.results.as_mut_ptr());
        for n in 0..=each * panels.len() {
            if n < each * panels.len() {
                let (i, some) = step(n);
                self.bring(code, &panels[i], n % TOGETHER, some);
            }
            let Some(n) = n.checked_sub(1) else { continue };
            let (i, some) = step(n);
            for tile in self.tiles.clone() {
                if some.end == units {
                    let rows = walk::rows_of(self.product, [tile, self.first, self.packed.class()]);
                    expect(self.product, &panels[i], rows);
                }
                let block = self.block([tile, i, n % TOGETHER], some.clone());
                // SAFETY: tiles were configured for the class and the recipe; the fields of blocks are as they say: between a block and the
                // next use of its place for weights and scales lie at least two further blocks.
                unsafe { pipeline.push(block) };
            }
        }
        // SAFETY: as above.
        unsafe { pipeline.finish() };
        self.tiles.clone().for_each(|tile| self.put(panels, tile));
    }

    fn excess(&self) -> u8 {
        excess(self.product.matrix.format()).map_or(0, |bit| 1 << bit)
    }

    /// Brings units of a panel near, as tiles and f32 scales in place `at`.
    fn bring<C: Code>(&mut self, code: C, panel: &Panel, at: usize, units: Range<usize>) {
        let (tiled, unit) = (self.product.matrix, self.packed.recipe().unit());
        let (codes, excess) = (panel.planes[0], self.excess());
        let to = self.weights[at * WEIGHTS..][..WEIGHTS].as_mut_ptr();
        let factors = self.scales[at * SCALES..][..SCALES].as_mut_ptr();
        let scales = scales(tiled, panel, unit);
        let some = [units.start, units.len(), unit];
        // SAFETY: the units are the panel's; scratch has room for a block.
        unsafe {
            tiles::unpack(code, (codes, excess), some, to);
            tiles::widen_scales::<C>(scales, [units.start, units.len()], factors);
        }
    }

    /// One tile of rows with panel number `i`, whose units were brought to place `at`.
    fn block(&mut self, [tile, i, at]: [usize; 3], units: Range<usize>) -> Block {
        let sums = self.place(tile, i);
        let format = self.product.matrix.format();
        Block {
            recipe: self.packed.recipe(),
            class: self.packed.class(),
            signed: excess(format).is_some(),
            offsets: matches!(format, Format::Grouped { offset: true, .. }),
            x: self.packed.unit(tile, units.start),
            weights: self.weights[at * WEIGHTS..].as_ptr().cast(),
            scales: self.scales[at * SCALES..].as_ptr(),
            units: units.len(),
            sums: self.sums[sums..][..SUMS].as_mut_ptr(),
            fresh: units.start == 0,
        }
    }

    /// First f32 of the sums of a tile and place `i` of a block.
    fn place(&self, tile: usize, i: usize) -> usize {
        ((tile - self.tiles.start) * TOGETHER + i) * SUMS
    }
}

/// As [`Panel::expect`], for [`store`].
#[inline(always)]
pub(super) fn expect(product: &Product<'_, Tiled>, panel: &Panel, rows: Range<usize>) {
    // SAFETY: processors with tiles have the instructions.
    panel.expect(unsafe { Avx512::promised() }, product, rows);
}

/// Stores the sums of a tile of rows and a panel.
///
/// # Safety
/// The instructions of [`Units`]; as for [`Product::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn store(
    product: &Product<'_, Tiled>,
    panel: &Panel,
    rows: Range<usize>,
    (sums, worth): (&[f32], &[f32]),
) {
    for ((row, sums), &worth) in rows.zip(sums.as_chunks::<LANES>().0).zip(worth) {
        let mut out = [0.0; LANES];
        // SAFETY: sixteen sums; the caller's promise.
        unsafe {
            let sums = _mm512_loadu_ps(sums.as_ptr());
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_mul_ps(sums, _mm512_set1_ps(worth)));
            panel.put(product, row, &out);
        }
    }
}
