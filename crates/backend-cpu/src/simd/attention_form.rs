//! How keys and values are stored, and how sixteen of their numbers become f32.
//!
//! # Numerics
//! Floats are widened. A code is multiplied by its scale, which is exact: seven bits by eight.

use super::isa::{Isa, LANES};
use crate::gemm::decode::Decode;
use forerun_backend::op::CacheLayout;

/// A form of numbers; steps and columns are those of a table.
pub(crate) trait CacheFormat: Copy {
    /// Bytes of sixteen numbers.
    const BYTES: usize;
    /// Steps, from a multiple of them on, whose scales are prepared at a time: all where there are none.
    const MAX_PANELS: usize;
    /// The scales of some steps and of sixteen columns.
    type Scales<S: Isa>: Copy;

    /// Prepares the scales of the steps around `step`, of up to sixteen columns from `first` on: all but `count` of
    /// those are not used.
    ///
    /// # Safety
    /// The table has the step and the columns.
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
    /// So many readable bytes.
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
        step.is_multiple_of(Self::MAX_PANELS)
    }
}

/// Floats of some type.
#[derive(Clone, Copy)]
pub(crate) struct Floats<D>(pub(crate) D);

impl<D: Decode> CacheFormat for Floats<D> {
    const BYTES: usize = D::STEP_BYTES;
    const MAX_PANELS: usize = usize::MAX;
    type Scales<S: Isa> = ();

    #[inline(always)]
    unsafe fn scales<S: Isa>(self, _simd: S, _step: usize, _first: usize, _count: usize) {}
    #[inline(always)]
    unsafe fn numbers<S: Isa>(self, simd: S, at: *const u8, (): &(), _step: usize) -> S::F {
        // SAFETY: the caller's promise.
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
    /// Those of up to sixteen places from `place` on, zeros past `count`.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn load<S: Isa>(self, simd: S, group: usize, place: usize, count: usize) -> S::F {
        let from = self.at.wrapping_add(2 * (group * self.block + place));
        // SAFETY: the caller's promise; a part of a vector is copied first.
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
    const MAX_PANELS: usize = CacheLayout::GROUP;
    type Scales<S: Isa> = S::F;

    #[inline(always)]
    unsafe fn scales<S: Isa>(self, simd: S, step: usize, first: usize, count: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { self.0.load(simd, step / CacheLayout::GROUP, first, count) }
    }
    #[inline(always)]
    unsafe fn numbers<S: Isa>(self, simd: S, at: *const u8, scales: &S::F, _step: usize) -> S::F {
        // SAFETY: the caller's promise.
        simd.mul(unsafe { simd.load_i8(at) }, *scales)
    }
}

/// Codes of values: a step is a key, which has a scale for each group of its elements.
#[derive(Clone, Copy)]
pub(crate) struct ValueCodes(pub(crate) PartScales);

impl CacheFormat for ValueCodes {
    const BYTES: usize = LANES;
    const MAX_PANELS: usize = LANES;
    /// In memory, from where a product takes one for all lanes.
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
        // SAFETY: the caller's promise; sixteen f32.
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
        // SAFETY: the caller's promise.
        simd.mul(unsafe { simd.load_i8(at) }, simd.splat(scales[step % LANES]))
    }
}
