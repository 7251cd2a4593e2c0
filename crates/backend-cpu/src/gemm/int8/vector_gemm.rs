//! A task's rows and channels by dot products of bytes, some panels and a few rows at a time.

use super::code::Code;
use super::gemv::{self, Gemv, RowBlock};
use super::isa::ops::Int8Isa;
use super::k_quant;
use super::layout::PackedLimbs;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels::{self, DirectOutput, MAX_PANELS, Panels, RowTile, for_each_panels};
use crate::gemm::product::Product;
use crate::simd::isa::LANES;
use std::array::from_fn;
use std::ops::Range;

/// Bytes of codes that stay in a first-level cache of 32 KiB beside a tile of rows.
const L1_CODE_BYTES: usize = 16 << 10;

/// A product with its activations packed.
pub(crate) struct VectorGemm<'a> {
    pub(crate) product: &'a Product<'a, PackedWeight>,
    pub(crate) packed: PackedLimbs<'a>,
    /// Tiles of the product's rows.
    pub(crate) tiles: Range<usize>,
}

impl VectorGemm<'_> {
    /// Computes and stores everything.
    ///
    /// # Safety
    /// As for [`Product::run`]; the set multiplies codes of type `C`.
    pub(crate) unsafe fn run<S: Int8Isa, C: Code>(&self, simd: S, code: C, gathered: &mut [f32]) {
        let format = self.product.matrix.format();
        // SAFETY: the caller's promise.
        unsafe {
            if self.packed.layout().nested() {
                self.panels(simd, code, k_quant::KQuantGemv::new(format, self.packed), gathered);
            } else {
                self.panels(simd, code, gemv::GroupGemv::new(format, self.packed), gathered);
            }
        }
    }

    /// Every panel with every tile of rows, by `gemv`.
    ///
    /// # Safety
    /// As for [`VectorGemm::run`].
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
            // Rows that are multiplied at once meet all panels in one call; others go on together, with codes that are
            // still near.
            let all_rows = rows_at_once::<S>(rows.len(), gemv.max_rows()) == rows.len();
            let near = (L1_CODE_BYTES / all.strides[0].max(1)).max(1);
            let each = if all_rows { all.count } else { near };
            for start in (0..all.count).step_by(each) {
                // SAFETY: the caller's promise.
                unsafe { self.tiles(simd, code, &mut gemv, &all.some(start, each)) };
            }
            return;
        }
        for_each_panels(self.product, MAX_PANELS, gathered, |panels| {
            for panel in panels {
                // SAFETY: the caller's promise.
                unsafe { self.tiles(simd, code, &mut gemv, &panel.alone()) };
            }
        });
    }

    /// Every tile of rows with `panels`.
    ///
    /// # Safety
    /// As for [`VectorGemm::run`].
    unsafe fn tiles<S: Int8Isa, C: Code>(
        &self,
        simd: S,
        code: C,
        gemv: &mut impl Gemv,
        panels: &Panels,
    ) {
        for tile in self.tiles.clone() {
            gemv.set_tile(self.packed.unit(tile, 0));
            // SAFETY: the caller's promise; the panels and the packed rows are what they are said to be.
            unsafe { self.rows(simd, code, &*gemv, (panels, tile)) };
        }
    }

    /// The rows of a tile with such panels, a few at a time: none that is not there is multiplied.
    ///
    /// # Safety
    /// As for [`VectorGemm::run`]; `gemv` is as it says.
    unsafe fn rows<S: Int8Isa, C: Code>(
        &self,
        simd: S,
        code: C,
        gemv: &impl Gemv,
        (panels, tile): (&Panels, usize),
    ) {
        let rows = panels::rows_of(
            self.product,
            RowTile { index: tile, first: self.tiles.start, rows: self.packed.tile_rows() },
        );
        // SAFETY: the caller's promise: rows were packed before.
        let row_scales = unsafe { self.packed.row_scales(tile) };
        panels.first.prefetch_outputs(simd.f32(), self.product, rows.clone());
        let direct = panels.first.direct_output(self.product, &rows, panels.count);
        let to = TileOutput { panels, direct, rows, row_scales };
        let (mut first, max_rows) = (0, gemv.max_rows());
        while first < to.rows.len() {
            // SAFETY: the caller's promise.
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

    /// `R` rows of a tile, from `first` on, and how many these are.
    ///
    /// # Safety
    /// As above.
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
            // SAFETY: the caller's promise; nobody else looks at these channels of the rows.
            unsafe { gemv.rows(simd, code, &RowBlock { first, panels, to, row_scales, add }) };
            return R;
        }
        let mut sums = [[0.0; LANES]; R];
        let gathered = sums.each_mut().map(|sums| sums.as_mut_ptr());
        // SAFETY: the caller's promise.
        unsafe {
            gemv.rows(
                simd,
                code,
                &RowBlock { first, panels, to: gathered, row_scales, add: false },
            );
            for (r, sums) in sums.iter().enumerate() {
                to.panels.first.put(self.product, to.rows.start + first + r, sums);
            }
        }
        R
    }
}

/// How many of the rows that are left are multiplied at once, where `max_rows` have registers.
#[inline(always)]
fn rows_at_once<S: Int8Isa>(left: usize, max_rows: usize) -> usize {
    match left.min(max_rows) {
        3 if S::ROW_PAIRS => 2,
        gemv => gemv.min(4),
    }
}

/// Where the sums of a tile of rows and some panels go.
struct TileOutput<'a> {
    /// One, or where sums go straight perhaps more.
    panels: &'a Panels,
    /// As [`Panel::vectors`] says.
    direct: Option<DirectOutput>,
    rows: Range<usize>,
    /// What one is worth in each row.
    row_scales: &'a [f32],
}
