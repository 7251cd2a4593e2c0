//! Products by vectors: some panels times a few rows at a time, codes unpacked in registers and used at once.
//!
//! # Shape
//! A kernel call takes one to four rows of a packed tile and as many consecutive panels as it can. For each panel it
//! keeps the rows' accumulators in registers, unpacks every chunk of codes once, multiplies it with the limbs of all
//! its rows, and ends with the row scales:
//!
//! ```text
//!            panel: 16 channels × K codes
//!          ┌────────┬────────┬────────┬──
//!   codes  │ chunk 0│ chunk 1│ chunk 2│ ...      unpacked in registers, 8 vectors of 32 columns
//!          └───┬────┴───┬────┴───┬────┴──
//!   row 0  limbs ──────▶ dots ──▶ sum[0] (f32, 16 channels)  × row scale ──▶ out
//!   row 1  limbs ──────▶ dots ──▶ sum[1]
//! ```
//!
//! What differs between formats is how exact sums become f32: by one scale for each group ([`GroupGemv`]), or by the
//! two levels of a K-quant ([`KQuantGemv`]). Both implement [`Gemv`], and their kernels share one loop over panels
//! ([`GemvKernel`]).

use super::code::Code;
use super::group_gemv::GroupGemv;
use super::isa::{Int8Isa, Int8Kernel};
use super::k_quant::KQuantGemv;
use super::layout::PackedLimbs;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, DirectOutput, MAX_PANELS, Panels, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::isa::{Isa, LANES};
use std::array::from_fn;
use std::ops::Range;
use std::ptr::null;

/// Bytes of codes that stay in a 32 KiB L1 cache beside a tile of rows.
const L1_CODE_BYTES: usize = 16 << 10;

/// A product with its activations packed.
pub(crate) struct VectorGemm<'a> {
    pub(crate) product: &'a Product<'a, PackedWeight>,
    pub(crate) packed: PackedLimbs<'a>,
    /// Tiles of the product's rows.
    pub(crate) tiles: Range<usize>,
}

