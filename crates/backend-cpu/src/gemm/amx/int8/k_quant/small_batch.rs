//! Two to eight rows with superblocks of panels, by tiles of 16-bit words.
//!
//! # Layout
//! Pairs of limbs, one for each power of 256 and row, are rows of a tile, or of two tiles for eight rows, and meet
//! words of even and then of odd columns. That takes more products than splitting words into bytes, which few rows can
//! afford, and saves the splitting, whose cost they cannot share. Results are `[power][row][channel]`, the highest
//! power first. Tiles 0 to 3 take the sums of up to four panels, or of two for eight rows; 4 and 5 are weights, 6 and 7
//! activations, which all panels share.
//!
//! # Shape
//! While AMX multiplies a step, vectors unpack the next step of the same panel, so all other panels come between a
//! store and its load. The results of a superblock are added during the next.

use super::pipeline::{POWERS, SuperblockProduct};
use super::unpack::STEPS;
use super::unpack::{FACTORS, PanelSource, TILE, UnpackWords, with_unpack_words};
use crate::gemm::amx::int8::{SUMS, store};
use crate::gemm::amx::tile::{Configured, clear_sums, move_tile};
use crate::gemm::int8::code::{Code, zero_point_log2};
use crate::gemm::int8::k_quant::{NestedScales, STEP};
use crate::gemm::int8::layout::{AUX_WORDS, PackedLimbs};
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, MAX_PANELS, Panel, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::isa::LANES;
use forerun_base::{Format, SUPERBLOCK};
use std::arch::asm;
use std::array::from_fn;

/// f32 of the results of a panel.
const RESULT: usize = SUMS;
/// f32 of a step's weights of a panel.
const WEIGHTS: usize = 2 * TILE / 4;
/// Steps and superblocks that are alive: the one being multiplied and the next.
const STAGES: usize = 2;

/// How far ahead codes are prefetched. Panels lie whole pages apart, so more of each would not fit the sets of an L1
/// cache: 4096 takes half as long again.
const PREFETCH_BYTES: usize = 1024;

/// f32 of scratch.
pub(crate) const SCRATCH: usize =
    MAX_PANELS * (STAGES * (WEIGHTS + FACTORS) + 2 * RESULT + 2 * SUMS);

/// Bytes of a step of activations.
const fn step_bytes<const TILE_ROWS: usize>() -> usize {
    2 * POWERS * TILE_ROWS * STEP
}

/// Panels that are multiplied together with `tile_rows` rows.
const fn together(tile_rows: usize) -> usize {
    if tile_rows > 4 { MAX_PANELS / 2 } else { MAX_PANELS }
}

/// Loads weights to tile `$w`, and adds their products with each `$x` to `$sum`.
macro_rules! products {
    ($at:expr, $w:literal, $(($sum:literal, $x:literal)),*) => {
        asm!(
            concat!("tileloadd tmm", $w, ", [{at} + {line}]"),
            $(concat!("tdpbsud tmm", $sum, ", tmm", $x, ", tmm", $w),)*
            at = in(reg) $at, line = in(reg) 64_usize, options(nostack, readonly),
        )
    };
}

