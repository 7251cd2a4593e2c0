//! Stands in for AMX on other architectures: a proof type without values, so that none of this can be called.

use super::packed_weight::PackedWeight;
use super::product::{GemmInput, Product};
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::isa::{Isa, Task};
use std::marker::PhantomData;

/// Has no values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amx {}

/// Cannot exist.
#[derive(Clone, Copy)]
pub(crate) struct PackedBf16<'a> {
    never: Amx,
    life: PhantomData<&'a f32>,
}

/// Cannot exist.
pub(crate) struct PackBf16Task<'a>(PackedBf16<'a>);

impl<'a> PackBf16Task<'a> {
    pub(crate) fn normed(self, _norm: FusedNorm<'a>) -> Self {
        match self.0.never {}
    }

    pub(crate) fn tasks(&self) -> usize {
        match self.0.never {}
    }
}

impl Task for PackBf16Task<'_> {
    fn run<S: Isa>(&self, _simd: S, _index: usize, _scratch: &mut Scratch) {
        match self.0.never {}
    }
}

impl Amx {
    /// Never succeeds.
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    /// Cannot be called, like everything below: it takes a value of an empty type.
    pub(crate) fn pack<'a>(
        self,
        _input: GemmInput<'a>,
        _cols: usize,
        _scratch: &'a mut Scratch,
    ) -> (PackedBf16<'a>, PackBf16Task<'a>) {
        match self {}
    }

    pub(crate) fn scratch_len(self, _tiled: &PackedWeight, _rows: usize, _packs: bool) -> usize {
        match self {}
    }

    /// # Safety
    /// None: `self` has no values, so this cannot be called.
    pub(crate) unsafe fn product(self, _product: &Product<'_, PackedWeight>, _scratch: &mut [f32]) {
        match self {}
    }
}
