//! Products of codes with activations as whole numbers, summed exactly inside a group.
//!
//! # Math
//! A row of activations becomes whole numbers `n = round(x · L / max|x|)` with `L = 8 353 780`, so 23 bits and a sign,
//! cut into digits; where codes of five bits meet tiles with `L = 2 087 928`, 21 bits and a sign. With the codes `c` of
//! a unit of 16, 32 or 64 columns inside one group,
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
//! On demand activations are rounded to one byte ([`Int8Gemm::rounding`]): `n = round(x · 127 / max|x|)` with the
//! largest of a unit or superblock, one digit, and `sum ← sum + (scale · max|x| / 127) · d`. That is no more the
//! product that was asked for, but a third of the work.
//!
//! # Numerics
//! What is exact has no order: a unit's sums are the same bits however they are made, by tiles, by dot products of
//! bytes, for one row or for many. The order that is left, units ascending in f32, depends on the weight alone. An
//! activation is off by at most 2⁻²⁴ of its row's largest (2⁻²² there), which is what an f32 sum of the row's products
//! loses too. A row with something that is not a number gives only that; a row below 2⁻¹⁰⁰ counts as zeros.

pub(crate) mod code;
pub(crate) mod dispatch;
pub(crate) mod gemv;
pub(crate) mod isa;
pub(crate) mod k_quant;
pub(crate) mod layout;
pub(crate) mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;
mod vector_gemm;

pub(crate) use layout::{PackLayout, PackLimbsTask, PackedLimbs};
pub(crate) use pack::code_place;

use crate::gemm::amx::Amx;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::product::{Input, Product};
use crate::pool::SharedSlice;
use crate::simd::{Level, Scratch};
use forerun_base::Format;
use isa::ops::Int8Isa;
use isa::{AnyInt8Isa, WithInt8Isa};

/// Proof that the processor multiplies bytes in vectors, and perhaps in tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8Gemm {
    isa: AnyInt8Isa,
    tiles: Option<Amx>,
    /// Whether activations are rounded to one byte.
    rounds: bool,
}

impl Int8Gemm {
    /// The proof, where it holds for a level.
    pub(crate) fn detect(level: Level) -> Option<Self> {
        let isa = AnyInt8Isa::detect(level)?;
        let tiles = if level == Level::Amx { Some(Amx::detect()?) } else { None };
        Some(Self { isa, tiles, rounds: false })
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
    pub(crate) fn layout(self, format: Format, cols: usize) -> Option<PackLayout> {
        self.isa.with(LayoutFor { modes: [self.tiles.is_some(), self.rounds], format, cols })
    }

    /// The recipe that it would be with tiles.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn layout_with_amx(self, format: Format, cols: usize) -> Option<PackLayout> {
        self.isa.with(LayoutFor { modes: [true, false], format, cols })
    }

    /// What AVX-VNNI does, by the instructions of AVX-512, where there are some.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn as_avx_vnni() -> Option<Self> {
        Some(Self {
            isa: AnyInt8Isa::Avx512VnniYmm(isa::Avx2Int8::detect()?),
            tiles: None,
            rounds: false,
        })
    }

    /// Room for all rows of `input` as digits, and what brings them there.
    pub(crate) fn pack<'a>(
        self,
        input: Input<'a>,
        layout: PackLayout,
        scratch: &'a mut Scratch,
    ) -> (PackedLimbs<'a>, PackLimbsTask<'a>) {
        let rows = input.data.len().checked_div(layout.cols()).unwrap_or(0);
        scratch.reserve(layout.packed_len(rows), 0);
        let out = SharedSlice::new(scratch.floats());
        let task = PackLimbsTask::new(self, input, 0..rows, layout, out);
        (PackedLimbs::new(out, rows, layout), task)
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
    pub(crate) fn scratch_len(
        self,
        weight: &PackedWeight,
        layout: PackLayout,
        rows: usize,
        packs: bool,
    ) -> usize {
        dispatch::scratch_len(weight, layout, rows, packs)
    }

    /// Computes and stores a product with a weight that asks for `layout`.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(crate) unsafe fn product(
        self,
        product: &Product<'_, PackedWeight>,
        layout: PackLayout,
        scratch: &mut [f32],
    ) {
        // SAFETY: the value proves the instructions; the rest is the caller's promise.
        unsafe { dispatch::run(self, product, layout, scratch) };
    }
}

/// What asks for a recipe.
struct LayoutFor {
    /// Whether there are tiles, and whether numbers are rounded.
    modes: [bool; 2],
    format: Format,
    cols: usize,
}

impl WithInt8Isa for LayoutFor {
    type Out = Option<PackLayout>;
    fn run<S: Int8Isa>(self, _simd: S) -> Option<PackLayout> {
        PackLayout::new::<S>(self.modes, self.format, self.cols)
    }
}
