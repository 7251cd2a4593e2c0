//! Products of codes with activations as whole numbers, summed exactly inside a group.
//!
//! # Math
//! A row of activations becomes whole numbers `n = round(x · L / max|x|)` with `L = 8 353 780`, so 23 bits and a sign, cut into
//! digits. With the codes `c` of a unit of 16, 32 or 64 columns inside one group,
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
//! # Numerics
//! What is exact has no order: a unit's sums are the same bits however they are made, by tiles, by dot products of bytes,
//! for one row or for many. The order that is left, units ascending in f32, depends on the weight alone. An activation is
//! off by at most 2⁻²⁴ of its row's largest, which is what an f32 sum of the row's products loses too. A row with
//! something that is not a number gives only that; a row below 2⁻¹⁰⁰ counts as zeros.

mod code;
mod direct;
mod half;
mod nested;
mod pack;
mod product;
mod stacked;
mod tiles;
mod vectors;
mod vnni;
mod write;

pub(super) use pack::{PackTask, Packed, Recipe};
pub(super) use write::place;

use super::Scratch;
use super::amx::Amx;
use super::product::{Input, Product};
use super::tiled::Tiled;
use crate::pool::Shared;
use forerun_base::Format;
use std::arch::is_x86_feature_detected as has;

/// Proof that the processor multiplies bytes in vectors, and perhaps in tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    tiles: Option<Amx>,
    /// Whether vectors have 64 bytes, and dot products of them.
    wide: bool,
}

impl Units {
    /// The proof, where it holds; tiles are used where `tiles` proves them.
    pub(crate) fn detect(tiles: Option<Amx>) -> Option<Self> {
        super::avx512::Avx512::detect()?;
        let wide = has!("avx512vnni") && has!("avx512vbmi");
        wide.then_some(Self { tiles, wide })
    }

    /// The proof of what AVX2 alone can do, where that holds: see [`half`].
    pub(crate) fn detect_half() -> Option<Self> {
        super::avx2::Avx2::detect()?;
        Some(Self { tiles: None, wide: false })
    }

    /// How activations must look for a weight of `cols` columns, where its codes are whole numbers.
    pub(super) fn recipe(self, format: Format, cols: usize) -> Option<Recipe> {
        Recipe::new([self.tiles.is_some(), self.wide], format, cols)
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
