//! A few rows with superblocks of panels, by tiles of words.
//!
//! # Layout
//! Pairs of digits, one for each power of 256 and row, are lines of a tile, or of two for eight rows, and meet words of even and then
//! of odd columns. That costs more products than bytes apart would, which few rows can pay, and saves taking words apart,
//! which they cannot share. Results are `[power][row][channel]`, the highest power first. Tiles 0 to 3 take the sums of up to
//! four panels, or of two for eight rows; 4 and 5 are weights, 6 and 7 activations, which all panels share.
//!
//! # Shape
//! While tiles multiply a step, vectors unpack the next step of the same panel, so a whole round of panels lies between what
//! was stored and the load of it. The results of a superblock are added during the next.

use super::super::super::amx::tile::{Configured, clear_sums, move_tile};
use super::super::super::isa::LANES;
use super::super::super::product::Product;
use super::super::super::tiled::Tiled;
use super::super::super::walk::{self, Panel, TOGETHER, walk};
use super::super::by_tiles::{SUMS, store};
use super::super::code::{Code, excess};
use super::super::pack::{Packed, WORDS};
use super::tiles::{Block, POWERS};
use super::unpack::{FACTORS, Half, Source, TILE, with_half};
use super::wide::STEPS;
use super::{Levels, STEP};
use forerun_base::{Format, SUPERBLOCK};
use std::arch::asm;
use std::array::from_fn;

/// f32 of the results of a panel.
const RESULT: usize = SUMS;
/// f32 of a step's weights of a panel.
const WEIGHTS: usize = 2 * TILE / 4;
/// Steps and superblocks that are near at a time: the one that is multiplied and the next.
const STAGES: usize = 2;

/// How far ahead of its use a code is asked for. Panels lie whole pages apart, so much more of each would not find room in the
/// first-level cache: 4096 takes half as long again.
const AHEAD: usize = 1024;

/// f32 of scratch.
pub(super) const SCRATCH: usize = TOGETHER * (STAGES * (WEIGHTS + FACTORS) + 2 * RESULT + 2 * SUMS);

/// Bytes of a step of activations.
const fn step_bytes<const CLASS: usize>() -> usize {
    2 * POWERS * CLASS * STEP
}

