//! A tile of sixteen rows with superblocks of panels.
//!
//! # Layout
//! Each limb plane is a tile and meets tiles of high and of low bytes of the weights; products of equal power of 256
//! share an accumulator tile, and results are `[power][row][channel]`, the highest power first:
//!
//! ```text
//!             w high (tile 4)   w low (tile 5)
//! limb a      power 3 (tile 0)  power 2 (tile 1)
//! limb b      power 2 (tile 1)  power 1 (tile 2)
//! limb c      power 1 (tile 2)  power 0 (tile 3)
//! ```
//!
//! Tiles 6 and 7 are activations.

use super::unpack::STEPS;
use super::unpack::TILE;
use crate::gemm::amx::tile::{Configured, clear_sums, move_tile};
use crate::gemm::int8::code::LIMBS;
use crate::gemm::int8::isa::Avx512Vnni;
use crate::gemm::int8::k_quant::{STEP, add_total, carry};
use crate::simd::isa::LANES;
use std::arch::asm;
use std::arch::x86_64::*;

/// Powers of 256 in the product of three limbs and two bytes.
pub(crate) const POWERS: usize = 4;
/// f32 of the results of a superblock.
const RESULT: usize = POWERS * LANES * LANES;
/// f32 of the results of two.
pub(crate) const RESULTS: usize = 2 * RESULT;

/// Configures the AMX tiles.
///
/// # Safety
/// As for [`Configured::new`].
pub(crate) unsafe fn configure() -> Configured {
    // SAFETY: AMX is there and no other `Configured` lives here (contract above); there are 16 rows, and a step is 64
    // bytes.
    unsafe { Configured::bytes(LANES, STEP) }
}

/// Adds the results of `$rows` of `$tile_rows` rows of `$block`, from `$row` on, to their sums. A macro: a call between
/// products would spill registers.
macro_rules! add_rows {
    ($block:expr, [$tile_rows:expr, $rows:expr, $segments:expr], $results:expr, $row:expr) => {{
        let (block, results, row, simd) = (&$block, $results, $row, Avx512Vnni::new_unchecked());
        let sums = block.sums.add(row * LANES);
        let factor = |i: usize| _mm512_load_ps(block.factors.add(i * LANES));
        let both = [factor(0), factor(1)];
        let mut some = [_mm512_setzero_ps(); $rows];
        for r in 0..$rows {
            if !block.fresh {
                some[r] = _mm512_load_ps(sums.add(r * LANES));
            }
            let mut total = total::<{ $tile_rows }>(results, row + r);
            if block.raised {
                let aux = block.x.1.cast::<i32>().add(row + r);
                let above = |i: usize| _mm512_set1_epi32(*aux.add(i * $tile_rows));
                total[0] = _mm512_sub_epi32(total[0], above(1));
                total[2] = _mm512_sub_epi32(total[2], above(2));
            }
            some[r] = add_total(simd, some[r], carry(simd, total), both);
        }
        for segment in 0..$segments {
            let (offset, aux) =
                (factor(2 + segment), block.x.1.add(segment * 4 * $tile_rows + row));
            for r in 0..$rows {
                some[r] = _mm512_fmadd_ps(_mm512_set1_ps(*aux.add(r)), offset, some[r]);
            }
        }
        for r in 0..$rows {
            _mm512_store_ps(sums.add(r * LANES), some[r]);
        }
    }};
}

/// Loads a lower limb to tile `$x` and adds its products with the weights that are in tiles.
macro_rules! lower_products {
    ($from:expr, $x:literal, [$with_high:literal, $with_low:literal]) => {
        asm!(
            concat!("tileloadd tmm", $x, ", [{from} + {line}]"),
            concat!("tdpbssd tmm", $with_high, ", tmm", $x, ", tmm4"),
            concat!("tdpbsud tmm", $with_low, ", tmm", $x, ", tmm5"),
            from = in(reg) $from, line = in(reg) 64_usize, options(nostack, readonly),
        )
    };
}

