//! Codes of a panel times their groups' whole numbers, as two bytes each.
//!
//! # Layout
//! A step of 64 columns is a tile of the high bytes, which have a sign, and then one of the low bytes, which have none:
//! `w = 256·high + low`. Or it is a tile of the words of even columns and then one of the odd columns, raised by 2¹⁵
//! where they have a sign. Factors of a superblock are lines of sixteen f32: those of a total's parts, then the offsets
//! of each part.

use crate::gemm::amx::int8::bytes::bytes;
use crate::gemm::int8::code::Code;
use crate::gemm::int8::isa::ops::VECTORS;
use crate::gemm::int8::k_quant::{NestedScales, STEP, factors};
use crate::gemm::int8::layout::CHUNK;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use forerun_base::SUPERBLOCK;
use std::arch::x86_64::*;

/// Bytes of a tile of weights.
pub(crate) const TILE: usize = 1024;
/// f32 of a superblock's factors: parts have sixteen columns at least.
pub(crate) const FACTORS: usize = (2 + SUPERBLOCK / LANES) * LANES;

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
pub(crate) struct PanelSource {
    pub(crate) codes: *const u8,
    pub(crate) levels: NestedScales,
    /// What every stored code has too much, as a power of two.
    pub(crate) zero_point_log2: Option<u32>,
    /// Columns of a sum: 16 or 32.
    pub(crate) segment: usize,
    /// Bytes of the codes, how far ahead of its use a code is asked for, and what is left out where that goes past
    /// them.
    pub(crate) len: usize,
    pub(crate) prefetch_bytes: usize,
    pub(crate) jump: usize,
}

/// A step of 64 columns in a superblock.
#[derive(Clone, Copy)]
pub(crate) struct BlockStep {
    pub(crate) block: usize,
    pub(crate) step: usize,
}

/// Unpacks words.
pub(crate) trait UnpackWords {
    /// Unpacks a chunk to its half of two tiles of words, even columns and odd ones.
    ///
    /// # Safety
    /// The instructions of [`crate::gemm::int8::Int8Gemm`]; the chunk is one of the panel's; room for two tiles at
    /// `to`.
    unsafe fn unpack(&self, source: &PanelSource, chunk: usize, to: *mut u8);
}

/// Words of codes that have a sign or not, in parts of 16 columns or of 32.
struct PackedWords<C, const SIGNED: bool, const SMALL: bool>(C);

/// Finds who unpacks words of `code`.
pub(crate) fn with_unpack_words<C: Code>(
    code: C,
    signed: bool,
    segment: usize,
    work: impl FnOnce(&dyn UnpackWords),
) {
    match (signed, segment < CHUNK) {
        (true, true) => work(&PackedWords::<C, true, true>(code)),
        (true, false) => work(&PackedWords::<C, true, false>(code)),
        (false, true) => work(&PackedWords::<C, false, true>(code)),
        (false, false) => work(&PackedWords::<C, false, false>(code)),
    }
}

impl<C: Code, const SIGNED: bool, const SMALL: bool> UnpackWords for PackedWords<C, SIGNED, SMALL> {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn unpack(&self, source: &PanelSource, chunk: usize, to: *mut u8) {
        let to = to.wrapping_add(chunk % 2 * VECTORS * 64);
        // SAFETY: the caller's promise; 64 bytes of channels.
        unsafe {
            let channel = _mm512_loadu_si512(CHANNELS.as_ptr().cast());
            let bytes = source.bytes(self.0, chunk);
            let each = if SMALL { VECTORS / 2 } else { VECTORS };
            for first in (0..VECTORS).step_by(each) {
                let whole = source.levels.s(chunk * CHUNK + first * 4);
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

impl PanelSource {
    /// Unpacks step `step` of a superblock to its two tiles of bytes of those at `to`, and with the first one the
    /// factors.
    ///
    /// # Safety
    /// The instructions of [`crate::gemm::int8::Int8Gemm`]; the superblock is one of the panel's; room for its tiles
    /// and for [`FACTORS`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn step<C: Code>(
        &self,
        code: C,
        at: BlockStep,
        (to, scales): (*mut u8, *mut f32),
    ) {
        let BlockStep { block, step } = at;
        let to = to.wrapping_add(step * 2 * TILE);
        // SAFETY: the caller's promise.
        unsafe {
            match self.zero_point_log2 {
                Some(zero_point_log2) => self.tiles::<C, true>(code, at, zero_point_log2, to),
                None => self.tiles::<C, false>(code, at, 0, to),
            }
            if step == 0 {
                self.scales(block, scales);
            }
        }
    }

    /// Brings the factors of a superblock to f32.
    ///
    /// # Safety
    /// As for [`PanelSource::step`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn scales(&self, block: usize, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let factors = factors(Avx512::new_unchecked(), self.levels.d(block));
            _mm512_store_ps(to, factors[0]);
            _mm512_store_ps(to.add(LANES), factors[1]);
            let Some(offsets) = self.levels.offsets(block) else { return };
            let segments =
                if self.segment == LANES { SUPERBLOCK / LANES } else { SUPERBLOCK / CHUNK };
            for segment in 0..segments {
                let offset = offsets.of(block * SUPERBLOCK + segment * self.segment);
                _mm512_store_ps(to.add((2 + segment) * LANES), offset);
            }
        }
    }

    /// The codes of a chunk.
    ///
    /// # Safety
    /// As for [`UnpackWords::unpack`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn bytes<C: Code>(&self, code: C, chunk: usize) -> [__m512i; VECTORS] {
        let at = chunk * C::BITS * 64;
        let past = at + self.prefetch_bytes >= self.len;
        let prefetch_bytes =
            if past { self.prefetch_bytes + self.jump } else { self.prefetch_bytes };
        // SAFETY: the caller's promise.
        unsafe { bytes(code, self.codes.add(at), prefetch_bytes) }
    }

    /// What raises products with `s`, given in the second byte of every word, and takes from them what codes have too
    /// much.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn raise(&self, s: __m512i) -> __m512i {
        let down = _mm_cvtsi32_si128(8 - self.zero_point_log2.unwrap_or(0) as i32);
        _mm512_sub_epi16(_mm512_set1_epi16(i16::MIN), _mm512_sra_epi16(s, down))
    }

    /// # Safety
    /// As for [`PanelSource::step`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn tiles<C: Code, const SIGNED: bool>(
        &self,
        code: C,
        at: BlockStep,
        zero_point_log2: u32,
        to: *mut u8,
    ) {
        let down = _mm_cvtsi32_si128(8 - zero_point_log2 as i32);
        let byte = _mm512_set1_epi16(0xff);
        for half in 0..STEP / CHUNK {
            let column = at.block * SUPERBLOCK + at.step * STEP + half * CHUNK;
            // SAFETY: the caller's promise.
            unsafe {
                let bytes = self.bytes(code, column / CHUNK);
                for i in 0..VECTORS {
                    let s = self.levels.s(column + i / 4 * LANES);
                    // In every word `s` meets its first code, or its second: products of a code and nothing else.
                    let s = _mm512_cvtepu8_epi32(s);
                    let first = _mm512_or_si512(s, _mm512_slli_epi32::<16>(s));
                    let second = _mm512_slli_epi16::<8>(first);
                    let mut even = _mm512_maddubs_epi16(bytes[i], first);
                    let mut odd = _mm512_maddubs_epi16(bytes[i], second);
                    if SIGNED {
                        let zero_point_log2 = _mm512_sra_epi16(second, down);
                        even = _mm512_sub_epi16(even, zero_point_log2);
                        odd = _mm512_sub_epi16(odd, zero_point_log2);
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
