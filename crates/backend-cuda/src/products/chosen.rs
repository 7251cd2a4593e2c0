//! The kernel for experts that a few rows chose.

use super::call::{Columns, Part, Shape, arguments};
use super::layout::{Kind, Layout, TILE};
use super::{Choice, Products, few, sources};
use crate::driver::{Address, Driver, DriverError, Launch, Properties, Source};

/// Most warps of a block.
const MOST_WARPS: usize = 12;
/// Most stages of a ring.
const MOST_SLOTS: usize = 24;
/// Keeps a second block off a multiprocessor.
const ALONE: usize = 118_000;
/// Shared memory that is left to others.
const SPARE: usize = 16 << 10;

/// Experts by pair, and where results go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    /// The pairs' experts, read where the launch has no tiles.
    pub(super) chosen: Address,
    pub(super) fault: (Address, u32),
    pub(super) experts: usize,
    /// The next product's columns and their depth, in place of f32.
    pub(super) next: Option<(Address, usize)>,
    /// The kernel ahead began when all experts were known.
    pub(super) early: bool,
    /// Columns of a tile: 8 or 16.
    pub(super) columns: usize,
}

/// Whether experts in these rows of a stack begin with a tile.
pub(super) fn aligned(first: usize, stride: usize) -> bool {
    first.is_multiple_of(TILE) && stride.is_multiple_of(TILE)
}

impl Products {
    /// Whether the kernel is there and may be used.
    pub(super) fn chooses(&self, properties: &Properties) -> bool {
        self.choice == Choice::Fastest && properties.capability[0] >= 9
    }

    /// Multiplies pairs' columns with their experts.
    ///
    /// # Safety
    /// As [`Products::linears`].
    pub(super) unsafe fn chosen(
        &mut self,
        driver: &mut dyn Driver,
        (layout, columns): (&Layout, Columns),
        parts: &[Part],
        shape: Shape,
        chosen: Chosen,
    ) -> Result<(), DriverError> {
        let properties = driver.properties();
        let (segments, tiles) = (layout.segments(), chosen.columns / 8);
        let blocks = layout.blocks() / segments;
        let groups = if segments == 1 { 8 } else { MOST_WARPS / segments };
        let warps = groups * segments;
        let stage = if blocks.is_multiple_of(2) && tiles == 1 { 2 } else { 1 };
        let stage_bytes = stage * layout.kind.block_bytes();
        let total = warps * tiles * 512;
        let room = properties.shared_per_block as usize - total - SPARE;
        let slots = (room / (warps * stage_bytes)).clamp(2, MOST_SLOTS);
        let slots = slots.min((2 * blocks / stage).max(2));
        let at_total = (warps * slots * 8).next_multiple_of(1024) + warps * slots * stage_bytes;
        let row_units = parts[0].rows.div_ceil(TILE);
        let most = shape.groups.map_or(shape.tokens, |groups| groups.most) * row_units;
        let grid = (properties.multiprocessors as usize).min(most).max(1);
        let (args, _) = arguments(layout, columns, parts, shape);
        let (next, next_depth) = chosen.next.unwrap_or((Address::NULL, 0));
        let args = args
            .with(chosen.chosen)
            .with(next)
            .with(chosen.fault.0)
            .with(chosen.fault.1)
            .size(chosen.experts)
            .size(next_depth)
            .size(row_units)
            .size(slots)
            .size(at_total)
            .with(u32::from(chosen.early));
        let kernel = self.kernel(driver, &source(layout.kind, stage, tiles), "product_chosen")?;
        let launch = Launch {
            shared: (at_total + total).max(ALONE) as u32,
            dependent: true,
            ..Launch::line(kernel, grid as u32, 32 * warps as u32, &args)
        };
        // SAFETY: the caller's promise; the rings keep within the shared memory.
        unsafe { driver.launch(&launch) }
    }
}

/// The kernel for one kind of weight, blocks of a stage and tiles of eight columns.
pub fn source(kind: Kind, stage: usize, tiles: usize) -> Source {
    few::kind(sources::CHOSEN, kind).with("STAGE", stage as i64).with("TILES", tiles as i64)
}
