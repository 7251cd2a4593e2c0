//! The GEMV kernel for few columns: when it is chosen, and its plan of shared memory.

use super::call::{Columns, ProductSpec, WeightPart, arguments};
use super::layout::{CodeFamily, PackedFormat, PackedLayout, TILE};
use super::{KernelChoice, Products, sources};
use crate::driver::{Driver, DriverError, KernelSource, Launch, Properties};

/// Most columns that it takes.
pub(super) const MOST_COLUMNS: usize = 32;
/// Most warps of a block; more would have too few registers.
const MOST_WARPS: usize = 12;
/// Most stages of a ring.
const MOST_SLOTS: usize = 24;
/// So much shared memory keeps a second block off a multiprocessor. Two blocks that wait for each other's launch get in
/// each other's way.
const ALONE: usize = 118_000;
/// Bytes that a lane stores of 8 columns' sums.
const SUMS: usize = 16;

/// Offsets in the shared memory of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedMemoryPlan {
    /// Blocks of 128 columns a copy.
    stage: usize,
    warps: usize,
    slots: usize,
    page: usize,
    batch: usize,
    ring: usize,
    x: usize,
    sums: usize,
    total: usize,
    saved: usize,
    bytes: usize,
}

/// What a plan follows from.
#[derive(Clone, Copy, Debug)]
struct GemvSizes {
    kind: PackedFormat,
    segments: usize,
    /// Blocks of 128 columns of a segment.
    blocks: usize,
    columns: usize,
    /// Units of 16 rows.
    units: usize,
    /// Tiles of a unit.
    subs: usize,
    multiprocessors: usize,
    shared: usize,
}

const fn up(bytes: usize) -> usize {
    bytes.next_multiple_of(128)
}

impl GemvSizes {
    /// Groups of warps, blocks a stage and bytes of the rings, by what was measured to be fast on an H200.
    fn shape(&self) -> (usize, usize, usize) {
        let even = self.blocks.is_multiple_of(2);
        let narrow = self.columns <= 8;
        match (self.kind.family, self.segments) {
            (CodeFamily::Bf16, 1) if self.blocks >= 16 && self.columns <= 8 && even => {
                (3, 2, 100 << 10)
            }
            (CodeFamily::Bf16, 1) if self.blocks >= 16 => (3, 1, 64 << 10),
            (_, 1) => (8, 1, 64 << 10),
            (CodeFamily::U4, _) if narrow && even => (3, 2, 64 << 10),
            (..) => (3, 1, 64 << 10),
        }
    }

    fn plan(&self) -> Option<SharedMemoryPlan> {
        let (groups, stage, ring) = self.shape();
        let groups = groups.min(MOST_WARPS / self.segments);
        let warps = groups * self.segments;
        let stages = self.blocks / stage;
        let stage_bytes = stage * self.kind.block_bytes();
        let grid = self.multiprocessors.min(self.units).max(1);
        let items = self.units.div_ceil(grid * groups) * self.subs;
        let slots =
            (ring / (warps * stage_bytes)).clamp(2, MOST_SLOTS).min((stages * items).max(2));
        let shapes =
            (2..=slots).rev().flat_map(|slots| (1..=stages).map(move |pages| (slots, pages)));
        // Pages are fewer the longer the ring's last resort: a short ring beats many pages.
        shapes.filter(|&(slots, pages)| pages <= 24 || slots <= 3).find_map(|(slots, pages)| {
            let page = stages.div_ceil(pages);
            if stages.div_ceil(page) != pages {
                return None;
            }
            self.place(
                SharedMemoryPlan {
                    stage,
                    warps,
                    slots,
                    page,
                    batch: items,
                    ..SharedMemoryPlan::default()
                },
                pages,
            )
        })
    }

