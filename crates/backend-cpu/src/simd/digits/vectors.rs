//! A task's rows and channels by dot products of bytes, some panels and a few rows at a time.

use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panels, TOGETHER, walk};
use super::code::Code;
use super::few::{self, Block, Few};
use super::nested;
use super::pack::Packed;
use super::whole::Whole;
use std::array::from_fn;
use std::ops::Range;

/// Bytes of codes that stay in a first-level cache of 32 KiB beside a tile of rows.
const NEAR: usize = 16 << 10;

/// A product with its activations packed.
pub(super) struct Vectors<'a> {
    pub(super) product: &'a Product<'a, Tiled>,
    pub(super) packed: Packed<'a>,
    /// Tiles of the product's rows.
    pub(super) tiles: Range<usize>,
}

impl Vectors<'_> {
    /// Computes and stores everything.
    ///
    /// # Safety
    /// As for [`Product::run`]; the set multiplies codes of type `C`.
    pub(super) unsafe fn run<S: Whole, C: Code>(&self, simd: S, code: C, room: &mut [f32]) {
        let format = self.product.matrix.format();
        // SAFETY: the caller's promise.
        unsafe {
            if self.packed.recipe().nested() {
                self.panels(simd, code, nested::Panel::new(format, self.packed), room);
            } else {
                self.panels(simd, code, few::Panel::new(format, self.packed), room);
            }
        }
    }

    /// Every panel with every tile of rows, by `few`.
    ///
    /// # Safety
    /// As for [`Vectors::run`].
    unsafe fn panels<S: Whole, C: Code>(
        &self,
        simd: S,
        code: C,
        mut few: impl Few,
        room: &mut [f32],
    ) {
        let (product, rows) = (self.product, &self.product.rows);
        if let Some(all) = Panels::of(product)
            && all.first.vectors(product, rows, all.count).is_some()
        {
            // Rows that are multiplied at once meet all panels in one call; others go on together, with codes that are still near.
            let all_rows = at_once::<S>(rows.len(), few.most()) == rows.len();
            let near = (NEAR / all.strides[0].max(1)).max(1);
            let each = if all_rows { all.count } else { near };
            for start in (0..all.count).step_by(each) {
                // SAFETY: the caller's promise.
                unsafe { self.tiles(simd, code, &mut few, &all.some(start, each)) };
            }
            return;
        }
        walk(self.product, TOGETHER, room, |panels| {
            for panel in panels {
                // SAFETY: the caller's promise.
                unsafe { self.tiles(simd, code, &mut few, &panel.alone()) };
            }
        });
    }

    /// Every tile of rows with `panels`.
    ///
    /// # Safety
    /// As for [`Vectors::run`].
    unsafe fn tiles<S: Whole, C: Code>(
        &self,
        simd: S,
        code: C,
        few: &mut impl Few,
        panels: &Panels,
    ) {
        for tile in self.tiles.clone() {
            few.take(self.packed.unit(tile, 0));
            // SAFETY: the caller's promise; the panels and the packed rows are what they are said to be.
            unsafe { self.rows(simd, code, &*few, (panels, tile)) };
        }
    }

    /// The rows of a tile with such panels, a few at a time: none that is not there is multiplied.
    ///
    /// # Safety
    /// As for [`Vectors::run`]; `few` is as it says.
    unsafe fn rows<S: Whole, C: Code>(
        &self,
        simd: S,
        code: C,
        few: &impl Few,
        (panels, tile): (&Panels, usize),
    ) {
        let rows = walk::rows_of(self.product, [tile, self.tiles.start, self.packed.class()]);
        // SAFETY: the caller's promise: rows were packed before.
        let worth = unsafe { self.packed.worth(tile) };
        panels.first.expect(simd.floats(), self.product, rows.clone());
        let straight = panels.first.vectors(self.product, &rows, panels.count);
        let to = To { panels, straight, rows, worth };
        let (mut first, most) = (0, few.most());
        while first < to.rows.len() {
            // SAFETY: the caller's promise.
            first += unsafe {
                match at_once::<S>(to.rows.len() - first, most) {
                    1 => self.some::<S, C, 1>(simd, code, few, &to, first),
                    2 => self.some::<S, C, 2>(simd, code, few, &to, first),
                    3 => self.some::<S, C, 3>(simd, code, few, &to, first),
                    _ => self.some::<S, C, 4>(simd, code, few, &to, first),
                }
            };
        }
    }

    /// `R` rows of a tile, from `first` on, and how many these are.
    ///
    /// # Safety
    /// As above.
    unsafe fn some<S: Whole, C: Code, const R: usize>(
        &self,
        simd: S,
        code: C,
        few: &impl Few,
        to: &To<'_>,
        first: usize,
    ) -> usize {
        let (worth, panels) = (from_fn(|r| to.worth[first + r]), to.panels);
        if let Some((start, stride, add)) = to.straight {
            let to = from_fn(|r| start.wrapping_add((first + r) * stride));
            // SAFETY: the caller's promise; nobody else looks at these channels of the rows.
            unsafe { few.rows(simd, code, &Block { first, panels, to, worth, add }) };
            return R;
        }
        let mut sums = [[0.0; LANES]; R];
        let room = sums.each_mut().map(|sums| sums.as_mut_ptr());
        // SAFETY: the caller's promise.
        unsafe {
            few.rows(simd, code, &Block { first, panels, to: room, worth, add: false });
            for (r, sums) in sums.iter().enumerate() {
                to.panels.first.put(self.product, to.rows.start + first + r, sums);
            }
        }
        R
    }
}

/// How many of the rows that are left are multiplied at once, where `most` have registers.
#[inline(always)]
fn at_once<S: Whole>(left: usize, most: usize) -> usize {
    match left.min(most) {
        3 if S::PAIRS => 2,
        few => few.min(4),
    }
}

/// Where the sums of a tile of rows and some panels go.
struct To<'a> {
    /// One, or where sums go straight perhaps more.
    panels: &'a Panels,
    /// As [`Panel::vectors`] says.
    straight: Option<(*mut f32, usize, bool)>,
    rows: Range<usize>,
    /// What one is worth in each row.
    worth: &'a [f32],
}
