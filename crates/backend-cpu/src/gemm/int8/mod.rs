//! Products with integer codes: activations as int8 limbs, summed exactly inside a unit.
//!
//! # Math
//! A row of activations becomes integers `n = round(x · L / max|x|)` with `L = 8 353 780`, so 23 bits and a sign, cut
//! into limbs; where codes of five bits meet AMX, `L = 2 087 928`, 21 bits and a sign. With the codes `c` of a unit of
//! 16, 32 or 64 columns inside one group,
//!
//! ```text
//! d_i[m][n] = Σ_k limb_i[m][k] · c[n][k]                        integers, exact
//! sum ← sum + (scale · weight_i) · d_i                          limbs from high to low, units in order
//! sum ← sum + offset · Σ_k n[m][k]                              where there are offsets
//! out = sum · (max|x| / L)                                      the row scale
//! ```
//!
//! Where scales are nested the unit is a superblock, see [`k_quant`].
//!
//! On demand activations are rounded to int8 ([`Int8Gemm::rounding`]): `n = round(x · 127 / max|x|)` with the largest
//! of a unit or superblock, one limb, and `sum ← sum + (scale · max|x| / 127) · d`. That is a different, approximate
//! product, for a third of the work.
//!
//! # Numerics
//! Integer sums have no rounding and so no order: a unit's sums are the same bits by AMX or by vectors, for one row
//! or for many. The order that is left, units ascending in f32, depends on the weight alone. An activation is off by at
//! most 2⁻²⁴ of its row's largest (2⁻²² with 21 bits), which is what an f32 sum of the row's products loses too. A row
//! that holds a NaN or an infinity gives NaN; a row whose largest is below 2⁻¹⁰⁰ counts as zeros.

pub(crate) mod code;
pub(crate) mod gemv;
mod group_gemv;
pub(crate) mod isa;
pub(crate) mod k_quant;
pub(crate) mod layout;
pub(crate) mod pack;

pub(crate) use layout::{PackLayout, PackedLimbs};
pub(crate) use pack::{PackLimbsTask, code_place};

use crate::gemm::amx::Amx;
#[cfg(target_arch = "x86_64")]
use crate::gemm::amx::int8 as amx_int8;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels;
use crate::gemm::product::{GemmInput, Product};
use crate::pool::SharedSlice;
use crate::simd::{Level, Scratch};
use code::{Code, WithCode, with_code};
use forerun_base::Format;
use gemv::VectorGemm;
use isa::{AnyInt8Isa, Int8Isa, WithInt8Isa};
use layout::Modes;
use std::ops::Range;

/// Proof that the processor multiplies bytes in vectors, and perhaps by AMX.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8Gemm {
    isa: AnyInt8Isa,
    amx: Option<Amx>,
    /// Whether activations are rounded to int8.
    rounds: bool,
}

impl Int8Gemm {
    /// The proof, if the processor has the instructions of a level.
    pub(crate) fn detect(level: Level) -> Option<Self> {
        let isa = AnyInt8Isa::detect(level)?;
        let amx = if level == Level::Amx { Some(Amx::detect()?) } else { None };
        Some(Self { isa, amx, rounds: false })
    }

    /// The same with activations rounded to int8, which the AMX kernels do not take.
    pub(crate) fn rounding(self) -> Option<Self> {
        self.amx.is_none().then_some(Self { rounds: true, ..self })
    }

    /// Whether activations are rounded to int8.
    pub(crate) fn rounds(self) -> bool {
        self.rounds
    }

    /// The layout of activations for a weight of `cols` columns; `None` where its codes cannot be multiplied as bytes.
    pub(crate) fn layout(self, format: Format, cols: usize) -> Option<PackLayout> {
        let modes = Modes { amx: self.amx.is_some(), rounded: self.rounds };
        self.isa.with(LayoutFor { modes, format, cols })
    }

