//! Activations in the layout of a packed weight, cached from product to product: q, k and v read the same rows.

use super::linear::packed;
use super::packed_weight::{ActivationLayout, PackRowsTask};
use super::product::{GemmInput, RowMap};
use crate::memory::DataVersion;
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::exec_ctx::ExecCtx;
use crate::simd::isa::Isa;
use crate::weight::Weight;
use std::array::from_fn;
use std::ops::Range;

/// From this many elements on packing is a job of its own, so that every thread packs the rows that it will multiply.
const LARGE: usize = 1 << 14;

/// The input rows of an operation, and which version of the buffer they are.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    pub(crate) data: &'a [f32],
    /// `None` where the rows exist only inside this operation, so that nothing could be reused.
    pub(crate) version: Option<DataVersion>,
    /// A norm to be applied to `data` first.
    pub(crate) norm: Option<FusedNorm<'a>>,
}

/// Packed rows of the last product, and what they were packed from.
#[derive(Debug, Default)]
pub(crate) struct PackedRowsCache {
    buffer: Scratch,
    /// Version of the input, columns, and layout of what `buffer` holds.
    holds: Option<(DataVersion, usize, ActivationLayout)>,
}

impl PackedRowsCache {
    /// `rows` in the layout of the first packed weight, where there is one, and the tasks that have to run before they
    /// are read.
    pub(crate) fn input<'a>(
        &'a mut self,
        ctx: &mut ExecCtx,
        weights: &[&Weight],
        rows: InputRows<'a>,
    ) -> (GemmInput<'a>, Option<PackRowsTask<'a>>) {
        let plain = |data| GemmInput { data, row_map: RowMap::Identity, packed: None };
        let Some(first) = packed(weights).next() else {
            return (plain(rows.all(ctx)), None);
        };
        let wanted = rows.version.map(|version| (version, first.cols(), first.layout()));
        let there = wanted.is_some() && self.holds == wanted;
        self.holds = wanted;
        // A weight with another layout packs the plain rows itself, so they must exist.
        let alone = packed(weights).all(|packed| packed.layout() == first.layout());
        let few = rows.data.len() < LARGE;
        if let (Some(norm), true) = (rows.norm, few && alone) {
            let (packed, task) = first.pack(plain(rows.data), &mut self.buffer);
            return (GemmInput { packed: Some(packed), ..plain(&[]) }, Some(task.normed(norm)));
        }
        let data = rows.all(ctx);
        let (packed, task) = first.pack(plain(data), &mut self.buffer);
        let input = GemmInput { packed: Some(packed), ..plain(data) };
        if few || there {
            return (input, (!there).then_some(task));
        }
        ctx.run(task.tasks(), &task);
        (input, None)
    }
}

impl<'a> InputRows<'a> {
    /// The rows; a norm is applied now.
    fn all(&self, ctx: &mut ExecCtx) -> &'a [f32] {
        self.norm.map_or(self.data, |norm| norm.all(ctx, self.data))
    }

    /// The rows after an operation that applied the norm.
    ///
    /// # Safety
    /// The tasks of the norm ran for every row and have ended, so nothing writes `norm.out` any more.
    pub(crate) unsafe fn made(self) -> Self {
        match self.norm {
            Some(norm) => {
                // SAFETY: nothing writes the normed rows any more (contract above).
                let data = unsafe { norm.out.done(0, norm.out.len()) };
                Self { data, norm: None, ..self }
            }
            None => self,
        }
    }
}

/// Most rows of a task: half a tile, so that two threads may share one.
pub(crate) const TASK_ROWS: usize = 8;

/// The rows `rows` of `input`, each `cols` wide, optionally normed, in tiles of `tile_rows` rows.
pub(crate) struct RowBatch<'a> {
    input: GemmInput<'a>,
    norm: Option<FusedNorm<'a>>,
    rows: Range<usize>,
    cols: usize,
    tile_rows: usize,
    /// Whether the last tile is padded with rows of zeros: AMX multiplies them too.
    padded: bool,
}

/// Rows of one task.
pub(crate) struct BatchPart<'a> {
    pub(crate) tile: usize,
    /// Place of the first one in the tile.
    pub(crate) first: usize,
    rows: [&'a [f32]; TASK_ROWS],
    count: usize,
}

impl<'a> BatchPart<'a> {
    /// The rows; padding rows are empty slices.
    pub(crate) fn rows(&self) -> &[&'a [f32]] {
        &self.rows[..self.count]
    }
}

impl<'a> RowBatch<'a> {
    pub(crate) fn new(
        input: GemmInput<'a>,
        rows: Range<usize>,
        cols: usize,
        tile_rows: usize,
    ) -> Self {
        Self { input, norm: None, rows, cols, tile_rows, padded: false }
    }

    /// The last tile is padded with rows of zeros.
    pub(crate) fn padded(self, padded: bool) -> Self {
        Self { padded, ..self }
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
            (self.tile_rows / 2).clamp(1, TASK_ROWS)
        } else {
            self.tile_rows.min(TASK_ROWS)
        }
    }

    pub(crate) fn tasks(&self) -> usize {
        self.rows.len().div_ceil(self.tile_rows) * self.tile_rows.div_ceil(self.rows_of_task())
    }

    /// The rows of task `index`. Each task may ask once: a norm writes them.
    pub(crate) fn part<S: Isa>(&self, simd: S, index: usize) -> BatchPart<'a> {
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
        BatchPart { tile, first, rows, count: if self.padded { count } else { there } }
    }
}
