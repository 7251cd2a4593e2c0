//! Rows that are to be packed, a few rows of a tile in each task.

use super::product::Input;
use crate::simd::elementwise::FusedNorm;
use crate::simd::isa::Isa;
use std::array::from_fn;
use std::ops::Range;

/// Most rows of a task: half a tile, so that two threads may share one.
pub(crate) const ROWS: usize = 8;

/// The rows `rows` of `input`, each `cols` wide, optionally normed, in tiles of `tile_rows` rows.
pub(crate) struct Batch<'a> {
    input: Input<'a>,
    norm: Option<FusedNorm<'a>>,
    rows: Range<usize>,
    cols: usize,
    tile_rows: usize,
    /// Whether the last tile is padded with rows of zeros: AMX multiplies them too.
    filled: bool,
}

/// Rows of one task.
pub(crate) struct Share<'a> {
    pub(crate) tile: usize,
    /// Place of the first one in the tile.
    pub(crate) first: usize,
    rows: [&'a [f32]; ROWS],
    count: usize,
}

impl<'a> Share<'a> {
    /// The rows; padding rows are empty slices.
    pub(crate) fn rows(&self) -> &[&'a [f32]] {
        &self.rows[..self.count]
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(input: Input<'a>, rows: Range<usize>, cols: usize, tile_rows: usize) -> Self {
        Self { input, norm: None, rows, cols, tile_rows, filled: false }
    }

    /// The last tile is padded with rows of zeros.
    pub(crate) fn filled(self, filled: bool) -> Self {
        Self { filled, ..self }
    }

    /// The rows are normed first. `input` must hold all rows in order, since each is normed into its own place.
    pub(crate) fn normed(self, norm: FusedNorm<'a>) -> Self {
        Self { norm: Some(norm), ..self }
    }

    /// Rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// Rows of a task. A single tile is shared by two threads, half each.
    fn rows_of_task(&self) -> usize {
        if self.rows.len() <= self.tile_rows {
            (self.tile_rows / 2).clamp(1, ROWS)
        } else {
            self.tile_rows.min(ROWS)
        }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.rows.len().div_ceil(self.tile_rows) * self.tile_rows.div_ceil(self.rows_of_task())
    }

    /// The rows of task `index`. Each task may ask once: a norm writes them.
    pub(crate) fn share<S: Isa>(&self, simd: S, index: usize) -> Share<'a> {
        let (tile_rows, count) = (self.tile_rows, self.rows_of_task());
        let tasks_of_tile = tile_rows.div_ceil(count);
        let (tile, first) = (index / tasks_of_tile, index % tasks_of_tile * count);
        let there = count.min(self.rows.len().saturating_sub(tile * tile_rows + first));
        let rows = from_fn(|i| {
            if i >= there {
                return &[][..];
            }
            let place = self.rows.start + tile * tile_rows + first + i;
            let given = &self.input.data[self.input.row_map.at(place) * self.cols..][..self.cols];
            // SAFETY: rows of tasks are disjoint and each task calls this once, so no other reference covers the normed
            // row.
            self.norm.map_or(given, |norm| unsafe { norm.row(simd, place, given) })
        });
        Share { tile, first, rows, count: if self.filled { count } else { there } }
    }
}
