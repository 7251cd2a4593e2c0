//! Rows of activations on their way into products: normed or gated, and made columns of bfloat16.
//!
//! Columns are kept until something is written over their rows, so several products of the same rows share them.

use super::gemm::ColumnTiles;
use super::layout::{PackedFormat, PackedLayout};
use super::{Precision, Products, sources};
use crate::driver::{Address, Args, Driver, DriverError, Launch};
use std::ops::Range;

/// Columns of a step of the tensor core.
const STEP_COLUMNS: usize = 8;
/// Rows from which on each is split by one block.
const MANY_ROWS: usize = 128;
/// Columns of a row that a block of threads has at a time.
const BLOCK_COLUMNS: usize = 2048;
/// Columns that four threads share: a row is split in whole runs of so many.
const RUN: usize = 32;

/// Rows to be multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductInput {
    /// f32 `[rows, dim]`.
    pub at: Address,
    /// How many there are.
    pub rows: usize,
    /// Their width.
    pub dim: usize,
    /// What is made of them first.
    pub change: Option<RowChange>,
}

/// What is made of rows before they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowChange {
    /// What is made of them.
    pub kind: ChangeKind,
    /// Where the changed rows go as f32 as well: `[rows, dim]`, the rows themselves where they are gated.
    pub into: Option<Address>,
}

/// How rows are changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChangeKind {
    /// `x / rms(x) · weight`.
    Norm(ProductNorm),
    /// The same head by head, times `silu(gate)`; a head has [`HEADS`] elements.
    GatedHeads {
        /// The norm of a head.
        norm: ProductNorm,
        /// Elements of a head.
        head: usize,
        /// f32 `[rows, dim]`.
        gate: Address,
    },
    /// `x · σ(gate)`.
    Gated {
        /// f32 `[rows, dim]`.
        gate: Address,
    },
}

/// Widths of heads that rows are normed by.
pub const HEADS: [usize; 4] = [32, 64, 128, 256];

/// `x / sqrt(mean(x²) + eps) · weight`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductNorm {
    /// f32, as many as are normed together.
    pub weight: Address,
    /// Added to the mean square.
    pub eps: f32,
}

impl ProductInput {
    /// Rows that are multiplied as they are.
    pub const fn plain(at: Address, rows: usize, dim: usize) -> Self {
        Self { at, rows, dim, change: None }
    }

    /// The rows as a later product finds them: changed, where they were written so.
    pub(super) fn changed(self) -> Self {
        match self.change {
            Some(RowChange { into: Some(at), .. }) => Self { at, change: None, ..self },
            _ => self,
        }
    }

    /// Whether rows are gated, which happens once.
    pub(super) fn is_gated(&self) -> bool {
        self.change.is_some_and(|change| !matches!(change.kind, ChangeKind::Norm(_)))
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let end = self.at.0 + (self.rows * self.dim * 4) as u64;
        self.at.0 < range.end && range.start < end
    }
}

/// Columns made of rows.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub(super) at: Address,
    pub(super) sums: Address,
    /// Columns of a row of sums (leading dimension).
    pub(super) ld: usize,
    pub(super) depth: usize,
    pub(super) parts: usize,
    /// Tiles, where the columns are in the order of the kernel for many.
    pub(super) tiles: Option<ColumnTiles>,
}

impl Columns {
    /// Sums of groups of this width.
    pub(super) fn sums_of(&self, group: usize) -> Address {
        let level = (group / 16).trailing_zeros() as usize;
        self.sums.offset((level * (self.depth / 16) * self.ld * 4) as u64)
    }
}

/// In which order columns may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnOrder {
    /// As the steps of the tensor core take them: every kernel but that for many.
    Steps,
    /// In tiles, where the kernel for many is the one.
    Tiled,
}

/// How rows of activations become columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnSpec {
    /// Which sums of groups are made: bit `i` for groups of `16 << i`.
    pub(super) levels: u32,
    pub(super) order: ColumnOrder,
    pub(super) precision: Precision,
}

