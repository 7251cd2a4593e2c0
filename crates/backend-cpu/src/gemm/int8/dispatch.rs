//! A task's rows and channels: by tiles where there are some and enough rows, else by vectors.

use super::Int8Gemm;
use super::code::{Code, WithCode, with_code};
use super::isa::ops::Int8Isa;
use super::isa::{AnyInt8Isa, WithInt8Isa};
use super::layout::{PackLayout, PackLimbsTask, PackedLimbs};
use super::vector_gemm::VectorGemm;
#[cfg(target_arch = "x86_64")]
use crate::gemm::amx::int8 as amx_int8;
use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::panels;
use crate::gemm::product::Product;
use crate::pool::SharedSlice;
use std::ops::Range;

/// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
pub(crate) fn scratch_len(
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

/// Computes and stores a product.
///
/// # Safety
/// As for [`Product::run`].
pub(crate) unsafe fn run(
    gemm: Int8Gemm,
    product: &Product<'_, PackedWeight>,
    layout: PackLayout,
    scratch: &mut [f32],
) {
    let (weight, rows) = (product.matrix, product.rows.clone());
    let (gathered, scratch) = scratch.split_at_mut(panels::gathered_len(weight));
    let given = product.input.packed.and_then(|packed| packed.limbs(layout));
    let own = if given.is_some() { 0 } else { layout.packed_len(rows.len()) };
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for tiles"))]
    let (own, scratch) = scratch.split_at_mut(own);
    let (packed, first) = if let Some(packed) = given {
        (packed, rows.start / packed.tile_rows())
    } else {
        let own = SharedSlice::new(own);
        PackLimbsTask::new(gemm, product.input, rows.clone(), layout, own).run_all();
        (PackedLimbs::new(own, rows.len(), layout), 0)
    };
    let tiles = first..first + rows.len().div_ceil(packed.tile_rows());
    let work = Int8Product {
        isa: gemm.isa,
        product,
        packed,
        tiles,
        gathered,
        #[cfg(target_arch = "x86_64")]
        scratch,
    };
    with_code(weight.format(), work);
}

/// A product with its activations packed.
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
            // SAFETY: `run`'s promise; the recipe has tiles.
            return unsafe { amx_int8::run(self, code) };
        }
        let Self { isa, product, packed, tiles, gathered, .. } = self;
        isa.with(VectorProduct { vectors: VectorGemm { product, packed, tiles }, code, gathered });
    }
}

/// A product whose rows are multiplied by vectors.
struct VectorProduct<'a, C> {
    vectors: VectorGemm<'a>,
    code: C,
    gathered: &'a mut [f32],
}

impl<C: Code> WithInt8Isa for VectorProduct<'_, C> {
    type Out = ();
    fn run<S: Int8Isa>(self, simd: S) {
        // A code that the isa cannot multiply has no recipe, and no such code is made.
        if const { S::BYTES || (C::BITS <= 6 && !C::TABLE) } {
            // SAFETY: `run`'s promise.
            unsafe { self.vectors.run(simd, self.code, self.gathered) };
        }
    }
}