/// A product with one tile of rows, and scratch.
pub(crate) struct KQuantSmallBatch<'a> {
    product: &'a Product<'a, PackedWeight>,
    packed: PackedLimbs<'a>,
    tile: usize,
    /// Activations and their aux words.
    x: (*const u8, *const f32),
    /// Segments of a superblock.
    segments: usize,
    /// Whether there are offsets.
    offsets: bool,
    signed: bool,
    weights: &'a mut [f32],
    factors: &'a mut [f32],
    results: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<'a> KQuantSmallBatch<'a> {
    /// With [`SCRATCH`] of scratch.
    pub(crate) fn new(
        product: &'a Product<'a, PackedWeight>,
        packed: PackedLimbs<'a>,
        tile: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        let (weights, scratch) = scratch.split_at_mut(MAX_PANELS * STAGES * WEIGHTS);
        let (factors, scratch) = scratch.split_at_mut(MAX_PANELS * STAGES * FACTORS);
        let (results, sums) = scratch.split_at_mut(MAX_PANELS * 2 * RESULT);
        let format = product.matrix.format();
        Self {
            product,
            packed,
            tile,
            x: packed.unit(tile, 0),
            segments: SUPERBLOCK / packed.layout().segment(),
            offsets: matches!(format, Format::Grouped { offset: true, .. }),
            signed: zero_point_log2(format).is_some(),
            weights,
            factors,
            results,
            sums,
        }
    }

    /// Computes and stores everything.
    ///
    /// # Safety
    /// AMX, AVX-512 VNNI and VBMI are there. As for [`Product::run`]; the product's rows are completely packed in
    /// `tile`, in pairs.
    pub(crate) unsafe fn run<C: Code>(&mut self, code: C, gathered: &mut [f32]) {
        let (tile_rows, product) = (self.packed.tile_rows(), self.product);
        // SAFETY: this function's contract; a task configures tiles only here, and panels are the product's.
        unsafe {
            let _configured = Configured::bytes((POWERS * tile_rows).min(LANES), STEP);
            with_unpack_words(code, self.signed, self.packed.layout().segment(), |half| {
                for_each_panels(product, together(tile_rows), gathered, |panels| match tile_rows {
                    2 => self.panels::<2>(half, panels),
                    4 => self.panels::<4>(half, panels),
                    _ => self.panels::<8>(half, panels),
                });
            });
        }
    }

    fn source(&self, panel: &Panel) -> PanelSource {
        let (format, [codes, scales, offsets]) = (self.product.matrix.format(), panel.planes);
        let [len, prefetch_bytes, _] = self.product.matrix.panel(0).map(<[u8]>::len);
        let together = together(self.packed.tile_rows());
        let levels =
            NestedScales::new(format, [scales, offsets]).with_prefetch(together * prefetch_bytes);
        let segment = self.packed.layout().segment();
        // Behind a panel lie the other panels of this call; its own next codes come behind them all.
        let jump = (together - 1) * len;
        PanelSource {
            codes,
            len,
            prefetch_bytes: PREFETCH_BYTES,
            jump,
            levels,
            zero_point_log2: zero_point_log2(format),
            segment,
        }
    }

    /// Where a step's weights of panel `i` are.
    #[inline(always)]
    fn weights(&mut self, step: usize, i: usize) -> *mut u8 {
        let at = (step % STAGES * MAX_PANELS + i) * WEIGHTS;
        self.weights.as_mut_ptr().wrapping_add(at).cast()
    }

    /// Where a superblock's factors of panel `i` are.
    #[inline(always)]
    fn factors(&mut self, block: usize, i: usize) -> *mut f32 {
        let at = (block % STAGES * MAX_PANELS + i) * FACTORS;
        self.factors.as_mut_ptr().wrapping_add(at)
    }

    /// Where the results of panel `i` are.
    #[inline(always)]
    fn results(&mut self, i: usize) -> *mut u8 {
        self.results.as_mut_ptr().wrapping_add(i * 2 * RESULT).cast()
    }

    /// All rows with up to [`together`] panels.
    ///
    /// # Safety
    /// As for [`KQuantSmallBatch::run`]; AMX tiles are configured for `TILE_ROWS` rows; `panels` are the product's, at
    /// most [`together`] of them, and not empty.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const TILE_ROWS: usize>(&mut self, half: &dyn UnpackWords, panels: &[Panel]) {
        let layout = self.packed.layout();
        // With fewer panels the last one is repeated, and its extra results dropped.
        let last = panels.len() - 1;
        let sources: [PanelSource; MAX_PANELS] = from_fn(|i| self.source(&panels[i.min(last)]));
        let steps = layout.blocks() * STEPS;
        // SAFETY: this function's contract. A slot of weights or factors is overwritten only when it was used, and
        // results are stored after those before them were added.
        unsafe {
            for i in 0..together(TILE_ROWS) {
                sources[i].scales(0, self.factors(0, i));
                (0..2).for_each(|segment| half.unpack(&sources[i], segment, self.weights(0, i)));
            }
            clear_sums();
            for step in 0..steps {
                let (block, i, next) = (step / STEPS, step % STEPS, step + 1);
                if i < together(TILE_ROWS) {
                    if block > 0 {
                        self.add::<TILE_ROWS>(i, block - 1);
                    }
                    if block + 1 < layout.blocks() {
                        sources[i].scales(block + 1, self.factors(block + 1, i));
                    }
                }
                let turn = StepPass {
                    half,
                    sources: &sources,
                    weights: self.weights(step, 0),
                    next: (next < steps).then(|| (2 * next, self.weights(next, 0))),
                };
                turn.all::<TILE_ROWS>(self.x.0.wrapping_add(step * step_bytes::<TILE_ROWS>()));
                if i == STEPS - 1 {
                    keep::<TILE_ROWS>(self.results(0));
                    clear_sums();
                }
            }
            for (i, panel) in panels.iter().enumerate() {
                self.add::<TILE_ROWS>(i, layout.blocks() - 1);
                let rows = panels::rows_of(
                    self.product,
                    RowTile { index: self.tile, first: self.tile, rows: TILE_ROWS },
                );
                let sums = &self.sums[i * SUMS..][..SUMS];
                store(self.product, panel, rows, (sums, self.packed.row_scales(self.tile)));
            }
        }
    }

    /// Adds the results of a superblock and panel `i` to their sums.
    ///
    /// # Safety
    /// As for [`KQuantSmallBatch::panels`]; the panel, step and superblock are the call's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add<const TILE_ROWS: usize>(&mut self, i: usize, block: usize) {
        let x = self.x.0.wrapping_add(block * STEPS * step_bytes::<TILE_ROWS>());
        let words = self.x.1.wrapping_add(block * self.segments * AUX_WORDS * TILE_ROWS);
        let block = SuperblockProduct {
            x: (x, words),
            weights: std::ptr::null(),
            factors: self.factors(block, i),
            segments: if self.offsets { self.segments } else { 0 },
            raised: self.signed,
            sums: self.sums[i * SUMS..][..SUMS].as_mut_ptr(),
            fresh: block == 0,
        };
        let results = self.results(i);
        // SAFETY: loads are of this step's activations and unpacked weights; the next step's slot is free (contract
        // above).
        unsafe {
            match TILE_ROWS {
                8 => (0..8).step_by(4).for_each(|row| block.add::<TILE_ROWS, 4>(results, row)),
                _ => block.add::<TILE_ROWS, TILE_ROWS>(results, 0),
            }
        }
    }
}