impl ColumnSpec {
    /// For every kernel but that for many columns, and weights of one packed format.
    pub(super) const fn steps(format: PackedFormat, precision: Precision) -> Self {
        Self { levels: level(format), order: ColumnOrder::Steps, precision }
    }
}

/// The level of sums that a format needs, as a bit.
pub(super) const fn level(kind: PackedFormat) -> u32 {
    if kind.offset { 1 << (kind.group / 16).trailing_zeros() } else { 0 }
}

/// Rows that each block of a product makes columns of for itself, at most: that takes a block about as long as its
/// first weights take to arrive.
const MADE_IN_PLACE: usize = 1;

impl ProductInput {
    /// The rows as columns that are still to be made, by the product itself, with the norm that goes before; `None`
    /// where they are too many or something else is made of them as well.
    pub(super) fn in_place(&self, layout: &PackedLayout, precision: Precision) -> Option<Columns> {
        let normed = self.change.is_none_or(|change| {
            matches!(change, RowChange { kind: ChangeKind::Norm(_), into: None })
        });
        let parts = precision.parts();
        let columns = Columns {
            at: Address::NULL,
            sums: Address::NULL,
            ld: (self.rows * parts).next_multiple_of(STEP_COLUMNS),
            depth: layout.depth(),
            parts,
            tiles: None,
        };
        let few = self.rows <= MADE_IN_PLACE && layout.kind.planes == 1;
        (few && normed).then_some(columns)
    }

    /// The norm that goes before.
    pub(super) fn norm(&self) -> Option<ProductNorm> {
        match self.change?.kind {
            ChangeKind::Norm(norm) => Some(norm),
            _ => None,
        }
    }
}

/// The rows that the columns in memory were made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitRows {
    rows: ProductInput,
    planes: usize,
    levels: u32,
    columns: Columns,
}

impl Products {
    /// Forgets columns that were made of rows in these bytes.
    pub(crate) fn forget(&mut self, written: Range<u64>) {
        if self.split.is_some_and(|split| split.rows.overlaps(&written)) {
            self.split = None;
        }
    }

    /// Whether columns are kept from call to call. Whoever asks for it says what is written ([`Products::forget`]).
    pub(crate) fn keep_columns(&mut self, keep: bool) {
        self.split = None;
        self.keeps_columns = keep;
    }

    /// Begins a call: what was made in another one may be stale.
    pub(super) fn begin_call(&mut self) {
        if !self.keeps_columns {
            self.split = None;
        }
    }

    /// Tiles of the columns that a product of rows takes.
    fn tiles_of(
        &self,
        driver: &dyn Driver,
        x: ProductInput,
        layout: &PackedLayout,
        ColumnSpec { order, precision, .. }: ColumnSpec,
    ) -> Option<ColumnTiles> {
        let parts = precision.parts();
        match order {
            ColumnOrder::Tiled => self.tiles(layout, x.rows * parts, parts, driver.properties()),
            ColumnOrder::Steps => None,
        }
    }

    /// The columns of rows, if they were made and are still there.
    pub(super) fn found(
        &self,
        driver: &dyn Driver,
        x: ProductInput,
        layout: &PackedLayout,
        spec: ColumnSpec,
    ) -> Option<Columns> {
        let wanted = (x, layout.kind.planes, layout.depth(), spec.precision.parts());
        let tiles = self.tiles_of(driver, x, layout, spec);
        let split = self.split.filter(|split| {
            let Columns { depth, parts, tiles: found, .. } = split.columns;
            (split.rows, split.planes, depth, parts) == wanted
                && found == tiles
                && split.levels & spec.levels == spec.levels
        });
        split.map(|split| split.columns)
    }

