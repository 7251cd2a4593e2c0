//! A task's rows and channels by dot products of bytes, a panel and a few rows at a time.

use super::super::isa::LANES;
use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk::{self, Panel, TOGETHER, walk};
use super::code::{Code, Scales, excess};
use super::nested::{self, Levels};
use super::pack::{CHUNK, Packed};
use super::vnni::{self, Few};
use std::arch::x86_64::*;
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
                self.rows(code, &at, (panel, tile), 4);
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
                let most = if unit < CHUNK { 2 } else { 4 };
                self.rows(code, &at, (panel, tile), most);
            }
        }
    }

    /// The rows of a tile with a panel, up to `most` of four at a time: none that is not there is multiplied.
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
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn some<C: Code, const R: usize>(
        &self,
        code: C,
        at: &impl Few,
        to: &To<'_>,
        first: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = at.rows::<C, R>(code, first);
            for r in 0..R {
                let sum = _mm512_mul_ps(sums[r], _mm512_set1_ps(to.worth[first + r]));
                if let Some((start, stride, add)) = to.straight {
                    let at = start.wrapping_add((first + r) * stride);
                    let sum = if add { _mm512_add_ps(_mm512_loadu_ps(at), sum) } else { sum };
                    _mm512_storeu_ps(at, sum);
                } else {
                    let mut out = [0.0; LANES];
                    _mm512_storeu_ps(out.as_mut_ptr(), sum);
                    to.panel.put(self.product, to.rows.start + first + r, &out);
                }
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
