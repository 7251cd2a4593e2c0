//! The GEMV kernel for the experts that rows chose.

use super::call::ProductCall;
use super::layout::{PackedFormat, TILE};
use super::{KernelChoice, Products, gemv, sources};
use crate::driver::{Address, Driver, DriverError, KernelSource, Launch, Properties};

/// Most warps of a block.
const MOST_WARPS: usize = 12;
/// Most stages of a ring.
const MOST_SLOTS: usize = 24;
/// So much shared memory keeps a second block off a multiprocessor; see `gemv`.
const ALONE: usize = 118_000;
/// Shared memory that is left to the L1 cache.
const SPARE: usize = 16 << 10;

/// Experts by pair, and where results go.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertGemv {
    /// The pairs' experts, read where the launch has no tiles.
    pub(super) chosen: Address,
    pub(super) fault: (Address, u32),
    pub(super) experts: usize,
    /// The next product's columns and their depth, in place of f32.
    pub(super) next: Option<(Address, usize)>,
    /// The experts were known before the previous kernel began, so weights may be copied before it ends.
    pub(super) early: bool,
    /// Columns of a tile: 8 or 16.
    pub(super) columns: usize,
}

/// Whether experts in these rows of a stack begin with a tile.
pub(super) fn aligned(first: usize, stride: usize) -> bool {
    first.is_multiple_of(TILE) && stride.is_multiple_of(TILE)
}

impl Products {
    /// Whether the device has the kernel and the choice allows it.
    pub(super) fn has_expert_gemv(&self, properties: &Properties) -> bool {
        self.choice == KernelChoice::Fastest && properties.capability[0] >= 9
    }

    /// Multiplies pairs' columns with their experts.
    ///
    /// # Safety
    /// As [`Products::multiply`]; `chosen.chosen` holds `shape.tokens` u32, and `chosen.next`, if any, has
    /// `tokens · parts · depth` bf16.
    pub(super) unsafe fn expert_gemv(
        &mut self,
        driver: &mut dyn Driver,
        call: &ProductCall<'_>,
        chosen: ExpertGemv,
    ) -> Result<(), DriverError> {
        let ProductCall { layout, parts, shape, .. } = *call;
        let properties = driver.properties();
        let (segments, tiles) = (layout.segments(), chosen.columns / 8);
        let blocks = layout.blocks() / segments;
        let groups = if segments == 1 { 8 } else { MOST_WARPS / segments };
        let warps = groups * segments;
        let stage = if blocks.is_multiple_of(2) && tiles == 1 { 2 } else { 1 };
        let stage_bytes = stage * layout.kind.block_bytes();
        let total = warps * tiles * 512;
        let available = properties.shared_per_block as usize - total - SPARE;
        let slots = (available / (warps * stage_bytes)).clamp(2, MOST_SLOTS);
        let slots = slots.min((2 * blocks / stage).max(2));
        let at_total = (warps * slots * 8).next_multiple_of(1024) + warps * slots * stage_bytes;
        let row_units = parts[0].rows.div_ceil(TILE);
        let most = shape.groups.map_or(shape.tokens, |groups| groups.most) * row_units;
        let grid = (properties.multiprocessors as usize).min(most).max(1);
        let (args, _) = call.arguments();
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
        let kernel =
            self.kernel(driver, &source(layout.kind, stage, tiles), "product_expert_gemv")?;
        let launch = Launch {
            shared: (at_total + total).max(ALONE) as u32,
            ..Launch::line(kernel, grid as u32, 32 * warps as u32, &args)
        };
        // SAFETY: `arguments` writes `Product` with the operands, which are valid by the contract of this function;
        // `at_total + total` bytes of shared memory hold the rings and the sums behind them.
        unsafe { driver.launch(&launch) }
    }
}

/// The kernel for one kind of weight, blocks of a stage and tiles of eight columns.
pub fn source(kind: PackedFormat, stage: usize, tiles: usize) -> KernelSource {
    gemv::kind(sources::EXPERT_GEMV, kind).with("STAGE", stage as i64).with("TILES", tiles as i64)
}