    /// Makes the columns of a product from rows, or finds them made.
    ///
    /// # Safety
    /// `x` is [valid](super#safety) and `x.dim` is the layout's `cols`.
    pub(super) unsafe fn split(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        layout: &PackedLayout,
        spec: ColumnSpec,
    ) -> Result<Columns, DriverError> {
        if let Some(columns) = self.found(driver, x, layout, spec) {
            return Ok(columns);
        }
        let ColumnSpec { levels, precision, .. } = spec;
        let (depth, parts, planes) = (layout.depth(), precision.parts(), layout.kind.planes);
        debug_assert!(planes == 1 || !x.is_gated(), "a gate goes with one plane");
        let (count, tiles) = (x.rows * parts, self.tiles_of(driver, x, layout, spec));
        let ld = tiles.map_or(count.next_multiple_of(STEP_COLUMNS), |tiles| tiles.padded_rows());
        let at = self.columns.of(driver, ld * depth * 2)?;
        let sums = if levels == 0 { 0 } else { 4 * (depth / 16) * ld * 4 };
        let sums = self.sums.of(driver, sums)?;
        let columns = Columns { at, sums, ld, depth, parts, tiles };
        // SAFETY: `at` has `ld · depth` bf16 and `sums` the four levels of groups; `x` is valid by the contract of this
        // function.
        unsafe { self.launch_split(driver, x, Some((columns, planes, levels)))? };
        self.split = (!x.is_gated() || x.changed().change.is_none()).then_some(SplitRows {
            rows: x.changed(),
            planes,
            levels,
            columns,
        });
        Ok(columns)
    }

    /// Changes rows without multiplying them, where their change says they go; the rows as they are then.
    ///
    /// # Safety
    /// `x` is [valid](super#safety).
    pub(crate) unsafe fn change_rows(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
    ) -> Result<ProductInput, DriverError> {
        let Some(change) = x.change else { return Ok(x) };
        let mut x = x;
        if change.into.is_none() {
            self.split = None;
            let into = Some(self.columns.of(driver, x.rows * x.dim * 4)?);
            x.change = Some(RowChange { into, ..change });
        }
        // SAFETY: `x` is valid by the contract of this function, and `into` has `rows · dim` f32.
        unsafe { self.launch_split(driver, x, None)? };
        Ok(x.changed())
    }

    /// Launches the kernel; without columns it changes rows alone.
    ///
    /// # Safety
    /// `x` is [valid](super#safety), and the columns have the sizes that [`Products::split`] gives them.
    unsafe fn launch_split(
        &mut self,
        driver: &mut dyn Driver,
        x: ProductInput,
        made: Option<(Columns, usize, u32)>,
    ) -> Result<(), DriverError> {
        if x.rows * x.dim == 0 {
            return Ok(());
        }
        let kernel = self.kernel(driver, &sources::SPLIT, "product_split")?;
        let none = ProductNorm { weight: Address::NULL, eps: 0.0 };
        let (norm, head, gate) = match x.change.map(|change| change.kind) {
            None => (none, 0, Address::NULL),
            Some(ChangeKind::Norm(norm)) => (norm, 0, Address::NULL),
            Some(ChangeKind::GatedHeads { norm, head, gate }) => (norm, head, gate),
            Some(ChangeKind::Gated { gate }) => (none, 0, gate),
        };
        let into = x.change.and_then(|change| change.into).unwrap_or(Address::NULL);
        let depth = made.map_or(x.dim.next_multiple_of(RUN), |(columns, ..)| columns.depth);
        let (planes, levels) = made.map_or((1, 0), |(_, planes, levels)| (planes, levels));
        let columns = made.map(|(columns, ..)| columns);
        let args = Args::new()
            .with(x.at)
            .with(gate)
            .with(norm.weight)
            .with(into)
            .with(columns.map_or(Address::NULL, |columns| columns.at))
            .with(columns.map_or(Address::NULL, |columns| columns.sums))
            .size(x.dim)
            .size(depth)
            .size(planes)
            .size(columns.map_or(1, |columns| columns.parts))
            .size(columns.map_or(0, |columns| columns.ld))
            .with(levels)
            .with(u32::from(columns.is_some_and(|columns| columns.tiles.is_some())))
            .size(head)
            .with(norm.eps);
        // Few rows are shared by several blocks.
        let pieces = if x.rows < MANY_ROWS { depth.div_ceil(BLOCK_COLUMNS) as u32 } else { 1 };
        let grid = [x.rows as u32, pieces, 1];
        // SAFETY: the operands are this function's own, under the same contract; the grid has a block for each row.
        unsafe { driver.launch(&Launch { grid, ..Launch::line(kernel, 1, 256, &args) }) }
    }
}
