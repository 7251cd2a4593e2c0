//! In place of repacked weights on other architectures: a form that cannot exist.

use super::Scratch;
use super::crew::Crew;
use super::product::{Input, Product};
use forerun_base::{Format, Matrix};
use std::marker::PhantomData;

/// Nothing has this type.
#[derive(Debug)]
pub(crate) enum Tiled {}

/// Rows that nothing packs.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    #[expect(dead_code, reason = "there is no value to read it from")]
    never: std::convert::Infallible,
    life: PhantomData<&'a f32>,
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

    pub(super) fn pack<'a>(
        &self,
        _crew: &mut Crew,
        _input: Input<'_>,
        _room: &'a mut Scratch,
        _there: bool,
    ) -> Packed<'a> {
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