/// Operands of a superblock of a panel with a tile of rows: `x` and its aux words, `weights` and `factors` are readable
/// for a superblock, `sums` is writable for a tile, 64-byte aligned, and used by no other thread.
pub(crate) struct SuperblockProduct {
    /// Activations and their aux words, from the superblock's first column on.
    pub(crate) x: (*const u8, *const f32),
    /// Tiles of weights.
    pub(crate) weights: *const u8,
    pub(crate) factors: *const f32,
    /// Segments with an offset each; 0 without offsets.
    pub(crate) segments: usize,
    /// Whether 16-bit words were raised by 2¹⁵, because codes have a zero point.
    pub(crate) raised: bool,
    /// `[row][channel]`.
    pub(crate) sums: *mut f32,
    /// Whether sums start at zero rather than at what is stored.
    pub(crate) fresh: bool,
}

/// Superblocks in flight: while the products of one run, the results of the one before are added, a few rows at a time.
/// A store waits for its product, and a long run of vector instructions would leave AMX idle.
pub(crate) struct SuperblockPipeline {
    results: *mut u8,
    /// Which half of the results the next superblock takes.
    odd: bool,
    before: Option<(SuperblockProduct, *const u8)>,
}

/// No work between products. A function, so that all codes share one instantiation.
pub(crate) fn no_side_work(_step: usize) {}

/// Rows that are added at a time.
const FEW: usize = 2;
/// Pairs of products of a step, after each of which some rows may be added.
const PAIRS: usize = 3;
/// Pairs before the first rows are added: the last stores are still in flight.
const LAG: usize = 3;

impl SuperblockPipeline {
    /// `results` is writable for [`RESULTS`] f32, 64-byte aligned, as long as the pipeline is used.
    pub(crate) fn new(results: *mut f32) -> Self {
        Self { results: results.cast(), odd: false, before: None }
    }

    /// Starts a superblock and adds the results of the one before; after each step `side_work` runs.
    ///
    /// # Safety
    /// AMX, AVX-512 VNNI and VBMI are there, and tiles are configured by [`configure`] (or by the small batch's
    /// configuration). The fields of the block are as documented until the next push or [`SuperblockPipeline::finish`];
    /// all blocks have equally many segments.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn push(&mut self, block: SuperblockProduct, side_work: impl FnMut(usize)) {
        // SAFETY: tiles are configured and the operands of the block and of the one before are as documented (contract
        // above); the constant is the block's number of segments.
        unsafe {
            match block.segments {
                0 => self.superblock::<0>(block, side_work),
                8 => self.superblock::<8>(block, side_work),
                _ => self.superblock::<16>(block, side_work),
            }
        }
    }

    /// As above, for blocks of `SEGMENTS` segments.
    ///
    /// # Safety
    /// As above.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn superblock<const SEGMENTS: usize>(
        &mut self,
        block: SuperblockProduct,
        mut side_work: impl FnMut(usize),
    ) {
        let to = self.results.wrapping_add(if self.odd { RESULT * 4 } else { 0 });
        let before = self.before.as_ref();
        // SAFETY: this function's contract; consecutive superblocks use different halves of the results.
        unsafe {
            macro_rules! pair {
                ($products:expr, $step:ident, $pair:literal) => {
                    $products;
                    let row = (PAIRS * $step + $pair).wrapping_sub(LAG) * FEW;
                    if let Some((before, results)) = before
                        && row < LANES
                    {
                        add_rows!(before, [LANES, FEW, SEGMENTS], *results, row);
                    }
                };
            }
            clear_sums();
            for step in 0..STEPS {
                let x = block.x.0.wrapping_add(step * LIMBS * TILE);
                pair!(high_products(x, block.weights.wrapping_add(step * 2 * TILE)), step, 0);
                pair!(lower_products!(x.wrapping_add(TILE), 7, [1, 2]), step, 1);
                pair!(lower_products!(x.wrapping_add(2 * TILE), 6, [2, 3]), step, 2);
                side_work(step);
            }
            store(to);
        }
        self.odd = !self.odd;
        self.before = Some((block, to));
    }

    /// Adds the results of the last superblock.
    ///
    /// # Safety
    /// As for [`SuperblockPipeline::push`], for the operands named here.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn finish(&mut self) {
        if let Some((before, results)) = self.before.take() {
            for row in (0..LANES).step_by(4) {
                // SAFETY: the block's operands are alive (contract of `push`), and its results are stored.
                unsafe { before.add::<LANES, 4>(results, row) };
            }
        }
    }
}

