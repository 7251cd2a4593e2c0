//! K-quants: weights with nested scales, in superblocks of 256 columns, each summed exactly.
//!
//! # Math
//! A group's scale is `d · s` with an integer sub-scale `s`, so `w = s · c` is an integer below 2¹⁵ and a superblock
//! has a single float `d`. With the activations' integers `n`, cut into three limbs,
//!
//! ```text
//! total = Σ_k n[k] · w[k] = 65536 · high + low      integers, exact; 0 ≤ low < 65536
//! sum ← sum + (65536 · d) · high
//! sum ← sum + d · low
//! sum ← sum + offset · Σ_k n[k]                     where there are offsets: parts of at most 32 columns in order
//! ```
//!
//! # Numerics
//! `high` and `low` are the same however `total` is made: vectors sum codes by groups and multiply by `s`, AMX
//! multiplies by the two bytes of `w`. Superblocks are added in ascending order. No partial sum overflows 32 bits: 256
//! columns of `|w| < 2¹⁵` times a limb stay below 2³⁰.

mod gemv;

pub(crate) use gemv::KQuantGemv;

use crate::gemm::int8::code::LIMBS;
use crate::gemm::int8::isa::Int8Isa;
use crate::simd::isa::{Isa, LANES};
use forerun_base::{Format, Nesting, SUPERBLOCK};

/// Columns of a step: one row of an AMX tile.
pub(crate) const STEP: usize = 64;
/// How far ahead scales are prefetched where panels come one after the other.
const PREFETCH_BYTES: usize = 1024;

/// The two levels of scales and offsets of a panel: for each superblock a line of sixteen f16 `d`, then a line of
/// sixteen i8 sub-scales for each group.
#[derive(Clone, Copy)]
pub(crate) struct NestedScales {
    pub(crate) nesting: Nesting,
    pub(crate) scales: *const u8,
    /// Where they lie, if the format has offsets.
    pub(crate) offsets: Option<*const u8>,
    /// Columns of a group, as a power of two.
    pub(crate) group: u32,
    /// How far ahead scales are prefetched where panels come one after the other.
    pub(crate) prefetch_bytes: usize,
}

impl NestedScales {
    /// Scales and offsets at `planes`.
    pub(crate) fn new(format: Format, [scales, offsets]: [*const u8; 2]) -> Self {
        let Format::Grouped { group, offset, .. } = format else {
            unreachable!("dense numbers have no scales")
        };
        let offsets = offset.then_some(offsets);
        let nesting = Nesting::new(group);
        // A shift, since a division would delay every load of a scale.
        let group = (SUPERBLOCK / nesting.groups()).ilog2();
        Self { nesting, scales, offsets, group, prefetch_bytes: PREFETCH_BYTES }
    }

    /// Goes on with another panel.
    pub(crate) fn set_panel(&mut self, [scales, offsets]: [*const u8; 2]) {
        self.scales = scales;
        self.offsets = self.offsets.map(|_| offsets);
    }

    /// Where the sixteen `d` of a superblock are.
    #[inline(always)]
    pub(crate) fn d_at(&self, block: usize) -> *const u8 {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.scales.wrapping_add(d * LANES)
    }

    /// Where the sixteen sub-scales of the group of a column are.
    #[inline(always)]
    pub(crate) fn s_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.scales.wrapping_add(s * LANES)
    }

    /// Where the sixteen `d` of a superblock's offsets are, if the format has offsets.
    #[inline(always)]
    pub(crate) fn offset_d_at(&self, block: usize) -> Option<*const u8> {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.offsets.map(|plane| plane.wrapping_add(d * LANES))
    }

    /// Where the sixteen sub-scales of the offsets of a column's group are; meaningless if the format has none.
    #[inline(always)]
    pub(crate) fn offset_s_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.offsets.unwrap_or(self.scales).wrapping_add(s * LANES)
    }

    /// Prefetches a superblock's scales, as far ahead of `at` as the field says.
    #[inline(always)]
    pub(crate) fn prefetch_scales<S: Int8Isa>(&self, simd: S, at: *const u8) {
        for line in 0..self.lines() {
            simd.f32().prefetch(at.wrapping_add(self.prefetch_bytes + line * 64));
        }
    }

    /// Cache lines of a superblock's scales.
    #[inline(always)]
    pub(crate) fn lines(&self) -> usize {
        if self.nesting.groups() > 8 { 5 } else { 3 }
    }
}

/// `65536·high + 256·middle + low` as `[high, low]` with 0 ≤ low < 65536.
#[inline(always)]
pub(crate) fn carry<S: Int8Isa>(simd: S, [high, middle, low]: [S::W; LIMBS]) -> [S::W; 2] {
    let below = simd.shl::<8>(simd.and(middle, simd.splat(0xff)));
    let low = simd.add(low, below);
    let high = simd.add(high, simd.shr::<8>(middle));
    let high = simd.add(high, simd.shr::<16>(low));
    [high, simd.and(low, simd.splat(0xffff))]
}

/// Adds an exact total to a sum, by the factors of its two parts.
#[inline(always)]
pub(crate) fn add_total<S: Int8Isa>(
    simd: S,
    sum: <S::F32 as Isa>::F,
    total: [S::W; 2],
    factors: [<S::F32 as Isa>::F; 2],
) -> <S::F32 as Isa>::F {
    let sum = simd.f32().fma(simd.to_f32(total[0]), factors[0], sum);
    simd.f32().fma(simd.to_f32(total[1]), factors[1], sum)
}

/// The factors of the two parts of a total.
#[inline(always)]
pub(crate) fn factors<S: Isa>(simd: S, d: S::F) -> [S::F; 2] {
    [simd.mul(d, simd.splat(65536.0)), d]
}