impl VectorGemm<'_> {
    /// Computes and stores everything. `gathered` is scratch for [`for_each_panels`].
    ///
    /// # Safety
    /// As for [`Product::run`]. `tiles` are tiles of `packed`, completely written, that hold the product's rows; the
    /// weight's codes are of type `C`, which the instruction set multiplies.
    pub(crate) unsafe fn run<S: Int8Isa, C: Code>(&self, simd: S, code: C, gathered: &mut [f32]) {
        let format = self.product.matrix.format();
        // SAFETY: both functions have this contract; the layout says which scales the format has.
        unsafe {
            if self.packed.layout().nested() {
                self.panels(simd, code, KQuantGemv::new(format, self.packed), gathered);
            } else {
                self.panels(simd, code, GroupGemv::new(format, self.packed), gathered);
            }
        }
    }

    /// Every panel with every tile of rows.
    ///
    /// # Safety
    /// As for [`VectorGemm::run`]; `gemv` was made for the packed rows and the weight's format.
    unsafe fn panels<S: Int8Isa, C: Code>(
        &self,
        simd: S,
        code: C,
        mut gemv: impl Gemv,
        gathered: &mut [f32],
    ) {
        let (product, rows) = (self.product, &self.product.rows);
        if let Some(all) = Panels::of(product)
            && all.first.direct_output(product, rows, all.count).is_some()
        {
            // Rows that fit one kernel call meet all panels in it. More rows take as many panels as stay in L1, so that
            // the later rows find the codes there.
            let one_call = rows_at_once::<S>(rows.len(), gemv.max_rows()) == rows.len();
            let cached = (L1_CODE_BYTES / all.strides[0].max(1)).max(1);
            let each = if one_call { all.count } else { cached };
            for start in (0..all.count).step_by(each) {
                // SAFETY: rows are packed, outputs are this thread's and `gemv` fits them (contract above); these
                // panels are some of the product's.
                unsafe { self.tiles(simd, code, &mut gemv, &all.some(start, each)) };
            }
            return;
        }
        for_each_panels(self.product, MAX_PANELS, gathered, |panels| {
            for panel in panels {
                // SAFETY: rows are packed, outputs are this thread's and `gemv` fits them (contract above); the panel
                // is one of the product's, or was gathered from it.
                unsafe { self.tiles(simd, code, &mut gemv, &panel.alone()) };
            }
        });
    }

    /// Every tile of rows with `panels`.
    ///
    /// # Safety
    /// As for [`VectorGemm::panels`]; `panels` are of the product's weight and within its channels.
    unsafe fn tiles<S: Int8Isa, C: Code>(
        &self,
        simd: S,
        code: C,
        gemv: &mut impl Gemv,
        panels: &Panels,
    ) {
        for tile in self.tiles.clone() {
            gemv.set_tile(self.packed.unit(tile, 0));
            // SAFETY: `panels` are within the product's channels (contract above), and `gemv` has just been given this
            // tile.
            unsafe { self.rows(simd, code, &*gemv, (panels, tile)) };
        }
    }

    /// The rows of a tile with `panels`, a few at a time: padding rows are not multiplied.
    ///
    /// # Safety
    /// As for [`VectorGemm::tiles`]; `gemv` was given the tile.
    unsafe fn rows<S: Int8Isa, C: Code>(
        &self,
        simd: S,
        code: C,
        gemv: &impl Gemv,
        (panels, tile): (&Panels, usize),
    ) {
        let at = RowTile { index: tile, first: self.tiles.start, rows: self.packed.tile_rows() };
        let rows = panels::rows_of(self.product, at);
        // SAFETY: the tile is completely written.
        let row_scales = unsafe { self.packed.row_scales(tile) };
        panels.first.prefetch_outputs(simd.f32(), self.product, rows.clone());
        let direct = panels.first.direct_output(self.product, &rows, panels.count);
        let to = TileOutput { panels, direct, rows, row_scales };
        let (mut first, max_rows) = (0, gemv.max_rows());
        while first < to.rows.len() {
            // SAFETY: as this function; `first` and the rows after it are below the tile's number of rows.
            first += unsafe {
                match rows_at_once::<S>(to.rows.len() - first, max_rows) {
                    1 => self.some::<S, C, 1>(simd, code, gemv, &to, first),
                    2 => self.some::<S, C, 2>(simd, code, gemv, &to, first),
                    3 => self.some::<S, C, 3>(simd, code, gemv, &to, first),
                    _ => self.some::<S, C, 4>(simd, code, gemv, &to, first),
                }
            };
        }
    }

    /// `R` rows of a tile, from `first` on; returns `R`.
    ///
    /// # Safety
    /// As for [`VectorGemm::rows`]; `first + R` is at most the tile's number of rows, and `R` at most `max_rows`.
    unsafe fn some<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        gemv: &impl Gemv,
        to: &TileOutput<'_>,
        first: usize,
    ) -> usize {
        let (row_scales, panels) = (from_fn(|r| to.row_scales[first + r]), to.panels);
        if let Some(DirectOutput { first: start, stride, add }) = to.direct {
            let to = from_fn(|r| start.wrapping_add((first + r) * stride));
            // SAFETY: the outputs of these rows and channels belong to this thread and are whole vectors, `stride` f32
            // from row to row, as `direct_output` checked.
            unsafe { gemv.rows(simd, code, &RowBlock { first, panels, to, row_scales, add }) };
            return R;
        }
        let mut sums = [[0.0; LANES]; R];
        let local = sums.each_mut().map(|sums| sums.as_mut_ptr());
        // SAFETY: without direct output there is one panel, for which each row of `sums` has room; then the outputs of
        // these rows and channels belong to this thread.
        unsafe {
            gemv.rows(simd, code, &RowBlock { first, panels, to: local, row_scales, add: false });
            for (r, sums) in sums.iter().enumerate() {
                to.panels.first.put(self.product, to.rows.start + first + r, sums);
            }
        }
        R
    }
}

/// How many of the rows that are left a kernel call takes, where `most` have registers.
#[inline(always)]
fn rows_at_once<S: Int8Isa>(left: usize, most: usize) -> usize {
    match left.min(most) {
        3 if S::ROW_PAIRS => 2,
        rows => rows.min(4),
    }
}

/// Where the sums of a tile of rows and some panels go.
struct TileOutput<'a> {
    /// One panel, or several where output is direct.
    panels: &'a Panels,
    direct: Option<DirectOutput>,
    rows: Range<usize>,
    /// One for each row of the tile.
    row_scales: &'a [f32],
}

/// Multiplies a few rows with panels.
pub(crate) trait Gemv {
    /// Goes on with the tile of rows whose limbs and aux words begin there, see [`PackedLimbs::unit`].
    fn set_tile(&mut self, tile: (*const u8, *const f32));

    /// Most rows of a call whose accumulators fit the registers.
    fn max_rows(&self) -> usize;

    /// Sums of some rows with all channels of some panels.
    ///
    /// # Safety
    /// - The tile given to [`Gemv::set_tile`] is completely packed and has the rows `block.first..block.first + R`.
    /// - Every panel of `block.panels` is readable and of the format that this was made for, with codes of type `C`.
    /// - Each `block.to[r]` is writable for `16 · block.panels.count` f32, initialised if `block.add`, which no other
    ///   thread accesses and which do not overlap.
    unsafe fn rows<S: Int8Isa, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        block: &RowBlock<'_, R>,
    );
}