    /// The plan with its offsets, if it fits into shared memory.
    fn place(&self, plan: SharedMemoryPlan, pages: usize) -> Option<SharedMemoryPlan> {
        let SharedMemoryPlan { stage, warps, slots, page, batch: items, .. } = plan;
        let tiles = self.columns.div_ceil(8);
        let group_sums = if self.kind.offset { 128 / self.kind.group * 8 * tiles * 4 } else { 0 };
        let ring = (warps * slots * 8 + 8).next_multiple_of(1024);
        let x = ring + up(warps * slots * stage * self.kind.block_bytes());
        let sums = x + up(self.segments * self.columns * (page * stage * 256 + 64));
        let total = sums + up(self.segments * page * stage * group_sums);
        let saved = total + up(warps * tiles * 32 * SUMS);
        let available = self.shared.checked_sub(saved)?;
        let item = warps * tiles * 32 * SUMS;
        let batch = match pages {
            1 => items,
            // A pair's two items stay together.
            _ => items.min(available / item / self.subs * self.subs),
        };
        // Activations are copied again for each batch, so a batch of one item costs more than it saves.
        if batch == 0 || (batch < items && batch < 2) {
            return None;
        }
        let bytes = saved + if pages > 1 { batch * item } else { 0 };
        Some(SharedMemoryPlan { batch, ring, x, sums, total, saved, bytes, ..plan })
    }
}

impl Products {
    /// Launches the GEMV kernel; false where it does not apply.
    ///
    /// # Safety
    /// As [`Products::multiply`].
    pub(super) unsafe fn gemv(
        &mut self,
        driver: &mut dyn Driver,
        layout: &PackedLayout,
        columns: Columns,
        parts: &[WeightPart],
        shape: ProductSpec,
    ) -> Result<bool, DriverError> {
        let count = shape.tokens * columns.parts;
        let aligned = parts.iter().all(|part| part.first.is_multiple_of(TILE));
        let able = driver.properties().capability[0] >= 9;
        if self.choice == KernelChoice::General || shape.groups.is_some() || !aligned || !able {
            return Ok(false);
        }
        let (args, units) = arguments(layout, columns, parts, shape);
        let subs = 1 + usize::from(shape.gate.is_some());
        let plan = sizes(layout, count, units as usize, subs, driver.properties());
        let Some(plan) = plan.and_then(|sizes| sizes.plan()) else { return Ok(false) };
        let source = source(layout.kind, plan.stage, count.div_ceil(8));
        let kernel = self.kernel(driver, &source, "product_gemv")?;
        let args = args
            .with(units)
            .size(plan.slots)
            .size(plan.page)
            .size(plan.batch)
            .size(plan.ring)
            .size(plan.x)
            .size(plan.sums)
            .size(plan.total)
            .size(plan.saved);
        let blocks = driver.properties().multiprocessors.min(units);
        let launch = Launch {
            shared: plan.bytes.max(ALONE) as u32,
            dependent: true,
            ..Launch::line(kernel, blocks, 32 * plan.warps as u32, &args)
        };
        // SAFETY: `arguments` writes `Product` with the operands, which are valid by the contract of this function; the
        // plan's offsets end at `plan.bytes`, which `SharedMemoryPlan` keeps within a block's shared memory.
        unsafe { driver.launch(&launch)? };
        Ok(true)
    }
}

fn sizes(
    layout: &PackedLayout,
    columns: usize,
    units: usize,
    subs: usize,
    properties: &Properties,
) -> Option<GemvSizes> {
    let segments = layout.segments();
    (columns <= MOST_COLUMNS && columns > 0).then(|| GemvSizes {
        kind: layout.kind,
        segments,
        blocks: layout.blocks() / segments,
        columns,
        units,
        subs,
        multiprocessors: properties.multiprocessors as usize,
        shared: properties.shared_per_block as usize,
    })
}

/// The kernel for one kind of weight, blocks of a stage and tiles of eight columns.
pub fn source(of: PackedFormat, stage: usize, tiles: usize) -> KernelSource {
    kind(sources::GEMV, of).with("STAGE", stage as i64).with("TILES", tiles as i64)
}

/// A text with the macros that say what kind of weight it is for.
pub(super) fn kind(source: KernelSource, kind: PackedFormat) -> KernelSource {
    source
        .with("FAMILY", kind.family as i64)
        .with("GROUP", kind.group as i64)
        .with("SCALES", kind.scales as i64)
        .with("OFFSET", i64::from(kind.offset))
        .with("BIAS", i64::from(kind.bias))
}
