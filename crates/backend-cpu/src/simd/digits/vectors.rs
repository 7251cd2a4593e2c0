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
                self.rows(code, &at, (panel, tile), class);
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
                self.rows(code, &at, (panel, tile), class.min(most));
            }
        }
    }

    /// The rows of a tile with a panel, up to four at a time.
    ///
    /// # Safety
    /// As for [`Vectors::run`]; `at` is as it says.
    unsafe fn rows<C: Code>(
        &self,
        code: C,
        at: &impl Few,
        place: (&Panel, usize),
        together: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match together {
                1 => self.some::<C, 1>(code, at, place),
                2 => self.some::<C, 2>(code, at, place),
                _ => self.some::<C, 4>(code, at, place),
            }
        }
    }

    /// As above, `R` at a time; the tile's class is a multiple of `R`.
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
        (panel, tile): (&Panel, usize),
    ) {
        let product = self.product;
        let rows = walk::rows_of(product, [tile, self.tiles.start, self.packed.class()]);
        let straight = panel.vectors(product, &rows);
        for first in (0..rows.len()).step_by(R) {
            // SAFETY: the caller's promise: rows were packed before.
            unsafe {
                let worth = self.packed.worth(tile);
                let sums = at.rows::<C, R>(code, first);
                for r in 0..R.min(rows.len() - first) {
                    let sum = _mm512_mul_ps(sums[r], _mm512_set1_ps(worth[first + r]));
                    if let Some((to, stride, add)) = straight {
                        let to = to.wrapping_add((first + r) * stride);
                        let sum = if add { _mm512_add_ps(_mm512_loadu_ps(to), sum) } else { sum };
                        _mm512_storeu_ps(to, sum);
                    } else {
                        let mut out = [0.0; LANES];
                        _mm512_storeu_ps(out.as_mut_ptr(), sum);
                        panel.put(product, rows.start + first + r, &out);
                    }
                }
            }
        }
    }
}
