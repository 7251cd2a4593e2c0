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

mod few;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod unpack;
#[cfg(target_arch = "x86_64")]
mod wide;
#[cfg(target_arch = "x86_64")]
mod words;

pub(super) use few::Panel;
#[cfg(target_arch = "x86_64")]
pub(super) use product::{Nested, scratch_len};
#[cfg(target_arch = "x86_64")]
pub(super) use words::Words;

use super::super::isa::{Isa, LANES};
use super::code::DIGITS;
use super::whole::Whole;
use forerun_base::{Format, Nesting, SUPERBLOCK};

/// Columns of a step: a line of a tile.
pub(super) const STEP: usize = 64;
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

    /// Those at other planes.
    pub(super) fn turn_to(&mut self, [scales, offsets]: [*const u8; 2]) {
        self.scales = scales;
        self.offsets = self.offsets.map(|_| offsets);
    }

    /// Where the factors of a superblock are.
    #[inline(always)]
    fn factor_at(&self, block: usize) -> *const u8 {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.scales.wrapping_add(d * LANES)
    }

    /// Where the whole numbers `s` of the group of a column are.
    #[inline(always)]
    fn whole_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.scales.wrapping_add(s * LANES)
    }

    /// Where the factors of a superblock's offsets are, where there are some.
    #[inline(always)]
    fn offset_factor_at(&self, block: usize) -> Option<*const u8> {
        let [d, _] = self.nesting.place(block * self.nesting.groups());
        self.offsets.map(|plane| plane.wrapping_add(d * LANES))
    }

    /// Where the whole numbers of the offsets of the group of a column are, if there are any.
    #[inline(always)]
    fn offset_whole_at(&self, column: usize) -> *const u8 {
        let [_, s] = self.nesting.place(column >> self.group);
        self.offsets.unwrap_or(self.scales).wrapping_add(s * LANES)
    }

    /// Asks for a superblock of a plane, ahead of `at`.
    #[inline(always)]
    fn ask<S: Whole>(&self, simd: S, at: *const u8) {
        for line in 0..self.lines() {
            simd.floats().prefetch(at.wrapping_add(self.ahead + line * 64));
        }
    }

    /// Lines of a superblock.
    #[inline(always)]
    fn lines(&self) -> usize {
        if self.nesting.groups() > 8 { 5 } else { 3 }
    }
}

/// `65536·high + 256·middle + low` as `[high, low]` with 0 ≤ low < 65536.
#[inline(always)]
fn carry<S: Whole>(simd: S, [high, middle, low]: [S::W; DIGITS]) -> [S::W; 2] {
    let below = simd.up::<8>(simd.and(middle, simd.splat(0xff)));
    let low = simd.add(low, below);
    let high = simd.add(high, simd.down::<8>(middle));
    let high = simd.add(high, simd.down::<16>(low));
    [high, simd.and(low, simd.splat(0xffff))]
}

/// Adds an exact total to a sum; factors are those of both parts.
#[inline(always)]
fn add_total<S: Whole>(
    simd: S,
    sum: <S::Floats as Isa>::F,
    total: [S::W; 2],
    factors: [<S::Floats as Isa>::F; 2],
) -> <S::Floats as Isa>::F {
    let sum = simd.floats().fma(simd.float(total[0]), factors[0], sum);
    simd.floats().fma(simd.float(total[1]), factors[1], sum)
}

/// The factors of both parts of a total.
#[inline(always)]
fn factors<S: Isa>(simd: S, d: S::F) -> [S::F; 2] {
    [simd.mul(d, simd.splat(65536.0)), d]
}
