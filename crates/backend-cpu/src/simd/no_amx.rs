//! In place of tiles on other architectures: a proof that cannot exist.

use super::Scratch;
use super::elementwise::Normed;
use super::isa::{Isa, Task};
use super::product::{Input, Product};
use super::tiled::Tiled;
use std::marker::PhantomData;

/// Nothing has this type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amx {}

/// Rows that nothing packs.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a> {
    never: Amx,
    life: PhantomData<&'a f32>,
}

/// A task that nothing has.
pub(crate) struct PackTask<'a>(Packed<'a>);

impl<'a> PackTask<'a> {
    pub(crate) fn normed(self, _norm: Normed<'a>) -> Self {
        match self.0.never {}
    }

    pub(crate) fn tasks(&self) -> usize {
        match self.0.never {}
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, _simd: S, _index: usize, _scratch: &mut Scratch) {
        match self.0.never {}
    }
}

impl Amx {
    /// Never.
    pub(crate) fn detect() -> Option<Self> {
        None
    }

    /// Cannot be called, like all that follows.
    pub(super) fn pack<'a>(
        self,
        _input: Input<'a>,
        _cols: usize,
        _room: &'a mut Scratch,
    ) -> (Packed<'a>, PackTask<'a>) {
        match self {}
    }

    pub(super) fn scratch_len(self, _tiled: &Tiled, _rows: usize, _packs: bool) -> usize {
        match self {}
    }

    /// # Safety
    /// Cannot be called.
    pub(super) unsafe fn product(self, _product: &Product<'_, Tiled>, _scratch: &mut [f32]) {
        match self {}
    }
}
