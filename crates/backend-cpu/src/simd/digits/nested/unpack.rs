//! Codes of a panel times their groups' whole numbers, as two bytes each.
//!
//! # Layout
//! A step of 64 columns is a tile of the high bytes, which have a sign, and then one of the low bytes, which have none:
//! `w = 256·high + low`. Or it is a tile of the words of even columns and then one of the odd columns, raised by 2¹⁵ where they have a
//! sign. Factors of a superblock are lines of sixteen f32: those of a total's parts, then the offsets of each part.

use super::super::super::avx512::Avx512;
use super::super::super::isa::LANES;
use super::super::bytes::bytes;
use super::super::code::Code;
use super::super::pack::CHUNK;
use super::super::whole::VECTORS;
use super::{Levels, STEP, factors};
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;

/// Bytes of a tile of weights.
pub(super) const TILE: usize = 1024;
/// f32 of a superblock's factors: parts have sixteen columns at least.
pub(super) const FACTORS: usize = (2 + SUPERBLOCK / LANES) * LANES;

/// The channel of each byte of a vector.
const CHANNELS: [u8; 64] = {
    let mut channels = [0; 64];
    let mut byte = 0;
    while byte < 64 {
        channels[byte] = byte as u8 / 4;
        byte += 1;
    }
    channels
};
/// The first byte of every word.
const FIRST: u64 = 0x5555_5555_5555_5555;

/// A panel to be unpacked.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) codes: *const u8,
    pub(super) levels: Levels,
    /// What every stored code has too much, as a power of two.
    pub(super) excess: Option<u32>,
    /// Columns of a sum: 16 or 32.
    pub(super) part: usize,
    /// Bytes of the codes, how far ahead of its use a code is asked for, and what is left out where that goes past them.
    pub(super) len: usize,
    pub(super) ahead: usize,
    pub(super) jump: usize,
}

/// Unpacks words.
pub(super) trait Half {
    /// Unpacks a chunk to its half of two tiles of words, even columns and odd ones.
    ///
    /// # Safety
    /// The instructions of [`super::super::Units`]; the chunk is one of the panel's; room for two tiles at `to`.
    unsafe fn unpack(&self, source: &Source, chunk: usize, to: *mut u8);
}

/// Words of codes that have a sign or not, in parts of 16 columns or of 32.
struct Words<C, const SIGNED: bool, const SMALL: bool>(C);

/// Finds who unpacks words of `code`.
pub(super) fn with_half<C: Code>(code: C, signed: bool, part: usize, work: impl FnOnce(&dyn Half)) {
    match (signed, part < CHUNK) {
        (true, true) => work(&Words::<C, true, true>(code)),
        (true, false) => work(&Words::<C, true, false>(code)),
        (false, true) => work(&Words::<C, false, true>(code)),
        (false, false) => work(&Words::<C, false, false>(code)),
    }
}

impl<C: Code, const SIGNED: bool, const SMALL: bool> Half for Words<C, SIGNED, SMALL> {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn unpack(&self, source: &Source, chunk: usize, to: *mut u8) {
        let to = to.wrapping_add(chunk % 2 * VECTORS * 64);
        // SAFETY: the caller's promise; 64 bytes of channels.
        unsafe {
            let channel = _mm512_loadu_si512(CHANNELS.as_ptr().cast());
            let bytes = source.bytes(self.0, chunk);
            let each = if SMALL { VECTORS / 2 } else { VECTORS };
            for first in (0..VECTORS).step_by(each) {
                let whole = source.levels.whole(chunk * CHUNK + first * 4);
                let whole = _mm512_castsi128_si512(whole);
                // In every word `s` meets its first code, or its second.
                let even = _mm512_maskz_permutexvar_epi8(FIRST, channel, whole);
                let odd = _mm512_maskz_permutexvar_epi8(!FIRST, channel, whole);
                let raise = if SIGNED { source.raise(odd) } else { odd };
                for i in first..first + each {
                    let mut words = [even, odd].map(|s| _mm512_maddubs_epi16(bytes[i], s));
                    if SIGNED {
                        words = words.map(|word| _mm512_add_epi16(word, raise));
                    }
                    let to = to.add(i * 64);
                    _mm512_store_si512(to.cast(), words[0]);
                    _mm512_store_si512(to.add(TILE).cast(), words[1]);
                }
            }
        }
    }
}

impl Source {
    /// Unpacks step `step` of a superblock to its two tiles of bytes of those at `to`, and with the first one the factors.
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
                self.scales(block, scales);
            }
        }
    }

    /// Brings the factors of a superblock to f32.
    ///
    /// # Safety
    /// As for [`Source::step`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) unsafe fn scales(&self, block: usize, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let factors = factors(Avx512::promised(), self.levels.factor(block));
            _mm512_store_ps(to, factors[0]);
            _mm512_store_ps(to.add(LANES), factors[1]);
            let Some(offsets) = self.levels.offsets(block) else { return };
            let parts = if self.part == LANES { SUPERBLOCK / LANES } else { SUPERBLOCK / CHUNK };
            for part in 0..parts {
                let offset = offsets.of(block * SUPERBLOCK + part * self.part);
                _mm512_store_ps(to.add((2 + part) * LANES), offset);
            }
        }
    }

    /// The codes of a chunk.
    ///
    /// # Safety
    /// As for [`Half::unpack`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn bytes<C: Code>(&self, code: C, chunk: usize) -> [__m512i; VECTORS] {
        let at = chunk * C::BITS * 64;
        let past = at + self.ahead >= self.len;
        let ahead = if past { self.ahead + self.jump } else { self.ahead };
        // SAFETY: the caller's promise.
        unsafe { bytes(code, self.codes.add(at), ahead) }
    }

    /// What raises products with `s`, given in the second byte of every word, and takes from them what codes have too much.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn raise(&self, s: __m512i) -> __m512i {
        let down = _mm_cvtsi32_si128(8 - self.excess.unwrap_or(0) as i32);
        _mm512_sub_epi16(_mm512_set1_epi16(i16::MIN), _mm512_sra_epi16(s, down))
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
                let bytes = self.bytes(code, column / CHUNK);
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
