//! A task's rows and channels by dot products of bytes, a panel and a few rows at a time.

use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::code::{Code, Scales};
use super::few::{self, Few, Sink};
use super::nested::{self, Levels};
use super::pack::Packed;
use super::whole::Whole;
use std::array::from_fn;
use std::ops::Range;

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
        walk(self.product, TOGETHER, room, |panels| {
            for panel in panels {
                // SAFETY: the caller's promise.
                self.tiles.clone().for_each(|tile| unsafe { self.tile(simd, code, panel, tile) });
            }
        });
    }

    /// A tile of rows with a panel.
    ///
    /// # Safety
    /// As for [`Vectors::run`].
    unsafe fn tile<S: Whole, C: Code>(&self, simd: S, code: C, panel: &Panel, tile: usize) {
        let (recipe, class) = (self.packed.recipe(), self.packed.class());
        let format = self.product.matrix.format();
        let [codes, scales, offsets] = panel.planes;
        let (planes, lifted) = ([scales, offsets], recipe.lift != 0);
        let (digits, words) = self.packed.unit(tile, 0);
        // SAFETY: the caller's promise; the panel and the packed rows are as the fields say.
        unsafe {
            if recipe.nested() {
                let levels = Levels::new(format, planes);
                let (part, blocks) = (recipe.part(), recipe.blocks());
                let rounded = recipe.rounded;
                let at = nested::Panel {
                    codes,
                    levels,
                    lifted,
                    rounded,
                    digits,
                    words,
                    class,
                    part,
                    blocks,
                };
                self.rows(simd, code, &at, (panel, tile));
            } else {
                let (unit, units, slab) = (recipe.unit(), recipe.units(), recipe.slab());
                let scales = Scales::new(format, planes, unit);
                let planes_of = recipe.planes(class);
                let at = few::Panel {
                    codes,
                    scales,
                    lifted,
                    planes: planes_of,
                    digits,
                    words,
                    class,
                    unit,
                    units,
                    slab,
                };
                self.rows(simd, code, &at, (panel, tile));
            }
        }
    }

    /// The rows of a tile with a panel, a few at a time: none that is not there is multiplied.
    ///
    /// # Safety
    /// As for [`Vectors::run`]; `at` is as it says.
    unsafe fn rows<S: Whole, C: Code>(
        &self,
        simd: S,
        code: C,
        at: &impl Few,
        (panel, tile): (&Panel, usize),
    ) {
        let rows = walk::rows_of(self.product, [tile, self.tiles.start, self.packed.class()]);
        // SAFETY: the caller's promise: rows were packed before.
        let worth = unsafe { self.packed.worth(tile) };
        panel.expect(simd.floats(), self.product, rows.clone());
        let to = To { panel, straight: panel.vectors(self.product, &rows), rows, worth };
        let (mut first, most) = (0, at.most());
        while first < to.rows.len() {
            let left = most.min(to.rows.len() - first);
            // SAFETY: the caller's promise.
            first += unsafe {
                match left {
                    1 => self.some::<S, C, 1>(simd, code, at, &to, first),
                    3 if !S::PAIRS => self.some::<S, C, 3>(simd, code, at, &to, first),
                    2 | 3 => self.some::<S, C, 2>(simd, code, at, &to, first),
                    _ => self.some::<S, C, 4>(simd, code, at, &to, first),
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
        at: &impl Few,
        to: &To<'_>,
        first: usize,
    ) -> usize {
        let worth = from_fn(|r| to.worth[first + r]);
        if let Some((start, stride, add)) = to.straight {
            let to = from_fn(|r| start.wrapping_add((first + r) * stride));
            // SAFETY: the caller's promise; nobody else looks at these channels of the rows.
            unsafe { at.rows(simd, code, first, &Sink { to, worth, add }) };
            return R;
        }
        let mut sums = [[0.0; LANES]; R];
        let sink = Sink { to: sums.each_mut().map(|sums| sums.as_mut_ptr()), worth, add: false };
        // SAFETY: the caller's promise.
        unsafe {
            at.rows(simd, code, first, &sink);
            for (r, sums) in sums.iter().enumerate() {
                to.panel.put(self.product, to.rows.start + first + r, sums);
            }
        }
        R
    }
}

/// Where the sums of a tile of rows and a panel go.
struct To<'a> {
    panel: &'a Panel,
    /// As [`Panel::vectors`] says.
    straight: Option<(*mut f32, usize, bool)>,
    rows: Range<usize>,
    /// What one is worth in each row.
    worth: &'a [f32],
}
