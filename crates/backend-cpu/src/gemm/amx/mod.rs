//! Products on the tiles of AMX (bfloat16), with AVX-512 around them.
//!
//! # Math
//! With activations split into `x = high + middle + low`, all bfloat16, and codes `c` that are exact in bfloat16:
//!
//! ```text
//! part[m][n] = Σ_k high·c + Σ_k middle·c + Σ_k low·c               over the columns of one step
//! sum[m][n] ← sum[m][n] + scale[n]·part[m][n]                      steps in order
//! sum[m][n] ← sum[m][n] + offset[n]·Σ_k x[m][k]                    where there are offsets
//! ```
//!
//! # Numerics
//! The three parts are all 24 bits of `x`, unless it is below 2⁻¹¹⁰. Products of two bfloat16 are exact in f32; all
//! sums are f32. A step is 32 columns, or 16 where groups are not a multiple of 32, and what happens in a step and in
//! which order steps are added depends on the weight alone: a tile computes its rows independently of each other and of
//! how many there are. Dense weights have no scales: their sums stay in tiles over all columns, see [`dense`].

pub(crate) mod bf16;
#[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
mod emulated;
pub(crate) mod int8;
pub(crate) mod tile;

pub(crate) use bf16::pack::{PackBf16Task, PackedBf16};

use crate::gemm::packed_weight::PackedWeight;
use crate::gemm::product::{Input, Product};
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::__cpuid_count;

/// Proof that the processor has tiles of bfloat16 beside AVX-512 with its bfloat16 instructions, and that the system
/// lets this process use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// The proof, where it holds.
    pub(crate) fn detect() -> Option<Self> {
        const BF16: u32 = 1 << 22;
        const TILE: u32 = 1 << 24;
        const INT8: u32 = 1 << 25;
        crate::simd::avx512::Avx512::detect()?;
        let features = __cpuid_count(7, 0).edx;
        let present = features & (BF16 | TILE | INT8) == BF16 | TILE | INT8 && tile::permitted();
        (has!("avx512bf16") && (present || Self::emulate())).then_some(Self(()))
    }

    /// Whether tile instructions are done by other means.
    #[cfg(all(feature = "emulated-tiles", target_os = "linux"))]
    fn emulate() -> bool {
        has!("avx512vnni") && emulated::install()
    }

    /// They are not.
    #[cfg(not(all(feature = "emulated-tiles", target_os = "linux")))]
    fn emulate() -> bool {
        false
    }

    /// Room for all rows of `input`, of `cols` columns, in the order of tiles, and what brings them there.
    pub(crate) fn pack<'a>(
        self,
        input: Input<'a>,
        cols: usize,
        scratch: &'a mut Scratch,
    ) -> (PackedBf16<'a>, PackBf16Task<'a>) {
        let rows = input.data.len().checked_div(cols).unwrap_or(0);
        scratch.reserve(bf16::pack::packed_len(rows, cols), 0);
        let out = SharedSlice::new(scratch.floats());
        (PackedBf16::new(out, rows, cols), PackBf16Task::new(self, input, 0..rows, cols, out))
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
    pub(crate) fn scratch_len(self, weight: &PackedWeight, rows: usize, packs: bool) -> usize {
        bf16::scratch_len(weight, rows, packs)
    }

    /// Computes and stores a product.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(crate) unsafe fn product(self, product: &Product<'_, PackedWeight>, scratch: &mut [f32]) {
        // SAFETY: the value proves the instructions; the rest is the caller's promise.
        unsafe { bf16::run(self, product, scratch) };
    }
}