/// Panels that are multiplied together with `class` rows.
const fn together(class: usize) -> usize {
    if class > 4 { TOGETHER / 2 } else { TOGETHER }
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
pub(in super::super) struct Words<'a> {
    product: &'a Product<'a, Tiled>,
    packed: Packed<'a>,
    tile: usize,
    /// Activations and their words.
    x: (*const u8, *const f32),
    /// Sums in a superblock, for which there are words.
    parts: usize,
    /// Whether there are offsets.
    offsets: bool,
    signed: bool,
    weights: &'a mut [f32],
    factors: &'a mut [f32],
    results: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<'a> Words<'a> {
    /// With [`SCRATCH`] of scratch.
    pub(in super::super) fn new(
        product: &'a Product<'a, Tiled>,
        packed: Packed<'a>,
        tile: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        let (weights, scratch) = scratch.split_at_mut(TOGETHER * STAGES * WEIGHTS);
        let (factors, scratch) = scratch.split_at_mut(TOGETHER * STAGES * FACTORS);
        let (results, sums) = scratch.split_at_mut(TOGETHER * 2 * RESULT);
        let format = product.matrix.format();
        Self {
            product,
            packed,
            tile,
            x: packed.unit(tile, 0),
            parts: SUPERBLOCK / packed.recipe().part(),
            offsets: matches!(format, Format::Grouped { offset: true, .. }),
            signed: excess(format).is_some(),
            weights,
            factors,
            results,
            sums,
        }
    }

    /// Computes and stores everything.
    ///
    /// # Safety
    /// The instructions of [`super::super::Units`] and tiles; as for [`Product::run`]; the rows are packed as pairs.
    pub(in super::super) unsafe fn run<C: Code>(&mut self, code: C, room: &mut [f32]) {
        let (class, product) = (self.packed.class(), self.product);
        // SAFETY: the caller's promise; tasks hold tiles only here.
        unsafe {
            let _configured = Configured::bytes((POWERS * class).min(LANES), STEP);
            with_half(code, self.signed, self.packed.recipe().part(), |half| {
                walk(product, together(class), room, |panels| match class {
                    2 => self.panels::<2>(half, panels),
                    4 => self.panels::<4>(half, panels),
                    _ => self.panels::<8>(half, panels),
                });
            });
        }
    }

    fn source(&self, panel: &Panel) -> Source {
        let (format, [codes, scales, offsets]) = (self.product.matrix.format(), panel.planes);
        let [len, ahead, _] = self.product.matrix.panel(0).map(<[u8]>::len);
        let together = together(self.packed.class());
        let levels = Levels::new(format, [scales, offsets]).asking(together * ahead);
        let part = self.packed.recipe().part();
        // What follows a panel is another of these; the next time it is the panel's turn comes behind them all.
        let jump = (together - 1) * len;
        Source { codes, len, ahead: AHEAD, jump, levels, excess: excess(format), part }
    }

    /// Where a step's weights of panel `i` are.
    #[inline(always)]
    fn weights(&mut self, step: usize, i: usize) -> *mut u8 {
        let at = (step % STAGES * TOGETHER + i) * WEIGHTS;
        self.weights.as_mut_ptr().wrapping_add(at).cast()
    }

    /// Where a superblock's factors of panel `i` are.
    #[inline(always)]
    fn factors(&mut self, block: usize, i: usize) -> *mut f32 {
        let at = (block % STAGES * TOGETHER + i) * FACTORS;
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
    /// As for [`Words::run`]; tiles are configured for the class.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn panels<const CLASS: usize>(&mut self, half: &dyn Half, panels: &[Panel]) {
        let recipe = self.packed.recipe();
        // Where there are fewer panels the last one is multiplied again, for nobody.
        let last = panels.len() - 1;
        let sources: [Source; TOGETHER] = from_fn(|i| self.source(&panels[i.min(last)]));
        let steps = recipe.blocks() * STEPS;
        // SAFETY: the caller's promise. A place of weights or factors is written again only when what was in it is used, and results
        // are stored after those before them were added.
        unsafe {
            for i in 0..together(CLASS) {
                sources[i].scales(0, self.factors(0, i));
                (0..2).for_each(|part| half.unpack(&sources[i], part, self.weights(0, i)));
            }
            clear_sums();
            for step in 0..steps {
                let (block, i, next) = (step / STEPS, step % STEPS, step + 1);
                if i < together(CLASS) {
                    if block > 0 {
                        self.add::<CLASS>(i, block - 1);
                    }
                    if block + 1 < recipe.blocks() {
                        sources[i].scales(block + 1, self.factors(block + 1, i));
                    }
                }
                let turn = Turn {
                    half,
                    sources: &sources,
                    weights: self.weights(step, 0),
                    next: (next < steps).then(|| (2 * next, self.weights(next, 0))),
                };
                turn.all::<CLASS>(self.x.0.wrapping_add(step * step_bytes::<CLASS>()));
                if i == STEPS - 1 {
                    keep::<CLASS>(self.results(0));
                    clear_sums();
                }
            }
            for (i, panel) in panels.iter().enumerate() {
                self.add::<CLASS>(i, recipe.blocks() - 1);
                let rows = walk::rows_of(self.product, [self.tile, self.tile, CLASS]);
                let sums = &self.sums[i * SUMS..][..SUMS];
                store(self.product, panel, rows, (sums, self.packed.worth(self.tile)));
            }
        }
    }

    /// Adds the results of a superblock and panel `i` to their sums.
    ///
    /// # Safety
    /// As for [`Words::panels`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add<const CLASS: usize>(&mut self, i: usize, block: usize) {
        let x = self.x.0.wrapping_add(block * STEPS * step_bytes::<CLASS>());
        let words = self.x.1.wrapping_add(block * self.parts * WORDS * CLASS);
        let block = Block {
            x: (x, words),
            weights: std::ptr::null(),
            factors: self.factors(block, i),
            parts: if self.offsets { self.parts } else { 0 },
            raised: self.signed,
            sums: self.sums[i * SUMS..][..SUMS].as_mut_ptr(),
            fresh: block == 0,
        };
        let results = self.results(i);
        // SAFETY: the caller's promise.
        unsafe {
            match CLASS {
                8 => (0..8).step_by(4).for_each(|row| block.add::<CLASS, 4>(results, row)),
                _ => block.add::<CLASS, CLASS>(results, 0),
            }
        }
    }
}

/// A step of all panels.
struct Turn<'a> {
    half: &'a dyn Half,
    sources: &'a [Source; TOGETHER],
    weights: *const u8,
    /// The first chunk of the next step and room for its weights, where there is one.
    next: Option<(usize, *mut u8)>,
}

impl Turn<'_> {
    /// Multiplies the step at `x` and unpacks the next.
    ///
    /// # Safety
    /// As for [`Words::panels`].
    #[inline(always)]
    unsafe fn all<const CLASS: usize>(&self, x: *const u8) {
        let each = POWERS * CLASS * STEP;
        // SAFETY: the caller's promise.
        unsafe {
            if CLASS == 8 {
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
    /// As for [`Words::panels`].
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
unsafe fn keep<const CLASS: usize>(to: *mut u8) {
    // Two tiles of a panel follow each other; one leaves the room of the second free.
    let each = if CLASS == 8 { TILE } else { 2 * TILE };
    // SAFETY: the caller's promise.
    unsafe {
        move_tile!(store 0, to);
        move_tile!(store 1, to.wrapping_add(each));
        move_tile!(store 2, to.wrapping_add(2 * each));
        move_tile!(store 3, to.wrapping_add(3 * each));
    }
}
