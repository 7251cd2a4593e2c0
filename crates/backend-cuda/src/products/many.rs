//! The kernel for many columns on Hopper: which launches it takes, and its tiles.

use super::call::{Columns, Part, Shape, arguments};
use super::few::MOST_COLUMNS;
use super::layout::{BLOCK, Family, Kind, Layout, TILE};
use super::{Choice, Products, sources};
use crate::driver::{Driver, DriverError, Launch, Properties, Source};

/// Rows of a group of four warps.
const GROUP_ROWS: usize = 64;
/// Most stages of the ring.
const MOST_SLOTS: usize = 16;
/// Shared memory that columns pass through on their way out: 24 columns of 65 numbers for each group.
const PASSING: usize = 2 * 24 * 65 * 4;
/// Columns that are taken before the next rows.
const AHEAD: usize = 2048;

/// Tiles of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    /// Columns of a tile.
    columns: usize,
    /// Those that are used: whole rows of activations, in runs of eight columns.
    used: usize,
    count: usize,
}

impl Tiles {
    /// Tiles for `columns` columns, of which `parts` are a row's; `None` where the kernel is not for them.
    pub(super) fn of(
        layout: &Layout,
        columns: usize,
        parts: usize,
        properties: &Properties,
    ) -> Option<Self> {
        if columns <= MOST_COLUMNS || properties.capability != [9, 0] {
            return None;
        }
        let plain = layout.kind.family == Family::Bf16 && layout.segments() == 1;
        let tile = match columns {
            ..=64 => 64,
            129.. if plain => 256,
            _ => 128,
        };
        let used = if parts == 1 { tile } else { tile / (8 * parts) * (8 * parts) };
        Some(Self { columns: tile, used, count: columns.div_ceil(used) })
    }

    /// Columns that activations need room for.
    pub(super) const fn room(&self) -> usize {
        (self.count - 1) * self.used + self.columns
    }

    fn stage_bytes(&self, kind: Kind) -> usize {
        let plain = kind.family == Family::Bf16;
        let (depth, slice) =
            if plain { (64, kind.code_bytes() / 2) } else { (BLOCK, kind.block_bytes()) };
        let x = (8 * slice).next_multiple_of(1024) + self.columns * depth * 2;
        let sums = if kind.offset { depth / kind.group * self.columns * 4 } else { 0 };
        (x + sums).next_multiple_of(1024)
    }

    /// Stages of the ring and bytes of shared memory.
    fn shared(&self, layout: &Layout, properties: &Properties) -> (usize, usize) {
        let split = layout.kind.family != Family::Bf16 && layout.segments() > 1;
        let behind = if split { PASSING.max(self.columns * 512) } else { PASSING };
        let stage = self.stage_bytes(layout.kind);
        // The first KiB has the barriers; the dynamic memory may begin in the middle of another.
        let room = properties.shared_per_block as usize - 2048 - behind;
        let slots = (room / stage).min(MOST_SLOTS);
        (slots, 2048 + slots * stage + behind)
    }
}

impl Products {
    /// The tiles of a product that the kernel for many columns is chosen for.
    pub(super) fn tiles(
        &self,
        layout: &Layout,
        columns: usize,
        parts: usize,
        properties: &Properties,
    ) -> Option<Tiles> {
        let tiles = Tiles::of(layout, columns, parts, properties)?;
        let fits = tiles.shared(layout, properties).0 >= 2;
        (self.choice == Choice::Fastest && fits).then_some(tiles)
    }

    /// Launches the kernel for many columns.
    ///
    /// # Safety
    /// As [`Products::linears`]; the columns are in its order.
    pub(super) unsafe fn many(
        &mut self,
        driver: &mut dyn Driver,
        layout: &Layout,
        (columns, tiles): (Columns, Tiles),
        parts: &[Part],
        shape: Shape,
    ) -> Result<(), DriverError> {
        debug_assert!(parts.iter().all(|part| part.first.is_multiple_of(TILE)), "whole tiles");
        let (args, _) = arguments(layout, columns, parts, shape);
        let row_tiles: usize = match shape.gate {
            Some(_) => parts[0].rows.div_ceil(GROUP_ROWS),
            None => parts.iter().map(|part| part.rows.div_ceil(2 * GROUP_ROWS)).sum(),
        };
        let kernel = self.kernel(
            driver,
            &source(layout.kind, layout.segments(), tiles.columns),
            "product_many",
        )?;
        let (slots, shared) = tiles.shared(layout, driver.properties());
        let args = args.size(slots).size(tiles.used).size(row_tiles).size(AHEAD / tiles.columns);
        let blocks = (driver.properties().multiprocessors as usize).min(row_tiles * tiles.count);
        let launch = Launch {
            shared: shared as u32,
            dependent: true,
            ..Launch::line(kernel, blocks as u32, 384, &args)
        };
        // SAFETY: the caller's promise; the ring keeps within the shared memory.
        unsafe { driver.launch(&launch) }
    }
}

/// The kernel for one kind of weight, a number of segments and a number of columns.
pub fn source(kind: Kind, segments: usize, columns: usize) -> Source {
    super::few::kind(sources::MANY, kind)
        .with("SEGMENTS", segments as i64)
        .with("COLUMNS", columns as i64)
}