/// Some rows of a tile and some panels, and where their sums times the row scales go.
pub(crate) struct RowBlock<'a, const R: usize> {
    /// Place of the first row in the tile.
    pub(crate) first: usize,
    pub(crate) panels: &'a Panels,
    /// Sixteen f32 for each panel, one pointer for each row.
    pub(crate) to: [*mut f32; R],
    pub(crate) row_scales: [f32; R],
    /// Whether sums are added to what is there.
    pub(crate) add: bool,
}

impl<const R: usize> RowBlock<'_, R> {
    /// Stores the sums of a panel.
    ///
    /// # Safety
    /// `panel` is below the block's number of panels; the pointers are as [`Gemv::rows`] demands.
    #[inline(always)]
    unsafe fn put<I: Isa>(&self, floats: I, panel: usize, sums: [I::F; R]) {
        for r in 0..R {
            let to = self.to[r].wrapping_add(panel * LANES);
            let sum = floats.mul(sums[r], floats.splat(self.row_scales[r]));
            // SAFETY: sixteen f32 of this panel, which are this thread's (contract above).
            unsafe {
                let sum = if self.add { floats.add(floats.load(to), sum) } else { sum };
                floats.store(to, sum);
            }
        }
    }

    /// Prefetches the output lines of the next panel for writing.
    #[inline(always)]
    fn prefetch_next_output<I: Isa>(&self, floats: I, panel: usize) {
        if panel + 1 < self.panels.count {
            for r in 0..R {
                floats.prefetch_write(self.to[r].wrapping_add((panel + 1) * LANES));
            }
        }
    }
}

/// The tile of rows that a kernel reads.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    pub(crate) limbs: *const u8,
    pub(crate) aux: *const f32,
    /// Rows of the tile.
    pub(crate) tile_rows: usize,
    /// Whether exact sums start from the compensation among the aux words.
    pub(crate) compensated: bool,
}

impl TileRows {
    /// For tiles of the packed rows; of no tile yet.
    pub(crate) fn new(packed: PackedLimbs<'_>) -> Self {
        let compensated = packed.layout().compensation != 0;
        Self { limbs: null(), aux: null(), tile_rows: packed.tile_rows(), compensated }
    }
}

/// The exact sums of `R` rows with one panel, scaled to f32. The code, the rows and everything that does not depend on
/// the panel are part of the value.
pub(crate) trait PanelSums<const R: usize>: Copy {
    /// Goes on with the panel whose codes, scales and offsets begin there.
    fn set_panel(&mut self, planes: [*const u8; 3]);

    /// The rows' sums, without row scales.
    ///
    /// # Safety
    /// The panel and the tile of rows are readable, as [`Gemv::rows`] demands.
    unsafe fn sums<S: Int8Isa>(&self, simd: S) -> [<S::F32 as Isa>::F; R];
}

/// The loop over the panels of a block.
pub(crate) struct GemvKernel<'a, K, const R: usize> {
    pub(crate) sums: K,
    pub(crate) block: &'a RowBlock<'a, R>,
}

impl<K: PanelSums<R>, const R: usize> Int8Kernel for GemvKernel<'_, K, R> {
    #[inline(always)]
    fn run<S: Int8Isa>(mut self, simd: S) {
        let (block, floats) = (self.block, simd.f32());
        for panel in 0..block.panels.count {
            self.sums.set_panel(block.panels.at(panel));
            block.prefetch_next_output(floats, panel);
            // SAFETY: only implementations of `Gemv::rows` run this kernel, whose contract covers panels, rows and
            // outputs; `panel` is below the number of panels.
            unsafe { block.put(floats, panel, self.sums.sums(simd)) };
        }
    }
}

/// Moves all pointers on by so many bytes.
#[inline(always)]
pub(crate) fn advance<const P: usize>(x: &mut [*const u8; P], bytes: usize) {
    for x in x {
        *x = x.wrapping_add(bytes);
    }
}

/// Exact sums start at zero, or where codes have a zero point at its compensation: for limb plane `plane + p` of row
/// `r` that is aux word `1 + plane + p`, row `r`, counted from `aux`.
///
/// # Safety
/// If the tile is compensated, `aux` is readable for `1 + plane + P` aux words of the tile's rows, from a row on that
/// `R − 1` rows follow.
#[inline(always)]
pub(crate) unsafe fn initial_sums<S: Int8Isa, const R: usize, const P: usize>(
    simd: S,
    tile: &TileRows,
    aux: *const f32,
    plane: usize,
) -> [[S::W; P]; R] {
    let mut sums = [[simd.splat(0); P]; R];
    if tile.compensated {
        for r in 0..R {
            for p in 0..P {
                let word = aux.wrapping_add((1 + plane + p) * tile.tile_rows + r).cast::<i32>();
                // SAFETY: that aux word of that row exists (contract above); words are four bytes, aligned.
                sums[r][p] = simd.splat(unsafe { *word });
            }
        }
        simd.interleave(&mut sums);
    }
    sums
}
