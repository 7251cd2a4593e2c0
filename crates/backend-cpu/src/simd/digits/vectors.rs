//! A task's rows and channels by dot products of bytes, a panel and a few rows at a time.

use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::code::{Code, Scales, excess};
use super::half::Half;
use super::nested::{self, Levels};
use super::pack::{CHUNK, Packed};
use super::vnni::{self, Few};
use std::ops::Range;

/// Most rows at a time.
const MOST: usize = 4;

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
    /// The instructions of [`super::Units`]; as for [`Product::run`].
    pub(super) unsafe fn run<C: Code>(&self, code: C, room: &mut [f32]) {
        walk(self.product, TOGETHER, room, |panels| {
            for panel in panels {
                // SAFETY: the caller's promise.
                self.tiles.clone().for_each(|tile| unsafe { self.tile(code, panel, tile) });
            }
        });
    }

    /// A tile of rows with a panel.
    ///
    /// # Safety
    /// As for [`Vectors::run`].
    unsafe fn tile<C: Code>(&self, code: C, panel: &Panel, tile: usize) {
        let (recipe, class) = (self.packed.recipe(), self.packed.class());
        let format = self.product.matrix.format();
        let [codes, scales, offsets] = panel.planes;
        let (planes, raised) = ([scales, offsets], excess(format).is_some());
        let (digits, words) = self.packed.unit(tile, 0);
        // SAFETY: the caller's promise; the panel and the packed rows are as the fields say.
        unsafe {
            if recipe.nested() {
                let levels = Levels::new(format, planes);
                let (part, blocks) = (recipe.part(), recipe.blocks());
                let at =
                    nested::Vectors { codes, levels, raised, digits, words, class, part, blocks };
                self.by_width(code, at, (panel, tile), MOST);
            } else {
                let (unit, units, slab) = (recipe.unit(), recipe.units(), recipe.slab());
                let scales = Scales::new(format, planes, unit);
                let long = recipe.long;
                let at = vnni::Panel {
                    codes,
                    scales,
                    raised,
                    long,
                    digits,
                    words,
                    class,
                    unit,
                    units,
                    slab,
                };
                // Two units in each step of the codes leave registers for fewer rows.
                let most = if unit < CHUNK { 2 } else { MOST };
                self.by_width(code, at, (panel, tile), most);
            }
        }
    }

    /// The rows of a tile with a panel by the vectors that there are, up to `most` at a time where they are wide.
    ///
    /// # Safety
    /// As for [`Vectors::run`]; `at` is as it says.
    unsafe fn by_width<C: Code, T: Few>(&self, code: C, at: T, place: (&Panel, usize), most: usize)
    where
        Half<T>: Few,
    {
        // SAFETY: the caller's promise.
        unsafe {
            if self.packed.recipe().wide {
                self.rows(code, &at, place, most);
            } else {
                self.rows(code, &Half(at), place, MOST);
            }
        }
    }

    /// The rows of a tile with a panel, up to `most` of [`MOST`] at a time: none that is not there is multiplied.
    ///
    /// # Safety
    /// As for [`Vectors::run`]; `at` is as it says.
    unsafe fn rows<C: Code>(
        &self,
        code: C,
        at: &impl Few,
        (panel, tile): (&Panel, usize),
        most: usize,
    ) {
        let rows = walk::rows_of(self.product, [tile, self.tiles.start, self.packed.class()]);
        // SAFETY: the caller's promise: rows were packed before.
        let worth = unsafe { self.packed.worth(tile) };
        let to = To { panel, straight: panel.vectors(self.product, &rows), rows, worth };
        for first in (0..to.rows.len()).step_by(most) {
            // SAFETY: the caller's promise.
            unsafe {
                match most.min(to.rows.len() - first) {
                    1 => self.some::<C, 1>(code, at, &to, first),
                    2 => self.some::<C, 2>(code, at, &to, first),
                    3 => self.some::<C, 3>(code, at, &to, first),
                    _ => self.some::<C, 4>(code, at, &to, first),
                }
            }
        }
    }

    /// `R` rows of a tile, from `first` on.
    ///
    /// # Safety
    /// As above.
    unsafe fn some<C: Code, const R: usize>(
        &self,
        code: C,
        at: &impl Few,
        to: &To<'_>,
        first: usize,
    ) {
        let mut sums = [[0.0; LANES]; R];
        // SAFETY: the caller's promise.
        unsafe { at.rows(code, first, &mut sums) };
        for (r, sums) in sums.iter_mut().enumerate() {
            sums.iter_mut().for_each(|sum| *sum *= to.worth[first + r]);
            let Some((start, stride, add)) = to.straight else {
                // SAFETY: the caller's promise.
                unsafe { to.panel.put(self.product, to.rows.start + first + r, sums) };
                continue;
            };
            let at = start.wrapping_add((first + r) * stride).cast::<[f32; LANES]>();
            // SAFETY: the caller's promise; nobody else looks at these channels of the row.
            let to = unsafe { &mut *at };
            if add {
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to += *sum);
            } else {
                *to = *sums;
            }
        }
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
