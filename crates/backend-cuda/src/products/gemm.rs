//! The GEMM kernel for many columns on Hopper (wgmma): when it is chosen, and its tiles.

use super::call::ProductCall;
use super::gemv::MOST_COLUMNS;
use super::layout::{BLOCK, CodeFamily, PackedFormat, PackedLayout, TILE};
use super::{KernelChoice, Products, sources};
use crate::driver::{Driver, DriverError, KernelSource, Launch, Properties};

/// Rows of a group of four warps.
const GROUP_ROWS: usize = 64;
/// Most stages of the ring.
const MOST_SLOTS: usize = 16;
/// Shared memory that columns pass through on their way out: 24 columns of 65 numbers for each group.
const PASSING: usize = 2 * 24 * 65 * 4;
/// Columns that are multiplied before the next rows, so that their activations stay in the L2 cache.
const AHEAD: usize = 2048;

/// Tiles of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ColumnTiles {
    /// Columns of a tile.
    columns: usize,
    /// Those that are used: whole rows of activations, in runs of eight columns.
    used: usize,
    count: usize,
}

impl ColumnTiles {
    /// Tiles for `columns` columns, of which `parts` are a row's; `None` where the kernel is not for them.
    pub(super) fn of(
        layout: &PackedLayout,
        columns: usize,
        parts: usize,
        properties: &Properties,
    ) -> Option<Self> {
        if columns <= MOST_COLUMNS || properties.capability != [9, 0] {
            return None;
        }
        let plain = layout.kind.family == CodeFamily::Bf16 && layout.segments() == 1;
        let tile = match columns {
            ..=64 => 64,
            129.. if plain => 256,
            _ => 128,
        };
        let used = if parts == 1 { tile } else { tile / (8 * parts) * (8 * parts) };
        Some(Self { columns: tile, used, count: columns.div_ceil(used) })
    }

    /// Columns of memory that the activations take.
    pub(super) const fn padded_rows(&self) -> usize {
        (self.count - 1) * self.used + self.columns
    }

    fn stage_bytes(&self, kind: PackedFormat) -> usize {
        let plain = kind.family == CodeFamily::Bf16;
        let (depth, slice) =
            if plain { (64, kind.code_bytes() / 2) } else { (BLOCK, kind.block_bytes()) };
        let x = (8 * slice).next_multiple_of(1024) + self.columns * depth * 2;
        let sums = if kind.offset { depth / kind.group * self.columns * 4 } else { 0 };
        (x + sums).next_multiple_of(1024)
    }

    /// Stages of the ring and bytes of shared memory.
    fn shared(&self, layout: &PackedLayout, properties: &Properties) -> (usize, usize) {
        let split = layout.kind.family != CodeFamily::Bf16 && layout.segments() > 1;
        let behind = if split { PASSING.max(self.columns * 512) } else { PASSING };
        let stage = self.stage_bytes(layout.kind);
        // The first KiB has the barriers; the dynamic memory may begin in the middle of another.
        let available = properties.shared_per_block as usize - 2048 - behind;
        let slots = (available / stage).min(MOST_SLOTS);
        (slots, 2048 + slots * stage + behind)
    }
}

impl Products {
    /// The tiles of a product that the kernel for many columns is chosen for.
    pub(super) fn tiles(
        &self,
        layout: &PackedLayout,
        columns: usize,
        parts: usize,
        properties: &Properties,
    ) -> Option<ColumnTiles> {
        let tiles = ColumnTiles::of(layout, columns, parts, properties)?;
        let fits = tiles.shared(layout, properties).0 >= 2;
        (self.choice == KernelChoice::Fastest && fits).then_some(tiles)
    }

    /// Launches the kernel for many columns.
    ///
    /// # Safety
    /// As [`Products::multiply`]; the columns are in `tiles`.
    pub(super) unsafe fn gemm(
        &mut self,
        driver: &mut dyn Driver,
        call: &ProductCall<'_>,
        tiles: ColumnTiles,
    ) -> Result<(), DriverError> {
        let ProductCall { layout, parts, shape, .. } = *call;
        debug_assert!(parts.iter().all(|part| part.first.is_multiple_of(TILE)), "whole tiles");
        let (args, _) = call.arguments();
        let row_tiles: usize = match shape.gate {
            Some(_) => parts[0].rows.div_ceil(GROUP_ROWS),
            None => parts.iter().map(|part| part.rows.div_ceil(2 * GROUP_ROWS)).sum(),
        };
        let kernel = self.kernel(
            driver,
            &source(layout.kind, layout.segments(), tiles.columns),
            "product_gemm",
        )?;
        let (slots, shared) = tiles.shared(layout, driver.properties());
        let args = args.size(slots).size(tiles.used).size(row_tiles).size(AHEAD / tiles.columns);
        let blocks = (driver.properties().multiprocessors as usize).min(row_tiles * tiles.count);
        let launch =
            Launch { shared: shared as u32, ..Launch::line(kernel, blocks as u32, 384, &args) };
        // SAFETY: `arguments` writes `Product` with the operands, which are valid by the contract of this function;
        // `shared` bytes hold the barriers, `slots` stages and what lies behind them (`ColumnTiles::shared`).
        unsafe { driver.launch(&launch) }
    }
}

/// The kernel for one kind of weight, a number of segments and a number of columns.
pub fn source(kind: PackedFormat, segments: usize, columns: usize) -> KernelSource {
    super::gemv::kind(sources::GEMM, kind)
        .with("SEGMENTS", segments as i64)
        .with("COLUMNS", columns as i64)
}
