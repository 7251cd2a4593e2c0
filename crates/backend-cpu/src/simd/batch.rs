//! Rows that are to be packed, a few of a tile in each task.

use super::elementwise::Normed;
use super::isa::Isa;
use super::product::Input;
use std::array::from_fn;
use std::ops::Range;

/// Most rows of a task: half a tile, so that two threads may share one.
pub(super) const ROWS: usize = 8;

/// The rows `rows` of `input`, each `cols` wide, or what a norm makes of them, in tiles of `class` rows.
pub(super) struct Batch<'a> {
    input: Input<'a>,
    norm: Option<Normed<'a>>,
    rows: Range<usize>,
    cols: usize,
    class: usize,
    /// Whether rows past the end are there too, all zeros: tiles multiply them.
    filled: bool,
}

/// Rows of one task.
pub(super) struct Share<'a> {
    pub(super) tile: usize,
    /// The first one's place in the tile.
    pub(super) first: usize,
    rows: [&'a [f32]; ROWS],
    count: usize,
}

impl<'a> Share<'a> {
    /// The rows; where they are filled up, those past the end are empty.
    pub(super) fn rows(&self) -> &[&'a [f32]] {
        &self.rows[..self.count]
    }
}

impl<'a> Batch<'a> {
    pub(super) fn new(input: Input<'a>, rows: Range<usize>, [cols, class]: [usize; 2]) -> Self {
        Self { input, norm: None, rows, cols, class, filled: false }
    }

    /// The last tile has all of its rows, zeros past the end.
    pub(super) fn filled(self, filled: bool) -> Self {
        Self { filled, ..self }
    }

    /// The rows of `input` are normed first; it has all of them, in their order.
    pub(super) fn normed(self, norm: Normed<'a>) -> Self {
        Self { norm: Some(norm), ..self }
    }

    /// Rows of a tile.
    pub(super) fn class(&self) -> usize {
        self.class
    }

    /// Rows of a task: of a tile alone, two threads take half each.
    fn rows_of_task(&self) -> usize {
        if self.rows.len() <= self.class {
            (self.class / 2).clamp(1, ROWS)
        } else {
            self.class.min(ROWS)
        }
    }

    pub(super) fn tasks(&self) -> usize {
        self.rows.len().div_ceil(self.class) * self.class.div_ceil(self.rows_of_task())
    }

    /// The rows of a task, which asks for them once.
    pub(super) fn share<S: Isa>(&self, simd: S, index: usize) -> Share<'a> {
        let (class, count) = (self.class, self.rows_of_task());
        let tasks_of_tile = class.div_ceil(count);
        let (tile, first) = (index / tasks_of_tile, index % tasks_of_tile * count);
        let there = count.min(self.rows.len().saturating_sub(tile * class + first));
        let rows = from_fn(|i| {
            if i >= there {
                return &[][..];
            }
            let place = self.rows.start + tile * class + first + i;
            let given = &self.input.data[self.input.places.at(place) * self.cols..][..self.cols];
            // SAFETY: each row has one task, which asks for it once.
            self.norm.map_or(given, |norm| unsafe { norm.row(simd, place, given) })
        });
        Share { tile, first, rows, count: if self.filled { count } else { there } }
    }
}
