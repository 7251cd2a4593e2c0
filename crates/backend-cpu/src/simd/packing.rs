//! Rows brought into the order of a repacked weight, and kept: several products in a row often have the same rows.

use super::Scratch;
use super::crew::Crew;
use super::elementwise::Normed;
use super::linear::tiled;
use super::product::{Input, Places};
use super::tiled::{PackTask, Recipe};
use crate::memory::Stamp;
use crate::weight::Weight;

/// Numbers from which on packing is a job of its own: threads then keep the rows that they will multiply.
const LARGE: usize = 1 << 14;

/// Rows of an operation, with the stamp of what they are.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    /// `None` where they are nobody else's.
    pub(crate) stamp: Option<Stamp>,
    /// What makes of `data` the rows that are meant.
    pub(crate) norm: Option<Normed<'a>>,
}

/// Room for the rows of one operation, and what lies there.
#[derive(Debug, Default)]
pub(super) struct Packing {
    room: Scratch,
    /// Of which numbers, how many columns, and how it lies.
    holds: Option<(Stamp, usize, Recipe)>,
}

impl Packing {
    /// `rows` as the first repacked weight wants them, where there is one; and what the job that reads them has to do first.
    pub(super) fn input<'a>(
        &'a mut self,
        crew: &mut Crew,
        weights: &[&Weight],
        rows: Rows<'a>,
    ) -> (Input<'a>, Option<PackTask<'a>>) {
        let plain = |data| Input { data, places: Places::Same, packed: None };
        let Some(first) = tiled(weights).next() else {
            return (plain(rows.all(crew)), None);
        };
        let wanted = rows.stamp.map(|stamp| (stamp, first.cols(), first.recipe()));
        let there = wanted.is_some() && self.holds == wanted;
        self.holds = wanted;
        // Whoever has another recipe reads the rows themselves.
        let alone = tiled(weights).all(|tiled| tiled.recipe() == first.recipe());
        let few = rows.data.len() < LARGE;
        if let (Some(norm), true) = (rows.norm, few && alone) {
            let (packed, task) = first.pack(plain(rows.data), &mut self.room);
            return (Input { packed: Some(packed), ..plain(&[]) }, Some(task.normed(norm)));
        }
        let data = rows.all(crew);
        let (packed, task) = first.pack(plain(data), &mut self.room);
        let input = Input { packed: Some(packed), ..plain(data) };
        if few || there {
            return (input, (!there).then_some(task));
        }
        crew.run(task.tasks(), &task);
        (input, None)
    }
}

impl<'a> Rows<'a> {
    /// The rows, made now where a norm makes them.
    fn all(&self, crew: &mut Crew) -> &'a [f32] {
        self.norm.map_or(self.data, |norm| norm.all(crew, self.data))
    }

    /// What they are once an operation has made them.
    ///
    /// # Safety
    /// It has.
    pub(super) unsafe fn made(self) -> Self {
        match self.norm {
            Some(norm) => {
                // SAFETY: the caller's promise.
                let data = unsafe { norm.out.done(0, norm.out.len()) };
                Self { data, norm: None, ..self }
            }
            None => self,
        }
    }
}
