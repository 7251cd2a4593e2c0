//! Codes of a panel times their groups' whole numbers, as two bytes each.
//!
//! # Layout
//! A step of 64 columns is a tile of the high bytes, which have a sign, and then one of the low bytes, which have none:
//! `w = 256·high + low`. Factors of a superblock are lines of sixteen f32: those of a total's parts, then the offsets of each part.

use super::super::super::isa::LANES;
use super::super::code::{Code, VECTORS};
use super::super::pack::CHUNK;
use super::{Levels, STEP, factors};
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;

/// Bytes of a tile of weights.
pub(super) const TILE: usize = 1024;
/// f32 of a superblock's factors: parts have sixteen columns at least.
pub(super) const FACTORS: usize = (2 + SUPERBLOCK / LANES) * LANES;

/// A panel to be unpacked.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) codes: *const u8,
    pub(super) levels: Levels,
    /// What every stored code has too much, as a power of two.
    pub(super) excess: Option<u32>,
    /// Columns of a sum: 16 or 32.
    pub(super) part: usize,
}

impl Source {
    /// Unpacks step `step` of a superblock to its two tiles of those at `to`, and what of the factors belongs to it.
    ///
    /// # Safety
    /// The instructions of [`super::super::Units`]; the superblock is one of the panel's; room for its tiles and for [`FACTORS`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn step<C: Code>(
        &self,
        code: C,
        [block, step]: [usize; 2],
        (to, scales): (*mut u8, *mut f32),
    ) {
        let to = to.wrapping_add(step * 2 * TILE);
        // SAFETY: the caller's promise.
        unsafe {
            match self.excess {
                Some(excess) => self.tiles::<C, true>(code, [block, step], excess, to),
                None => self.tiles::<C, false>(code, [block, step], 0, to),
            }
            if step == 0 {
                let factors = factors(self.levels.factor(block));
                _mm512_store_ps(scales, factors[0]);
                _mm512_store_ps(scales.add(LANES), factors[1]);
            }
            for column in (step * STEP..(step + 1) * STEP).step_by(self.part) {
                let Some(offset) = self.levels.offset(block * SUPERBLOCK + column) else { break };
                _mm512_store_ps(scales.add((2 + column / self.part) * LANES), offset);
            }
        }
    }

    /// # Safety
    /// As for [`Source::step`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn tiles<C: Code, const SIGNED: bool>(
        &self,
        code: C,
        [block, step]: [usize; 2],
        excess: u32,
        to: *mut u8,
    ) {
        let down = _mm_cvtsi32_si128(8 - excess as i32);
        let byte = _mm512_set1_epi16(0xff);
        for half in 0..STEP / CHUNK {
            let column = block * SUPERBLOCK + step * STEP + half * CHUNK;
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = code.bytes(self.codes.add(column / CHUNK * C::BITS * 64));
                for i in 0..VECTORS {
                    let s = self.levels.whole(column + i / 4 * LANES);
                    // In every word `s` meets its first code, or its second: products of a code and nothing else.
                    let s = _mm512_cvtepu8_epi32(s);
                    let first = _mm512_or_si512(s, _mm512_slli_epi32::<16>(s));
                    let second = _mm512_slli_epi16::<8>(first);
                    let mut even = _mm512_maddubs_epi16(bytes[i], first);
                    let mut odd = _mm512_maddubs_epi16(bytes[i], second);
                    if SIGNED {
                        let excess = _mm512_sra_epi16(second, down);
                        even = _mm512_sub_epi16(even, excess);
                        odd = _mm512_sub_epi16(odd, excess);
                    }
                    // Bits of the first where `byte` has them, else of the second.
                    let low =
                        _mm512_ternarylogic_epi32::<0xca>(byte, even, _mm512_slli_epi16::<8>(odd));
                    let high =
                        _mm512_ternarylogic_epi32::<0xca>(byte, _mm512_srli_epi16::<8>(even), odd);
                    let to = to.add((half * VECTORS + i) * 64);
                    _mm512_store_si512(to.cast(), high);
                    _mm512_store_si512(to.add(TILE).cast(), low);
                }
            }
        }
    }
}
