//! Writing keys and values to the cache.
//!
//! # Layout
//! The elements of a value are adjacent, those of a key `block` apart. Consecutive rows of a block, as those of a
//! prompt are, are written up to sixteen at a time, so that stores cover sixteen adjacent numbers either way.

use super::isa::{Isa, Kernel, LANES};
use crate::BufferStorage;
use crate::pool::SharedSlice;
use forerun_backend::op::{CacheLayout, code, encode};

/// An element type of the cache.
trait Narrow {
    type Stored: Copy + Default;

    /// # Safety
    /// `at` is writable for sixteen elements.
    unsafe fn store<S: Isa>(simd: S, at: *mut Self::Stored, a: S::F);
}

macro_rules! narrow {
    ($name:ident, $stored:ty, $store:ident) => {
        struct $name;

        impl Narrow for $name {
            type Stored = $stored;
            #[inline(always)]
            unsafe fn store<S: Isa>(simd: S, at: *mut $stored, a: S::F) {
                // SAFETY: sixteen elements are writable at `at` (contract of the trait).
                unsafe { simd.$store(at, a) }
            }
        }
    };
}

narrow!(F32, f32, store);
narrow!(F16, u16, store_f16);
narrow!(Bf16, u16, store_bf16);

/// A cache that tasks write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) enum CacheSink<'a> {
    F32(SharedSlice<'a, f32>),
    F16(SharedSlice<'a, u16>),
    Bf16(SharedSlice<'a, u16>),
    Codes(SharedSlice<'a, u8>),
}

impl<'a> CacheSink<'a> {
    pub(crate) fn new(storage: &'a mut BufferStorage) -> Self {
        match storage {
            BufferStorage::F32(v) => Self::F32(SharedSlice::new(v)),
            BufferStorage::F16(v) => Self::F16(SharedSlice::new(v)),
            BufferStorage::BF16(v) => Self::Bf16(SharedSlice::new(v)),
            BufferStorage::I8(v) => Self::Codes(SharedSlice::new(v)),
            BufferStorage::U32(_) => unreachable!("the desc refused a cache of indices"),
        }
    }

    /// Stores some rows' vectors, from place `to.at` on, in the part of the cache that begins at `start`.
    ///
    /// # Safety
    /// No other reference covers the part of this head and block while this runs.
    pub(crate) unsafe fn put<S: Isa>(
        &self,
        simd: S,
        start: usize,
        rows: HeadRows<'_>,
        to: BlockSlots,
    ) {
        let strides = to.strides();
        let at = start + to.at * strides[1];
        let span = (rows.dim - 1) * strides[0] + (rows.count - 1) * strides[1] + 1;
        // SAFETY: all ranges are inside the part, which is this thread's (contract above).
        unsafe {
            match self {
                Self::F32(all) => {
                    simd.call(Put::<F32> { rows, to: all.part(at, span), strides });
                }
                Self::F16(all) => {
                    simd.call(Put::<F16> { rows, to: all.part(at, span), strides });
                }
                Self::Bf16(all) => {
                    simd.call(Put::<Bf16> { rows, to: all.part(at, span), strides });
                }
                Self::Codes(all) => {
                    let part = all.part(start, to.layout.block * to.layout.stored());
                    simd.call(PutCodes { rows, part, to });
                }
            }
        }
    }
}

/// Consecutive places in a head's part of a block, from `at` on.
#[derive(Clone, Copy)]
pub(crate) struct BlockSlots {
    pub(crate) layout: CacheLayout,
    /// Whether these are keys, whose places are adjacent, or values, whose elements are.
    pub(crate) keys: bool,
    pub(crate) at: usize,
}

impl BlockSlots {
    /// From one element to the next, from one place to the next: one of them is 1.
    fn strides(&self) -> [usize; 2] {
        if self.keys { [self.layout.block, 1] } else { [1, self.layout.head_dim] }
    }
}

/// Vectors of one head: `count` of `dim` numbers, `width` from one to the next.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub(crate) from: &'a [f32],
    pub(crate) dim: usize,
    pub(crate) width: usize,
    /// From one to sixteen.
    pub(crate) count: usize,
}

/// Writes some rows to their places.
struct Put<'a, N: Narrow> {
    rows: HeadRows<'a>,
    to: &'a mut [N::Stored],
    /// From one element to the next, from one row to the next: one of them is 1.
    strides: [usize; 2],
}

impl<N: Narrow> Kernel for Put<'_, N> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { rows: HeadRows { from, dim, width, count }, to, strides } = self;
        let mut lanes = [[N::Stored::default(); LANES]; LANES];
        for first in (0..dim).step_by(LANES) {
            let elements = LANES.min(dim - first);
            for (row, lanes) in lanes[..count].iter_mut().enumerate() {
                let from = &from[row * width + first..][..elements];
                // SAFETY: `elements` numbers are left in the row, and `lanes` has room for sixteen.
                unsafe {
                    N::store(simd, lanes.as_mut_ptr(), simd.load_part(from.as_ptr(), elements))
                };
            }
            if strides[0] == 1 {
                for (row, lanes) in lanes[..count].iter().enumerate() {
                    let to = &mut to[row * strides[1] + first..][..elements];
                    to.copy_from_slice(&lanes[..elements]);
                }
            } else {
                for i in 0..elements {
                    let to = to[(first + i) * strides[0]..][..count].iter_mut();
                    to.zip(&lanes).for_each(|(to, lanes)| *to = lanes[i]);
                }
            }
        }
    }
}

/// Writes some rows to their places as int8 codes.
struct PutCodes<'a> {
    rows: HeadRows<'a>,
    /// The head's part of the block.
    part: &'a mut [u8],
    to: BlockSlots,
}

impl Kernel for PutCodes<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, _simd: S) {
        let Self { rows: HeadRows { from, dim, width, count }, part, to } = self;
        let [element, place] = to.strides();
        let mut lanes = [0; CacheLayout::GROUP];
        for (row, at) in (to.at..to.at + count).enumerate() {
            for (group, numbers) in from[row * width..][..dim].chunks(lanes.len()).enumerate() {
                let (scale, inverse) = encode(numbers);
                let here = to.layout.scale(0, 0, at, group);
                part[here..here + 2].copy_from_slice(&scale.to_le_bytes());
                let lanes = &mut lanes[..numbers.len()];
                lanes.iter_mut().zip(numbers).for_each(|(to, &x)| *to = code(x, inverse) as u8);
                let first = group * CacheLayout::GROUP * element + at * place;
                let places = part[first..].iter_mut().step_by(element);
                places.zip(lanes).for_each(|(to, code)| *to = *code);
            }
        }
    }
}

/// How many of the first places, at most sixteen, are consecutive in one block.
pub(crate) fn run_of(places: &[u32], block: usize) -> usize {
    let left = (block - places[0] as usize % block).min(LANES);
    let follows = places.windows(2).take(left - 1).take_while(|pair| pair[1] == pair[0] + 1);
    1 + follows.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_a_gap_at_a_block_and_at_sixteen() {
        let upward: Vec<u32> = (0..100).collect();
        for (places, block, expected) in [
            (&[7][..], 4, 1),
            (&[4, 5, 6, 7, 8], 4, 4),
            (&[6, 7, 8], 4, 2),
            (&[4, 5, 5, 6], 4, 2),
            (&[5, 4], 4, 1),
            (&[5, 6, 9], 64, 2),
            (&upward, 64, 16),
            (&upward[60..], 64, 4),
            (&upward, 1, 1),
        ] {
            assert_eq!(run_of(places, block), expected, "{places:?} in blocks of {block}");
        }
    }
}