    /// The layout that it would be with AMX.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn layout_with_amx(self, format: Format, cols: usize) -> Option<PackLayout> {
        let modes = Modes { amx: true, rounded: false };
        self.isa.with(LayoutFor { modes, format, cols })
    }

    /// The kernels of AVX-VNNI in the AVX-512 encoding, if the processor has that.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn as_avx_vnni() -> Option<Self> {
        let isa = AnyInt8Isa::Avx512VnniYmm(isa::Avx2Int8::detect()?);
        Some(Self { isa, amx: None, rounds: false })
    }

    /// Reserves memory for all rows of `input` in `scratch`: the packed rows, and the task that writes them.
    pub(crate) fn pack<'a>(
        self,
        input: GemmInput<'a>,
        layout: PackLayout,
        scratch: &'a mut Scratch,
    ) -> (PackedLimbs<'a>, PackLimbsTask<'a>) {
        let rows = input.data.len().checked_div(layout.cols()).unwrap_or(0);
        scratch.reserve(layout.packed_len(rows), 0);
        let out = SharedSlice::new(scratch.floats());
        let task = PackLimbsTask::new(self.isa, input, 0..rows, layout, out);
        (PackedLimbs::new(out, rows, layout), task)
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they are not packed yet.
    pub(crate) fn scratch_len(
        self,
        weight: &PackedWeight,
        layout: PackLayout,
        rows: usize,
        packs: bool,
    ) -> usize {
        let own = if packs { layout.packed_len(rows) } else { 0 };
        #[cfg(target_arch = "x86_64")]
        let own = own + amx_int8::scratch_len(layout, rows);
        panels::gathered_len(weight) + own
    }

    /// Computes and stores a product with a weight whose layout this is: by AMX where it pays, else by vectors.
    ///
    /// # Safety
    /// As for [`Product::run`], with [`Int8Gemm::scratch_len`] of scratch.
    pub(crate) unsafe fn product(
        self,
        product: &Product<'_, PackedWeight>,
        layout: PackLayout,
        scratch: &mut [f32],
    ) {
        let (weight, rows) = (product.matrix, product.rows.clone());
        let (gathered, scratch) = scratch.split_at_mut(panels::gathered_len(weight));
        let given = product.input.packed.and_then(|packed| packed.limbs(layout));
        let own = if given.is_some() { 0 } else { layout.packed_len(rows.len()) };
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for AMX"))]
        let (own, scratch) = scratch.split_at_mut(own);
        let (packed, first) = if let Some(packed) = given {
            (packed, rows.start / packed.tile_rows())
        } else {
            let own = SharedSlice::new(own);
            PackLimbsTask::new(self.isa, product.input, rows.clone(), layout, own).run_all();
            (PackedLimbs::new(own, rows.len(), layout), 0)
        };
        let tiles = first..first + rows.len().div_ceil(packed.tile_rows());
        let work = Int8Product {
            isa: self.isa,
            product,
            packed,
            tiles,
            gathered,
            #[cfg(target_arch = "x86_64")]
            scratch,
        };
        with_code(weight.format(), work);
    }
}

/// Asks for a layout, once the instruction set is known.
struct LayoutFor {
    modes: Modes,
    format: Format,
    cols: usize,
}

impl WithInt8Isa for LayoutFor {
    type Out = Option<PackLayout>;
    fn run<S: Int8Isa>(self, _simd: S) -> Option<PackLayout> {
        PackLayout::new::<S>(self.modes, self.format, self.cols)
    }
}

/// A product with its activations packed. Only [`Int8Gemm::product`] makes one, so its contract holds: the outputs
/// belong to this thread, and inputs and channels exist.
pub(crate) struct Int8Product<'a> {
    isa: AnyInt8Isa,
    pub(crate) product: &'a Product<'a, PackedWeight>,
    pub(crate) packed: PackedLimbs<'a>,
    /// Tiles of the product's rows.
    pub(crate) tiles: Range<usize>,
    pub(crate) gathered: &'a mut [f32],
    #[cfg(target_arch = "x86_64")]
    pub(crate) scratch: &'a mut [f32],
}

impl WithCode for Int8Product<'_> {
    fn run<C: Code>(self, code: C) {
        #[cfg(target_arch = "x86_64")]
        if self.packed.layout().uses_amx(self.packed.tile_rows()) {
            // SAFETY: `Int8Gemm::product`'s contract (see the struct); a layout for AMX is made only with the proof of
            // it.
            return unsafe { amx_int8::run(self, code) };
        }
        let Self { isa, product, packed, tiles, gathered, .. } = self;
        isa.with(VectorProduct { vectors: VectorGemm { product, packed, tiles }, code, gathered });
    }
}

/// A product by vectors, waiting for the instruction set.
struct VectorProduct<'a, C> {
    vectors: VectorGemm<'a>,
    code: C,
    gathered: &'a mut [f32],
}

impl<C: Code> WithInt8Isa for VectorProduct<'_, C> {
    type Out = ();
    fn run<S: Int8Isa>(self, simd: S) {
        // Codes that the instruction set cannot multiply have no layout, so those kernels are not instantiated.
        if const { S::BYTES || (C::BITS <= 6 && !C::TABLE) } {
            // SAFETY: `Int8Gemm::product`'s contract; the packed tiles are those of the product's rows, and `with_code`
            // found the weight's code.
            unsafe { self.vectors.run(simd, self.code, self.gathered) };
        }
    }
}
