//! Formats of the key/value cache, and how sixteen of their numbers become f32.
//!
//! # Numerics
//! Floats are widened. An int8 code is multiplied by its bf16 scale, which is exact in f32.

use super::isa::{Isa, LANES};
use crate::gemm::decode::Decode;
use forerun_backend::op::CacheLayout;

/// A format; steps and columns are those of a table.
pub(crate) trait CacheFormat: Copy {
    /// Bytes of sixteen numbers.
    const BYTES: usize;
    /// How many steps share a set of scales: all where there are none.
    const STEPS_PER_SCALE: usize;
    /// The scales of some steps and of sixteen columns.
    type Scales<S: Isa>: Copy;

    /// Prepares the scales of the steps around `step`, for sixteen columns from `first` on, of which `count` are used.
    ///
    /// # Safety
    /// The table has the step, and `count` columns from `first` on.
    unsafe fn scales<S: Isa>(
        self,
        simd: S,
        step: usize,
        first: usize,
        count: usize,
    ) -> Self::Scales<S>;

    /// Sixteen numbers of a step.
    ///
    /// # Safety
    /// `at` is readable for [`CacheFormat::BYTES`], and `scales` were prepared for the step.
    unsafe fn numbers<S: Isa>(
        self,
        simd: S,
        at: *const u8,
        scales: &Self::Scales<S>,
        step: usize,
    ) -> S::F;

    /// Whether other scales are needed from this step on.
    #[inline(always)]
    fn begins(self, step: usize) -> bool {
        step.is_multiple_of(Self::STEPS_PER_SCALE)
    }
}

/// Floats of some type.
#[derive(Clone, Copy)]
pub(crate) struct Floats<D>(pub(crate) D);

impl<D: Decode> CacheFormat for Floats<D> {
    const BYTES: usize = D::STEP_BYTES;
    const STEPS_PER_SCALE: usize = usize::MAX;
    type Scales<S: Isa> = ();

    #[inline(always)]
    unsafe fn scales<S: Isa>(self, _simd: S, _step: usize, _first: usize, _count: usize) {}
    #[inline(always)]
    unsafe fn numbers<S: Isa>(self, simd: S, at: *const u8, (): &(), _step: usize) -> S::F {
        // SAFETY: sixteen numbers are readable at `at` (contract of `numbers`).
        unsafe { self.0.weights(simd, at, self.0.group(simd, 1.0, 0.0)) }
    }
}

/// Scales of a part of a block: `[group][place]`.
#[derive(Clone, Copy)]
pub(crate) struct PartScales {
    pub(crate) at: *const u8,
    /// Places of a block.
    pub(crate) block: usize,
}

impl PartScales {
    /// The scales of up to sixteen places from `place` on, zeros past `count`.
    ///
    /// # Safety
    /// The part has `count` places from `place` on, with a scale in the group.
    #[inline(always)]
    unsafe fn load<S: Isa>(self, simd: S, group: usize, place: usize, count: usize) -> S::F {
        let from = self.at.wrapping_add(2 * (group * self.block + place));
        // SAFETY: `min(count, 16)` scales are readable (contract above); a partial vector is copied first.
        unsafe {
            if count >= LANES {
                return simd.load_bf16(from);
            }
            let mut copy = [0_u8; 2 * LANES];
            std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), 2 * count);
            simd.load_bf16(copy.as_ptr())
        }
    }
}

/// Codes of keys: a step is an element, and a group of steps has a scale for each key.
#[derive(Clone, Copy)]
pub(crate) struct KeyCodes(pub(crate) PartScales);

impl CacheFormat for KeyCodes {
    const BYTES: usize = LANES;
    const STEPS_PER_SCALE: usize = CacheLayout::GROUP;
    type Scales<S: Isa> = S::F;

    #[inline(always)]
    unsafe fn scales<S: Isa>(self, simd: S, step: usize, first: usize, count: usize) -> S::F {
        // SAFETY: the scales of `count` columns from `first` on are readable (contract of `scales`), and a column of
        // keys is a place.
        unsafe { self.0.load(simd, step / CacheLayout::GROUP, first, count) }
    }
    #[inline(always)]
    unsafe fn numbers<S: Isa>(self, simd: S, at: *const u8, scales: &S::F, _step: usize) -> S::F {
        // SAFETY: sixteen codes are readable at `at` (contract of `numbers`).
        simd.mul(unsafe { simd.load_i8(at) }, *scales)
    }
}

/// Codes of values: a step is a key, which has a scale for each group of its elements.
#[derive(Clone, Copy)]
pub(crate) struct ValueCodes(pub(crate) PartScales);

impl CacheFormat for ValueCodes {
    const BYTES: usize = LANES;
    const STEPS_PER_SCALE: usize = LANES;
    /// In memory, from which a step's scale is broadcast.
    type Scales<S: Isa> = [f32; LANES];

    #[inline(always)]
    unsafe fn scales<S: Isa>(
        self,
        simd: S,
        step: usize,
        first: usize,
        _count: usize,
    ) -> [f32; LANES] {
        let (mut scales, start) = ([0.0; LANES], step / LANES * LANES);
        // SAFETY: a step of values is a place, and the block has those from `start` on (contract of `scales`); sixteen
        // f32.
        unsafe {
            let group = first / CacheLayout::GROUP;
            let loaded = self.0.load(simd, group, start, self.0.block - start);
            simd.store(scales.as_mut_ptr(), loaded);
        }
        scales
    }
    #[inline(always)]
    unsafe fn numbers<S: Isa>(
        self,
        simd: S,
        at: *const u8,
        scales: &[f32; LANES],
        step: usize,
    ) -> S::F {
        // SAFETY: sixteen codes are readable at `at` (contract of `numbers`).
        simd.mul(unsafe { simd.load_i8(at) }, simd.splat(scales[step % LANES]))
    }
}
