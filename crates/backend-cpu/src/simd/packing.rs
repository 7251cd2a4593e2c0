//! Rows brought into the order of a repacked weight, and kept: several products in a row often have the same rows.

use super::Scratch;
use super::crew::Crew;
use super::linear::tiled;
use super::product::{Input, Places};
use super::tiled::{Recipe, Tiled};
use crate::memory::Stamp;
use crate::weight::Weight;

/// Rows of an operation, with the stamp of what they are.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stamp: Stamp,
}

/// Room for the rows of one operation, and what lies there.
#[derive(Debug, Default)]
pub(super) struct Packing {
    room: Scratch,
    /// How it lies, of which numbers and how many columns.
    holds: Option<(Recipe, (Stamp, usize))>,
}

impl Packing {
    /// `rows` as the first repacked weight wants them, where there is one.
    pub(super) fn input<'a>(
        &'a mut self,
        crew: &mut Crew,
        weights: &[&Weight],
        rows: Rows<'a>,
    ) -> Input<'a> {
        let plain = Input { data: rows.data, places: Places::Same, packed: None };
        let recipe = tiled(weights).next().map(Tiled::recipe);
        let wanted = recipe.zip(Some((rows.stamp, weights[0].cols())));
        let there = self.holds == wanted;
        self.holds = wanted;
        let room = &mut self.room;
        let packed = tiled(weights).next().map(|tiled| tiled.pack(crew, plain, room, there));
        Input { packed, ..plain }
    }
}
