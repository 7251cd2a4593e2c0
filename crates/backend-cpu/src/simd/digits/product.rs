//! A task's rows and channels: by tiles where there are some and enough rows, else by vectors.

use super::super::product::Product;
use super::super::tiled::Tiled;
use super::super::walk;
use super::Units;
#[cfg(target_arch = "x86_64")]
use super::by_tiles;
use super::code::{Code, WithCode, with_code};
use super::pack::{PackTask, Packed, Recipe};
use super::sets::{Set, WithSet};
use super::vectors::Vectors;
use super::whole::Whole;
use crate::pool::Shared;
use std::ops::Range;

/// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
pub(super) fn scratch_len(tiled: &Tiled, recipe: Recipe, rows: usize, packs: bool) -> usize {
    let own = if packs { recipe.packed_len(rows) } else { 0 };
    #[cfg(target_arch = "x86_64")]
    let own = own + by_tiles::scratch_len(recipe, rows);
    walk::room_len(tiled) + own
}

/// Computes and stores a product.
///
/// # Safety
/// As for [`Product::run`].
pub(super) unsafe fn run(
    units: Units,
    product: &Product<'_, Tiled>,
    recipe: Recipe,
    scratch: &mut [f32],
) {
    let (tiled, rows) = (product.matrix, product.rows.clone());
    let (room, scratch) = scratch.split_at_mut(walk::room_len(tiled));
    let given = product.input.packed.and_then(|packed| packed.digits(recipe));
    let own = if given.is_some() { 0 } else { recipe.packed_len(rows.len()) };
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for tiles"))]
    let (own, scratch) = scratch.split_at_mut(own);
    let (packed, first) = if let Some(packed) = given {
        (packed, rows.start / packed.class())
    } else {
        let own = Shared::new(own);
        PackTask::new(units, product.input, rows.clone(), recipe, own).run_all();
        (Packed::new(own, rows.len(), recipe), 0)
    };
    let tiles = first..first + rows.len().div_ceil(packed.class());
    let work = Work {
        set: units.set,
        product,
        packed,
        tiles,
        room,
        #[cfg(target_arch = "x86_64")]
        scratch,
    };
    with_code(tiled.format(), work);
}

/// A product with its activations packed.
pub(super) struct Work<'a> {
    set: Set,
    pub(super) product: &'a Product<'a, Tiled>,
    pub(super) packed: Packed<'a>,
    /// Tiles of the product's rows.
    pub(super) tiles: Range<usize>,
    pub(super) room: &'a mut [f32],
    #[cfg(target_arch = "x86_64")]
    pub(super) scratch: &'a mut [f32],
}

impl WithCode for Work<'_> {
    fn run<C: Code>(self, code: C) {
        #[cfg(target_arch = "x86_64")]
        if self.packed.recipe().by_tiles(self.packed.class()) {
            // SAFETY: `run`'s promise; the recipe has tiles.
            return unsafe { by_tiles::run(self, code) };
        }
        let Self { set, product, packed, tiles, room, .. } = self;
        set.with(ByVectors { vectors: Vectors { product, packed, tiles }, code, room });
    }
}

/// A product whose rows are multiplied by vectors.
struct ByVectors<'a, C> {
    vectors: Vectors<'a>,
    code: C,
    room: &'a mut [f32],
}

impl<C: Code> WithSet for ByVectors<'_, C> {
    type Out = ();
    fn run<S: Whole>(self, simd: S) {
        // A code that the set cannot multiply has no recipe, and no such code is made.
        if const { S::BYTES || (C::BITS <= 6 && !C::TABLE) } {
            // SAFETY: `run`'s promise.
            unsafe { self.vectors.run(simd, self.code, self.room) };
        }
    }
}