/// Loads a step's weights and adds its products with the highest limbs.
///
/// # Safety
/// As for [`SuperblockPipeline::push`], for the operands named here.
#[inline(always)]
unsafe fn high_products(x: *const u8, w: *const u8) {
    // SAFETY: the loads are one tile each of the step's activations and weights (contract above).
    unsafe {
        asm!(
            "tileloadd tmm4, [{w} + {line}]",
            "tileloadd tmm6, [{x} + {line}]",
            "tdpbssd tmm0, tmm6, tmm4",
            "tileloadd tmm5, [{second} + {line}]",
            "tdpbsud tmm1, tmm6, tmm5",
            x = in(reg) x, w = in(reg) w, second = in(reg) w.wrapping_add(TILE),
            line = in(reg) 64_usize, options(nostack, readonly),
        );
    }
}

/// Stores the results of a superblock.
///
/// # Safety
/// As for [`SuperblockPipeline::push`], for the operands named here.
#[inline(always)]
unsafe fn store(to: *mut u8) {
    // SAFETY: four tiles of results fit at `to` (contract above).
    unsafe {
        move_tile!(store 0, to);
        move_tile!(store 1, to.wrapping_add(TILE));
        move_tile!(store 2, to.wrapping_add(2 * TILE));
        move_tile!(store 3, to.wrapping_add(3 * TILE));
    }
}

impl SuperblockProduct {
    /// Adds the results of `R` of `TILE_ROWS` rows to their sums.
    ///
    /// # Safety
    /// As for [`SuperblockPipeline::push`], for the operands named here.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn add<const TILE_ROWS: usize, const R: usize>(
        &self,
        results: *const u8,
        row: usize,
    ) {
        // SAFETY: the operands of this block are as documented (contract above); the constant is its number of
        // segments.
        unsafe {
            match self.segments {
                0 => self.add_with::<TILE_ROWS, R, 0>(results, row),
                8 => self.add_with::<TILE_ROWS, R, 8>(results, row),
                _ => self.add_with::<TILE_ROWS, R, 16>(results, row),
            }
        }
    }

    /// As above, for blocks of `SEGMENTS` segments.
    ///
    /// # Safety
    /// As above.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn add_with<const TILE_ROWS: usize, const R: usize, const SEGMENTS: usize>(
        &self,
        results: *const u8,
        row: usize,
    ) {
        // SAFETY: the operands of this block are as documented (contract above); `row + R` is at most `TILE_ROWS`.
        unsafe { add_rows!(self, [TILE_ROWS, R, SEGMENTS], results, row) };
    }
}

/// The exact total of a row, one integer for each limb weight.
///
/// # Safety
/// As for [`SuperblockPipeline::push`], for the operands named here.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn total<const TILE_ROWS: usize>(results: *const u8, row: usize) -> [__m512i; LIMBS] {
    // SAFETY: results hold a line for each power and row (contract above).
    let line = |i: usize| unsafe { _mm512_load_si512(results.add(i * 64).cast()) };
    let [top, high, middle, low] = [0, 1, 2, 3].map(|power| line(power * TILE_ROWS + row));
    // With raised words this may wrap around 32 bits; compensation wraps it back.
    [_mm512_add_epi32(_mm512_slli_epi32::<8>(top), high), middle, low]
}
