//! Products of codes with activations as whole numbers, summed exactly inside a group.
//!
//! # Math
//! A row of activations becomes whole numbers `n = round(x · L / max|x|)` with `L = 8 353 780`, so 23 bits and a sign, cut into
//! digits; where codes of five bits meet tiles with `L = 2 087 928`, 21 bits and a sign. With the codes `c` of a unit of 16, 32 or 64 columns inside one group,
//!
//! ```text
//! d_i[m][n] = Σ_k digit_i[m][k] · c[n][k]                       whole numbers, exact
//! sum ← sum + (scale · weight_i) · d_i                          digits from high to low, units in order
//! sum ← sum + offset · Σ_k n[m][k]                              where there are offsets
//! out = sum · (max|x| / L)
//! ```
//!
//! Where scales are nested the unit is a superblock, see [`nested`].
//!
//! On demand activations are rounded to one byte ([`Units::rounding`]): `n = round(x · 127 / max|x|)` with the largest of a unit or superblock, one digit, and
//! `sum ← sum + (scale · max|x| / 127) · d`. That is no more the product that was asked for, but a third of the work.
//!
//! # Numerics
//! What is exact has no order: a unit's sums are the same bits however they are made, by tiles, by dot products of bytes,
//! for one row or for many. The order that is left, units ascending in f32, depends on the weight alone. An activation is
//! off by at most 2⁻²⁴ of its row's largest (2⁻²² there), which is what an f32 sum of the row's products loses too. A row with
//! something that is not a number gives only that; a row below 2⁻¹⁰⁰ counts as zeros.

#[cfg(target_arch = "x86_64")]
mod by_tiles;
#[cfg(target_arch = "x86_64")]
mod bytes;
mod code;
#[cfg(target_arch = "x86_64")]
mod direct;
mod few;
mod nested;
mod pack;
mod product;
mod sets;
#[cfg(target_arch = "x86_64")]
mod stacked;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vectors;
mod whole;
mod write;
#[cfg(target_arch = "x86_64")]
mod write_wide;

pub(super) use pack::{PackTask, Packed, Recipe};
pub(super) use write::place;

use super::amx::Amx;
use super::product::{Input, Product};
use super::tiled::Tiled;
use super::{Level, Scratch};
use crate::pool::Shared;
use forerun_base::Format;
use sets::{Set, WithSet};
use whole::Whole;

/// Proof that the processor multiplies bytes in vectors, and perhaps in tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    set: Set,
    tiles: Option<Amx>,
    /// Whether activations are rounded to one byte.
    rounds: bool,
}

impl Units {
    /// The proof, where it holds for a level.
    pub(crate) fn detect(level: Level) -> Option<Self> {
        let set = Set::detect(level)?;
        let tiles = if level == Level::Amx { Some(Amx::detect()?) } else { None };
        Some(Self { set, tiles, rounds: false })
    }

    /// The same for activations that are rounded to one byte. Tiles do not take them.
    pub(crate) fn rounding(self) -> Option<Self> {
        self.tiles.is_none().then_some(Self { rounds: true, ..self })
    }

    /// Whether activations are rounded so.
    pub(crate) fn rounds(self) -> bool {
        self.rounds
    }

    /// How activations must look for a weight of `cols` columns, where its codes are whole numbers.
    pub(super) fn recipe(self, format: Format, cols: usize) -> Option<Recipe> {
        self.set.with(RecipeFor { modes: [self.tiles.is_some(), self.rounds], format, cols })
    }

    /// The recipe that it would be with tiles.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(super) fn recipe_with_tiles(self, format: Format, cols: usize) -> Option<Recipe> {
        self.set.with(RecipeFor { modes: [true, false], format, cols })
    }

    /// What AVX-VNNI does, by the instructions of AVX-512, where there are some.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(super) fn as_avx_vnni() -> Option<Self> {
        Some(Self { set: Set::Evex(sets::Halves::detect()?), tiles: None, rounds: false })
    }

    /// Room for all rows of `input` as digits, and what brings them there.
    pub(super) fn pack<'a>(
        self,
        input: Input<'a>,
        recipe: Recipe,
        room: &'a mut Scratch,
    ) -> (Packed<'a>, PackTask<'a>) {
        let rows = input.data.len().checked_div(recipe.cols()).unwrap_or(0);
        room.reserve(recipe.packed_len(rows), 0);
        let out = Shared::new(room.floats());
        let task = PackTask::new(self, input, 0..rows, recipe, out);
        (Packed::new(out, rows, recipe), task)
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
    pub(super) fn scratch_len(
        self,
        tiled: &Tiled,
        recipe: Recipe,
        rows: usize,
        packs: bool,
    ) -> usize {
        product::scratch_len(tiled, recipe, rows, packs)
    }

    /// Computes and stores a product with a weight that asks for `recipe`.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(super) unsafe fn product(
        self,
        product: &Product<'_, Tiled>,
        recipe: Recipe,
        scratch: &mut [f32],
    ) {
        // SAFETY: the value proves the instructions; the rest is the caller's promise.
        unsafe { product::run(self, product, recipe, scratch) };
    }
}

/// What asks for a recipe.
struct RecipeFor {
    /// Whether there are tiles, and whether numbers are rounded.
    modes: [bool; 2],
    format: Format,
    cols: usize,
}

impl WithSet for RecipeFor {
    type Out = Option<Recipe>;
    fn run<S: Whole>(self, _simd: S) -> Option<Recipe> {
        Recipe::new::<S>(self.modes, self.format, self.cols)
    }
}
