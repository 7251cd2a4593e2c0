//! The key/value cache: where numbers lie, and what is stored of them.

use crate::OpDesc;
use forerun_base::{bf16_to_f32, f32_to_bf16};

/// Shape of one layer's cache: `[blocks, kv_heads]` parts of a block's keys, or values, in an order that the device
/// chooses ([`CacheOrder`]).
///
/// # Codes
/// A cache of codes is a buffer of bytes. [`CacheLayout::GROUP`] elements of a key or value, the last ones of a head
/// perhaps fewer, share a scale (see [`encode`]). A head's part of a block is its codes in the order above, then its
/// scales `[group, block]`, bfloat16 with the low byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Blocks in the pool.
    pub blocks: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Positions in a block.
    pub block: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Whether numbers are codes with scales, in buffers of I8; else they are floats.
    pub coded: bool,
    /// How a part's elements lie.
    pub order: CacheOrder,
}

/// How the elements of a head's part of a block lie in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheOrder {
    /// Keys `[head_dim, block]`, values `[block, head_dim]`: what lies side by side is what attention computes side by
    /// side, the scores of a block's keys and the elements of a mixed value.
    #[default]
    Transposed,
    /// Keys and values `[head_dim / 64, block, 64]`, where the eight runs of eight elements of position `p` are
    /// exchanged: run `r` lies at `r ^ (p mod 8)`. So 128 bytes of 16-bit numbers are read by columns without a bank
    /// conflict, and it is the order in which a tensor core reads them from shared memory. Heads of other widths are
    /// `[block, head_dim]`.
    Swizzled,
}

impl CacheLayout {
    /// No cache at all.
    pub const NONE: Self = Self {
        blocks: 0,
        kv_heads: 0,
        block: 1,
        head_dim: 0,
        coded: false,
        order: CacheOrder::Transposed,
    };

    /// Elements that share a scale.
    pub const GROUP: usize = 32;

    /// Groups of a key or value.
    pub const fn groups(&self) -> usize {
        self.head_dim.div_ceil(Self::GROUP)
    }

    /// Elements that a head's key or value takes in its buffer.
    pub const fn stored(&self) -> usize {
        self.head_dim + if self.coded { 2 * self.groups() } else { 0 }
    }

    /// Elements of one cache buffer.
    pub const fn len(&self) -> usize {
        self.blocks * self.kv_heads * self.block * self.stored()
    }

    /// First element of a head's part of block `id`, in either cache.
    pub const fn part(&self, id: usize, head: usize) -> usize {
        (id * self.kv_heads + head) * self.block * self.stored()
    }

    /// Element `element` of the key at place `at` of block `id`.
    pub const fn key(&self, id: usize, head: usize, at: usize, element: usize) -> usize {
        let part = self.part(id, head);
        match self.order {
            CacheOrder::Transposed => part + element * self.block + at,
            CacheOrder::Swizzled => part + self.swizzled(at, element),
        }
    }

    /// Element `element` of the value at place `at` of block `id`.
    pub const fn value(&self, id: usize, head: usize, at: usize, element: usize) -> usize {
        let part = self.part(id, head);
        match self.order {
            CacheOrder::Transposed => part + at * self.head_dim + element,
            CacheOrder::Swizzled => part + self.swizzled(at, element),
        }
    }

    const fn swizzled(&self, at: usize, element: usize) -> usize {
        if !self.head_dim.is_multiple_of(64) {
            return at * self.head_dim + element;
        }
        let run = (element % 64 / 8) ^ (at % 8);
        (element / 64 * self.block + at) * 64 + run * 8 + element % 8
    }

    /// First of the scales in a part.
    pub const fn scales(&self) -> usize {
        self.block * self.head_dim
    }

    /// First byte of the scale of group `group` of the key or value at place `at`.
    pub const fn scale(&self, id: usize, head: usize, at: usize, group: usize) -> usize {
        self.part(id, head) + self.scales() + 2 * (group * self.block + at)
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { kv_heads, block, head_dim, order, .. } = *self;
        desc.require(order == desc.cache_order(), "caches in an order that is not the device's");
        desc.require(
            kv_heads > 0 && block > 0 && head_dim > 0,
            "heads, block and head width must not be zero",
        );
    }

