//! Products by AMX tiles, with AVX-512 around them: [`bf16`] for dense bf16 and FP8, [`int8`] for integer codes.

pub(crate) mod bf16;
#[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
mod emulated;
pub(crate) mod int8;
pub(crate) mod tile;

pub(crate) use bf16::pack::{PackBf16Task, PackedBf16};

use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::product::{GemmInput, Product};
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::__cpuid_count;

/// Proof that the processor has AMX with bf16 and int8 and AVX-512 with bf16, and that the operating system lets this
/// process use tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// The proof, if all of that holds.
    pub(crate) fn detect() -> Option<Self> {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        const INT8: u32 = 1 << 25;
        crate::simd::avx512::Avx512::detect()?;
        let features = __cpuid_count(7, 0).edx;
        let present = features & (BF16 | TILE | INT8) == BF16 | TILE | INT8 && tile::permitted();
        (has!("avx512bf16") && (present || Self::emulate())).then_some(Self(()))
    }

    /// Whether tile instructions are emulated.
    #[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
    fn emulate() -> bool {
        has!("avx512vnni") && emulated::install()
    }

    /// Not in this build.
    #[cfg(not(all(feature = "emulated-tiles", target_os = "linux")))]
    fn emulate() -> bool {
        false
    }

    /// Reserves memory for all rows of `input`, of `cols` columns, in `scratch`: the packed rows, and the tasks that
    /// write them.
    pub(crate) fn pack<'a>(
        self,
        input: GemmInput<'a>,
        cols: usize,
        scratch: &'a mut Scratch,
    ) -> (PackedBf16<'a>, PackBf16Task<'a>) {
        let rows = input.data.len().checked_div(cols).unwrap_or(0);
        scratch.reserve(bf16::pack::packed_len(rows, cols), 0);
        let out = SharedSlice::new(scratch.floats());
        (PackedBf16::new(out, rows, cols), PackBf16Task::new(self, input, 0..rows, cols, out))
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they are not packed yet.
    pub(crate) fn scratch_len(self, weight: &PackedWeight, rows: usize, packs: bool) -> usize {
        bf16::scratch_len(weight, rows, packs)
    }

    /// Computes and stores a product.
    ///
    /// # Safety
    /// As for [`Product::run`], with [`Amx::scratch_len`] of scratch.
    pub(crate) unsafe fn product(self, product: &Product<'_, PackedWeight>, scratch: &mut [f32]) {
        // SAFETY: the value proves the instructions; both functions have the contract of `Product::run`.
        unsafe { bf16::run(self, product, scratch) };
    }
}