/// A step of all panels.
struct StepPass<'a> {
    half: &'a dyn UnpackWords,
    sources: &'a [PanelSource; MAX_PANELS],
    weights: *const u8,
    /// The first chunk of the next step and where its weights go, if there is one.
    next: Option<(usize, *mut u8)>,
}

impl StepPass<'_> {
    /// Multiplies the step at `x` and unpacks the next.
    ///
    /// # Safety
    /// As for [`KQuantSmallBatch::panels`]; the panel, step and superblock are the call's.
    #[inline(always)]
    unsafe fn all<const TILE_ROWS: usize>(&self, x: *const u8) {
        let each = POWERS * TILE_ROWS * STEP;
        // SAFETY: the chunk is one of the panel's, and the slot has room for two tiles (contract above).
        unsafe {
            if TILE_ROWS == 8 {
                for odd in 0..2 {
                    move_tile!(load 6, x.wrapping_add(odd * each));
                    move_tile!(load 7, x.wrapping_add(odd * each + TILE));
                    products!(self.at(0, odd), 4, (0, 6), (1, 7));
                    self.unpack(0, odd);
                    products!(self.at(1, odd), 5, (2, 6), (3, 7));
                    self.unpack(1, odd);
                }
                return;
            }
            move_tile!(load 6, x);
            products!(self.at(0, 0), 4, (0, 6));
            self.unpack(0, 0);
            products!(self.at(1, 0), 5, (1, 6));
            self.unpack(1, 0);
            products!(self.at(2, 0), 4, (2, 6));
            self.unpack(2, 0);
            products!(self.at(3, 0), 5, (3, 6));
            self.unpack(3, 0);
            move_tile!(load 7, x.wrapping_add(each));
            products!(self.at(0, 1), 4, (0, 7));
            self.unpack(0, 1);
            products!(self.at(1, 1), 5, (1, 7));
            self.unpack(1, 1);
            products!(self.at(2, 1), 4, (2, 7));
            self.unpack(2, 1);
            products!(self.at(3, 1), 5, (3, 7));
            self.unpack(3, 1);
        }
    }

    /// Words of even or of odd columns of panel `i`.
    #[inline(always)]
    fn at(&self, i: usize, odd: usize) -> *const u8 {
        self.weights.wrapping_add((2 * i + odd) * TILE)
    }

    /// Unpacks a half of the next step of panel `i`.
    ///
    /// # Safety
    /// As for [`KQuantSmallBatch::panels`]; the panel, step and superblock are the call's.
    #[inline(always)]
    unsafe fn unpack(&self, i: usize, half: usize) {
        if let Some((chunk, to)) = self.next {
            let to = to.wrapping_add(2 * i * TILE);
            // SAFETY: each store is a tile within the results (contract above).
            unsafe { self.half.unpack(&self.sources[i], chunk + half, to) };
        }
    }
}

/// Stores the sums of all panels.
///
/// # Safety
/// Tiles are configured for `TILE_ROWS` rows; `to` is writable for the results of all panels.
#[inline(always)]
unsafe fn keep<const TILE_ROWS: usize>(to: *mut u8) {
    // A panel's two tiles are adjacent; with one tile the room of the second stays free.
    let each = if TILE_ROWS == 8 { TILE } else { 2 * TILE };
    // SAFETY: each store is a tile within the results (contract above).
    unsafe {
        move_tile!(store 0, to);
        move_tile!(store 1, to.wrapping_add(each));
        move_tile!(store 2, to.wrapping_add(2 * each));
        move_tile!(store 3, to.wrapping_add(3 * each));
    }
}