    /// Whether the pool holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The scale of a group in a cache of codes, and what its numbers are multiplied by to become codes: each is the
/// nearest integer then, ties to even ([`code`]).
///
/// # Numerics
/// The scale is bfloat16, `max|x| / 127` rounded to nearest. A code is at most 127 then, and code times scale is exact
/// in f32. Where a number is not finite, the scale is not either, whatever the codes.
#[inline(always)]
pub fn encode(numbers: &[f32]) -> (u16, f32) {
    let most = numbers.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
    let bits = f32_to_bf16(f32::from_bits(most) / 127.0);
    let scale = bf16_to_f32(bits);
    // Below this the inverse overflows; such numbers are as good as zero.
    if scale < f32::MIN_POSITIVE { (0, 0.0) } else { (bits, 1.0 / scale) }
}

/// The code of a number, with what [`encode`] gave for its group.
#[inline(always)]
pub fn code(x: f32, inverse: f32) -> i8 {
    (x * inverse).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(order: CacheOrder) -> CacheLayout {
        CacheLayout { blocks: 3, kv_heads: 2, block: 5, head_dim: 4, coded: false, order }
    }

    #[test]
    fn swizzled_keys_and_values_fill_their_caches_and_runs_of_a_column_lie_apart() {
        for head_dim in [40, 64, 192] {
            let layout = CacheLayout { head_dim, ..small(CacheOrder::Swizzled) };
            let mut taken = vec![0; layout.len()];
            for (id, head) in (0..layout.blocks).flat_map(|id| [(id, 0), (id, 1)]) {
                for at in 0..layout.block {
                    for element in 0..head_dim {
                        let place = layout.key(id, head, at, element);
                        assert_eq!(place, layout.value(id, head, at, element));
                        taken[place] += 1;
                    }
                }
            }
            assert!(taken.iter().all(|&count| count == 1), "{head_dim}");
        }
        let layout = CacheLayout { block: 64, head_dim: 128, ..small(CacheOrder::Swizzled) };
        let runs: Vec<usize> = (0..8).map(|at| layout.key(0, 0, at, 72) % 64 / 8).collect();
        assert_eq!(runs, [1, 0, 3, 2, 5, 4, 7, 6]);
    }

    #[test]
    fn keys_and_values_fill_their_caches_each_in_its_own_order() {
        let layout = small(CacheOrder::Transposed);
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for id in 0..layout.blocks {
            for head in 0..layout.kv_heads {
                for at in 0..layout.block {
                    for element in 0..layout.head_dim {
                        keys.push(layout.key(id, head, at, element));
                        values.push(layout.value(id, head, at, element));
                    }
                }
            }
        }
        assert!(values.iter().copied().eq(0..layout.len()));
        assert_eq!(keys[..6], [0, 5, 10, 15, 1, 6]);
        keys.sort_unstable();
        assert_eq!(keys, values);
    }

    #[test]
    fn codes_and_scales_fill_their_caches_without_meeting() {
        let layout = CacheLayout { head_dim: 40, coded: true, ..small(CacheOrder::Transposed) };
        let mut taken = [vec![0; layout.len()], vec![0; layout.len()]];
        for (id, head) in (0..layout.blocks).flat_map(|id| [(id, 0), (id, 1)]) {
            for at in 0..layout.block {
                for i in 0..layout.head_dim {
                    taken[0][layout.key(id, head, at, i)] += 1;
                    taken[1][layout.value(id, head, at, i)] += 1;
                }
                for group in 0..layout.groups() {
                    for byte in 0..2 {
                        taken[0][layout.scale(id, head, at, group) + byte] += 1;
                        taken[1][layout.scale(id, head, at, group) + byte] += 1;
                    }
                }
            }
        }
        assert!(taken.iter().flatten().all(|&count| count == 1));
    }

    #[test]
    fn codes_fit_a_byte_and_are_near_whatever_the_size_of_numbers() {
        for exponent in -126..127 {
            for most in [1.0, 1.003, 1.33, 1.999] {
                let most = most * 2.0_f32.powi(exponent);
                let numbers = [0.3 * most, -most, 0.0, most / 300.0];
                let (bits, inverse) = encode(&numbers);
                for x in numbers {
                    let back = f32::from(code(x, inverse)) * bf16_to_f32(bits);
                    assert!((x * inverse).abs() < 127.5, "{x:e} of {most:e}");
                    // Half a step, which is rounded; nothing is left where all is nearly zero.
                    let limit = if bits == 0 { most } else { 0.51 * most / 126.0 };
                    assert!((back - x).abs() <= limit, "{x:e} of {most:e} is {back:e}");
                }
            }
        }
        assert_eq!(encode(&[0.0; 5]), (0, 0.0));
        assert_eq!(encode(&[]), (0, 0.0));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (bits, _) = encode(&[1.0, odd]);
            assert!(!bf16_to_f32(bits).is_finite(), "{odd}");
        }
    }
}
