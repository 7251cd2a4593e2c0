//! Codes of a panel as bytes, for tiles.

use super::code::Code;
use super::sets::Vnni;
use super::whole::{VECTORS, codes};
use std::arch::x86_64::*;

/// How far ahead of its use a code is asked for.
pub(super) const AHEAD: usize = 4096;

/// The codes of 32 columns; the first-level cache is asked for what is `ahead` bytes behind them.
///
/// # Safety
/// The instructions of [`Vnni`]; `BITS` vectors at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn bytes<C: Code>(code: C, from: *const u8, ahead: usize) -> [__m512i; VECTORS] {
    // SAFETY: the caller's promise; a prefetch may point anywhere.
    unsafe {
        for i in 0..C::BITS {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead + i * 64).cast());
        }
        codes(Vnni::promised(), code, from)
    }
}
