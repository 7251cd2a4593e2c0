//! Codes of a panel as bytes, for tiles.

use crate::gemm::int8::code::Code;
use crate::gemm::int8::isa::Avx512Vnni;
use crate::gemm::int8::isa::ops::{VECTORS, codes};
use std::arch::x86_64::*;

/// How far ahead of its use a code is asked for.
pub(crate) const PREFETCH_BYTES: usize = 4096;

/// The codes of 32 columns; the first-level cache is asked for what is `prefetch_bytes` bytes behind them.
///
/// # Safety
/// The instructions of [`Avx512Vnni`]; `BITS` vectors at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(crate) unsafe fn bytes<C: Code>(
    code: C,
    from: *const u8,
    prefetch_bytes: usize,
) -> [__m512i; VECTORS] {
    // SAFETY: the caller's promise; a prefetch may point anywhere.
    unsafe {
        for i in 0..C::BITS {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(prefetch_bytes + i * 64).cast());
        }
        codes(Avx512Vnni::new_unchecked(), code, from)
    }
}
