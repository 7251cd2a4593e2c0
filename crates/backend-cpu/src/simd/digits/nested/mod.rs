//! Weights with nested scales: superblocks of 256 columns, each summed exactly.
//!
//! # Math
//! A group's scale is `d · s` with a whole number `s`, so `w = s · c` is a whole number below 2¹⁵ and a superblock has one
//! factor. With the activations' numbers `n`, cut into three digits of a byte,
//!
//! ```text
//! total = Σ_k n[k] · w[k] = 65536 · high + low      whole numbers, exact; 0 ≤ low < 65536
//! sum ← sum + (65536 · d) · high
//! sum ← sum + d · low
//! sum ← sum + offset · Σ_k n[k]                     where there are offsets: parts of at most 32 columns in order
//! ```
//!
//! # Numerics
//! `high` and `low` are the same however `total` is made: vectors sum codes by groups and multiply by `s`, tiles multiply by the
//! two bytes of `w`. Superblocks are added in ascending order. No partial sum leaves 32 bits: 256 columns of `|w| < 2¹⁵`
//! times a digit stay below 2³⁰.

mod product;
mod tiles;
mod unpack;
mod vectors;
mod words;

pub(super) use product::{Nested, scratch_len};
pub(super) use vectors::Panel as Vectors;
pub(super) use words::Words;

use super::super::avx512::widen;
use super::super::isa::LANES;
use super::code::DIGITS;
use forerun_base::{Format, Nesting, SUPERBLOCK, ScaleType};
use std::arch::x86_64::*;

/// Columns of a step: a line of a tile.
pub(super) const STEP: usize = 64;
/// Steps of a superblock.
const STEPS: usize = SUPERBLOCK / STEP;
/// How far ahead of its use a scale is asked for where panels come one after the other.
const AHEAD: usize = 1024;

/// Scales and offsets of a panel: lines of sixteen halves and sixteen bytes.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    nesting: Nesting,
    scales: *const u8,
    /// Where the format has offsets.
    offsets: Option<*const u8>,
    /// Columns of a group, as a power of two.
    group: u32,
    /// How far ahead of its use a scale is asked for.
    ahead: usize,
}

impl Levels {
    /// Scales and offsets at `planes`.
    pub(super) fn new(format: Format, [scales, offsets]: [*const u8; 2]) -> Self {
        let Format::Grouped { group, offset, .. } = format else {
            unreachable!("dense numbers have no scales")
        };
        let offsets = offset.then_some(offsets);
        let nesting = Nesting::new(group);
        // A division would come before every load of a scale.
        let group = (SUPERBLOCK / nesting.groups()).ilog2();
        Self { nesting, scales, offsets, group, ahead: AHEAD }
    }

    /// The same, asking for scales `ahead` bytes before their use.
    fn asking(self, ahead: usize) -> Self {
        Self { ahead, ..self }
    }

    /// Where the factors of a superblock are.
    #[inline(always)]
    pub(super) fn factor_at(&self, block: usize) -> *const u8 {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.scales.wrapping_add(d * LANES)
    }

    /// Where the whole numbers `s` of the group of a column are.
    #[inline(always)]
    pub(super) fn whole_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.scales.wrapping_add(s * LANES)
    }

    /// Where the factors of a superblock's offsets are, where there are some.
    #[inline(always)]
    pub(super) fn offset_factor_at(&self, block: usize) -> Option<*const u8> {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.offsets.map(|plane| plane.wrapping_add(d * LANES))
    }

    /// Where the whole numbers of the offsets of the group of a column are, if there are any.
    #[inline(always)]
    pub(super) fn offset_whole_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.offsets.unwrap_or(self.scales).wrapping_add(s * LANES)
    }

    /// The factor of a superblock.
    ///
    /// # Safety
    /// The instructions of [`super::Units`]; the superblock is one of the panel's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn factor(&self, block: usize) -> __m512 {
        let at = self.factor_at(block);
        // SAFETY: the caller's promise.
        unsafe {
            self.ask(at);
            widen(ScaleType::F16, at)
        }
    }

    /// Asks for a superblock of a plane, ahead of `at`.
    #[inline(always)]
    fn ask(&self, at: *const u8) {
        let lines = if self.nesting.groups() > 8 { 5 } else { 3 };
        for line in 0..lines {
            // SAFETY: a prefetch may point anywhere.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(self.ahead + line * 64).cast());
            }
        }
    }

    /// The whole numbers `s` of the group of a column.
    ///
    /// # Safety
    /// As for [`Levels::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn whole(&self, column: usize) -> __m128i {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_si128(self.whole_at(column).cast()) }
    }

    /// The offsets of a superblock, where there are some.
    ///
    /// # Safety
    /// As for [`Levels::factor`].
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn offsets(&self, block: usize) -> Option<Offsets<'_>> {
        let at = self.offset_factor_at(block)?;
        self.ask(at);
        // SAFETY: the caller's promise.
        let factor = unsafe { widen(ScaleType::F16, at) };
        Some(Offsets { levels: self, factor })
    }
}

/// The offsets of a superblock.
struct Offsets<'a> {
    levels: &'a Levels,
    factor: __m512,
}

impl Offsets<'_> {
    /// Those of the group of a column.
    ///
    /// # Safety
    /// As for [`Levels::factor`]; the column is one of the superblock's.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn of(&self, column: usize) -> __m512 {
        let s = self.levels.offset_whole_at(column);
        // SAFETY: the caller's promise.
        let s = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(s.cast())) };
        _mm512_mul_ps(self.factor, _mm512_cvtepi32_ps(s))
    }
}

/// `65536·high + 256·middle + low` as `[high, low]` with 0 ≤ low < 65536.
///
/// # Safety
/// The instructions of [`super::Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn carry([high, middle, low]: [__m512i; DIGITS]) -> [__m512i; 2] {
    let below = _mm512_srli_epi32::<16>(_mm512_slli_epi32::<24>(middle));
    let low = _mm512_add_epi32(low, below);
    let high = _mm512_add_epi32(high, _mm512_srai_epi32::<8>(middle));
    let high = _mm512_add_epi32(high, _mm512_srai_epi32::<16>(low));
    [high, _mm512_and_si512(low, _mm512_set1_epi32(0xffff))]
}

/// Adds an exact total to a sum; factors are those of both parts.
///
/// # Safety
/// The instructions of [`super::Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn add_total(sum: __m512, total: [__m512i; 2], factors: [__m512; 2]) -> __m512 {
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[0]), factors[0], sum);
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(total[1]), factors[1], sum)
}

/// The factors of both parts of a total.
///
/// # Safety
/// The instructions of [`super::Units`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn factors(d: __m512) -> [__m512; 2] {
    [_mm512_mul_ps(d, _mm512_set1_ps(65536.0)), d]
}
