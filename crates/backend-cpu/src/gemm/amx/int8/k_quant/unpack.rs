//! Unpacks codes of a panel times their sub-scales, as 16-bit words.
//!
//! # Layout
//! A step of 64 columns is a tile of the high bytes, which are signed, and then one of the low bytes, which are not: `w
//! = 256·high + low`. For small batches it is a tile of the words of even columns and then one of the odd columns,
//! raised by 2¹⁵ if codes have a zero point. Factors of a superblock are lines of sixteen f32: those of the two parts
//! of a total, then the offset of each segment.

use crate::gemm::amx::int8::unpack_bytes;
use crate::gemm::decode::scales_at;
use crate::gemm::int8::code::Code;
use crate::gemm::int8::isa::VECTORS;
use crate::gemm::int8::k_quant::{NestedScales, STEP, factors};
use crate::gemm::int8::layout::CHUNK;
use crate::simd::avx512::Avx512;
use crate::simd::isa::LANES;
use forerun_base::{SUPERBLOCK, ScaleType};
use std::arch::x86_64::*;

/// Bytes of a tile of weights.
pub(crate) const TILE: usize = 1024;
/// f32 of a superblock's factors: segments have at least sixteen columns.
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
    /// Zero point of stored codes, as a power of two.
    pub(crate) zero_point_log2: Option<u32>,
    /// Columns of a segment: 16 or 32.
    pub(crate) segment: usize,
    /// Bytes of the codes; how far ahead they are prefetched; and what is skipped where that leaves the panel.
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

/// Unpacks 16-bit words.
pub(crate) trait UnpackWords {
    /// Unpacks a chunk to its half of two tiles of words, even columns and odd ones.
    ///
    /// # Safety
    /// AVX-512 VNNI and VBMI are there; `chunk` is one of the panel's, whose planes are readable; `to` is writable for
    /// two tiles and 64-byte aligned.
    unsafe fn unpack(&self, source: &PanelSource, chunk: usize, to: *mut u8);
}

/// Words of codes with a zero point or without, in segments of 16 columns or of 32.
struct PackedWords<C, const SIGNED: bool, const SMALL: bool>(C);

/// Calls `work` with what unpacks words of `code`.
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
        // SAFETY: the chunk is readable and the lines are in the two tiles (contract of the trait); `CHANNELS` is 64
        // bytes.
        unsafe {
            let channel = _mm512_loadu_si512(CHANNELS.as_ptr().cast());
            let bytes = source.bytes(self.0, chunk);
            let each = if SMALL { VECTORS / 2 } else { VECTORS };
            for first in (0..VECTORS).step_by(each) {
                let whole = source.levels.s(chunk * CHUNK + first * 4);
                let whole = _mm512_castsi128_si512(whole);
                // `vpmaddubsw` sums a pair; a zero beside `s` selects the first or the second code.
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
    /// Unpacks a step of a superblock to its two tiles of bytes among those at `to`, and with the first step the
    /// factors.
    ///
    /// # Safety
    /// AVX-512 VNNI and VBMI are there; the superblock is one of the panel's, whose planes are readable; `to` is
    /// writable for its tiles and `scales` for [`FACTORS`] f32, both 64-byte aligned.
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
        // SAFETY: the superblock is the panel's and `to` is writable for its tiles (contract above), two for each step.
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

    /// Widens the factors of a superblock to f32.
    ///
    /// # Safety
    /// As for [`PanelSource::step`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn scales(&self, block: usize, to: *mut f32) {
        // SAFETY: the superblock is the panel's, and `to` has room for `FACTORS` (contract above).
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
        // SAFETY: the chunk is the panel's (contract above).
        unsafe { unpack_bytes(code, self.codes.add(at), prefetch_bytes) }
    }

    /// What raises products with `s`, given in the second byte of every word, by 2¹⁵ and subtracts the zero point's
    /// share.
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
            // SAFETY: the column is in the superblock, and lines are in the step's two tiles (contract above).
            unsafe {
                let bytes = self.bytes(code, column / CHUNK);
                for i in 0..VECTORS {
                    let s = self.levels.s(column + i / 4 * LANES);
                    // A zero beside `s` selects the first or the second code of every word.
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
                    // 0xca selects bits: of the first operand where `byte` is set, else of the second.
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

/// Steps of a superblock.
pub(crate) const STEPS: usize = SUPERBLOCK / STEP;

impl NestedScales {
    /// The same with another prefetch distance.
    pub(crate) fn with_prefetch(self, prefetch_bytes: usize) -> Self {
        Self { prefetch_bytes, ..self }
    }

    /// The `d` of a superblock, widened.
    ///
    /// # Safety
    /// AVX-512 F, BW, DQ and VL are there; the superblock is one of the panel's, whose planes are readable.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn d(&self, block: usize) -> __m512 {
        let at = self.d_at(block);
        // SAFETY: sixteen f16 are readable there (contract above); a prefetch may point anywhere.
        unsafe {
            self.prefetch_scales_l1(at);
            scales_at(Avx512::new_unchecked(), ScaleType::F16, at)
        }
    }

    /// Prefetches a superblock's scales into L1.
    #[inline(always)]
    fn prefetch_scales_l1(&self, at: *const u8) {
        for line in 0..self.lines() {
            // SAFETY: a prefetch may point anywhere.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(
                    at.wrapping_add(self.prefetch_bytes + line * 64).cast(),
                );
            }
        }
    }

    /// The sub-scales of the group of a column.
    ///
    /// # Safety
    /// As for [`NestedScales::d`], for the superblock of the argument.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn s(&self, column: usize) -> __m128i {
        // SAFETY: sixteen sub-scales are readable there (contract above).
        unsafe { _mm_loadu_si128(self.s_at(column).cast()) }
    }

    /// The offsets of a superblock, if the format has some.
    ///
    /// # Safety
    /// As for [`NestedScales::d`], for the superblock of the argument.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn offsets(&self, block: usize) -> Option<NestedOffsets<'_>> {
        let at = self.offset_d_at(block)?;
        self.prefetch_scales_l1(at);
        // SAFETY: sixteen f16 are readable there (contract above).
        let factor = unsafe { scales_at(Avx512::new_unchecked(), ScaleType::F16, at) };
        Some(NestedOffsets { levels: self, factor })
    }
}

/// The offsets of a superblock.
pub(crate) struct NestedOffsets<'a> {
    levels: &'a NestedScales,
    factor: __m512,
}

impl NestedOffsets<'_> {
    /// The offsets of the group of a column.
    ///
    /// # Safety
    /// As for [`NestedScales::d`]; the column is in the superblock.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(crate) unsafe fn of(&self, column: usize) -> __m512 {
        let s = self.levels.offset_s_at(column);
        // SAFETY: sixteen sub-scales are readable there (contract above).
        let s = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(s.cast())) };
        _mm512_mul_ps(self.factor, _mm512_cvtepi32_ps(s))
    }
}
