//! A few rows with superblocks of panels, by tiles of words.
//!
//! # Layout
//! Pairs of digits, one for each power of 256 and row, are lines of a tile, or of two for eight rows, and meet words of
//! even and then of odd columns. That costs more products than bytes apart would, which few rows can pay, and saves
//! taking words apart, which they cannot share. Results are `[power][row][channel]`, the highest power first. Tiles 0
//! to 3 take the sums of up to four panels, or of two for eight rows; 4 and 5 are weights, 6 and 7 activations, which
//! all panels share.
//!
//! # Shape
//! While tiles multiply a step, vectors unpack the next step of the same panel, so a whole round of panels lies between
//! what was stored and the load of it. The results of a superblock are added during the next.

use super::pipeline::{POWERS, SuperblockProduct};
use super::scales::STEPS;
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
/// Steps and superblocks that are near at a time: the one that is multiplied and the next.
const STAGES: usize = 2;

/// How far ahead of its use a code is asked for. Panels lie whole pages apart, so much more of each would not find room
/// in the first-level cache: 4096 takes half as long again.
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

/// Weights to tile `$w`, and their products with each `$x` to `$sum`.
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
    /// Activations and their words.
    x: (*const u8, *const f32),
    /// Sums in a superblock, for which there are words.
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
    /// The instructions of [`crate::gemm::int8::Int8Gemm`] and tiles; as for [`Product::run`]; the rows are packed as
    /// pairs.
    pub(crate) unsafe fn run<C: Code>(&mut self, code: C, gathered: &mut [f32]) {
        let (tile_rows, product) = (self.packed.tile_rows(), self.product);
        // SAFETY: the caller's promise; tasks hold tiles only here.
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
        // What follows a panel is another of these; the next time it is the panel's turn comes behind them all.
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
    /// As for [`KQuantSmallBatch::run`]; tiles are configured for the class.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const TILE_ROWS: usize>(&mut self, half: &dyn UnpackWords, panels: &[Panel]) {
        let layout = self.packed.layout();
        // Where there are fewer panels the last one is multiplied again, for nobody.
        let last = panels.len() - 1;
        let sources: [PanelSource; MAX_PANELS] = from_fn(|i| self.source(&panels[i.min(last)]));
        let steps = layout.blocks() * STEPS;
        // SAFETY: the caller's promise. A place of weights or factors is written again only when what was in it is
        // used, and results are stored after those before them were added.
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
    /// As for [`KQuantSmallBatch::panels`].
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
        // SAFETY: the caller's promise.
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
    /// The first chunk of the next step and room for its weights, where there is one.
    next: Option<(usize, *mut u8)>,
}

impl StepPass<'_> {
    /// Multiplies the step at `x` and unpacks the next.
    ///
    /// # Safety
    /// As for [`KQuantSmallBatch::panels`].
    #[inline(always)]
    unsafe fn all<const TILE_ROWS: usize>(&self, x: *const u8) {
        let each = POWERS * TILE_ROWS * STEP;
        // SAFETY: the caller's promise.
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
    /// As for [`KQuantSmallBatch::panels`].
    #[inline(always)]
    unsafe fn unpack(&self, i: usize, half: usize) {
        if let Some((chunk, to)) = self.next {
            let to = to.wrapping_add(2 * i * TILE);
            // SAFETY: the caller's promise.
            unsafe { self.half.unpack(&self.sources[i], chunk + half, to) };
        }
    }
}

/// Stores the sums of all panels.
///
/// # Safety
/// Tiles are configured for the class; room for the results at `to`.
#[inline(always)]
unsafe fn keep<const TILE_ROWS: usize>(to: *mut u8) {
    // Two tiles of a panel follow each other; one leaves the room of the second free.
    let each = if TILE_ROWS == 8 { TILE } else { 2 * TILE };
    // SAFETY: the caller's promise.
    unsafe {
        move_tile!(store 0, to);
        move_tile!(store 1, to.wrapping_add(each));
        move_tile!(store 2, to.wrapping_add(2 * each));
        move_tile!(store 3, to.wrapping_add(3 * each));
    }
}
