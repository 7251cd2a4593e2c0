//! In place of repacked weights on other architectures: a form that cannot exist.

use super::Scratch;
use super::crew::Crew;
use super::elementwise::Normed;
use super::isa::{Isa, Task};
use super::product::{Input, Product};
use forerun_base::{Format, Matrix};
use std::marker::PhantomData;

/// Nothing has this type.
#[derive(Debug)]
pub(crate) enum Tiled {}

/// Rows that nothing packs.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    never: std::convert::Infallible,
    life: PhantomData<&'a f32>,
}

/// A task that nothing has.
pub(super) struct PackTask<'a>(Packed<'a>);

impl<'a> PackTask<'a> {
    pub(super) fn normed(self, _norm: Normed<'a>) -> Self {
        match self.0.never {}
    }

    pub(super) fn tasks(&self) -> usize {
        match self.0.never {}
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, _simd: S, _index: usize, _scratch: &mut Scratch) {
        match self.0.never {}
    }
}

/// A recipe that nothing has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {}

impl Tiled {
    /// Never.
    pub(crate) fn keep(_crew: &mut Crew, _matrix: &Matrix) -> Option<Self> {
        None
    }

    /// Cannot be called, like all that follows.
    pub(crate) fn rows(&self) -> usize {
        match *self {}
    }

    pub(crate) fn cols(&self) -> usize {
        match *self {}
    }

    pub(crate) fn format(&self) -> Format {
        match *self {}
    }

    pub(crate) fn bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn decode_row(&self, _row: usize, _out: &mut [f32]) {
        match *self {}
    }

    pub(super) fn recipe(&self) -> Recipe {
        match *self {}
    }

    pub(super) fn rows_apart(&self) -> usize {
        match *self {}
    }

    pub(super) fn tile_rows(&self) -> usize {
        match *self {}
    }

    pub(super) fn pack<'a>(
        &self,
        _input: Input<'a>,
        _room: &'a mut Scratch,
    ) -> (Packed<'a>, PackTask<'a>) {
        match *self {}
    }

    pub(super) fn scratch_len(&self, _rows: usize, _packs: bool) -> usize {
        match *self {}
    }

    /// # Safety
    /// Cannot be called.
    pub(super) unsafe fn product(product: &Product<'_, Self>, _scratch: &mut [f32]) {
        match *product.matrix {}
    }
}
