//! The GEMV kernel for few columns: when it is chosen, and its plan of shared memory.

use super::call::{ProductCall, WeightPart};
use super::layout::{CodeFamily, PackedFormat, TILE};
use super::{DeviceWeight, KernelChoice, Products, sources};
use crate::driver::{Address, Driver, DriverError, KernelSource, Launch, Properties};

/// Most columns that it takes.
pub(super) const MOST_COLUMNS: usize = 32;
/// Most warps of a block; more would have too few registers.
const MOST_WARPS: usize = 16;
/// Most stages of a ring.
const MOST_SLOTS: usize = 24;
/// So much shared memory keeps a second block off a multiprocessor. Two blocks that wait for each other's launch get in
/// each other's way.
const ALONE: usize = 118_000;
/// Bytes of shared memory that the kernel has of its own.
const STATIC: usize = 2048;
/// Bytes that a lane stores of 8 columns' sums.
const SUMS: usize = 16;
/// Weights that are multiplied beside the others at most.
const MOST_BESIDE: usize = 2;
/// Columns up to which they are: a thirteenth warp leaves each fewer registers.
const MOST_COLUMNS_BESIDE: usize = 16;
/// Stages of the ring of the warp that multiplies them, each a block of bfloat16.
const SIDE_SLOTS: usize = 8;

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
    side: usize,
    saved: usize,
    bytes: usize,
}

/// Threads that add up a row's squares.
const NORM_THREADS: usize = 256;
/// Numbers of a row that a thread makes columns of.
const NUMBERS: usize = 16;

impl SharedMemoryPlan {
    /// Whether a block can make the columns of a row: all at once, with as many threads as that takes.
    fn makes_columns(&self, sizes: &GemvSizes, depth: usize) -> bool {
        let threads = 32 * (self.warps + usize::from(sizes.side));
        let whole = self.page * self.stage == sizes.blocks;
        whole && threads >= NORM_THREADS && threads * NUMBERS >= depth
    }
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
    /// Whether weights of bfloat16 are multiplied beside.
    side: bool,
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
        let side_slots = if self.side { SIDE_SLOTS } else { 0 };
        let ring = ((warps * slots + 1 + side_slots) * 8).next_multiple_of(1024);
        let x = ring + up(warps * slots * stage * self.kind.block_bytes());
        let sums = x + up(self.segments * self.columns * (page * stage * 256 + 64));
        let total = sums + up(self.segments * page * stage * group_sums);
        let side = total + up(warps * tiles * 32 * SUMS);
        let of_side = side_slots * PackedFormat::BF16.block_bytes() + tiles * 32 * SUMS;
        let saved = side + if self.side { up(of_side) } else { 0 };
        let available = self.shared.checked_sub(saved)?;
        let item = warps * tiles * 32 * SUMS;
        let batch = match pages {
            1 => items,
            // The warp beside the others needs all of the activations.
            _ if self.side => return None,
            // A pair's two items stay together.
            _ => items.min(available / item / self.subs * self.subs),
        };
        // Activations are copied again for each batch, so a batch of one item costs more than it saves.
        if batch == 0 || (batch < items && batch < 2) {
            return None;
        }
        let bytes = saved + if pages > 1 { batch * item } else { 0 };
        Some(SharedMemoryPlan { batch, ring, x, sums, total, side, saved, bytes, ..plan })
    }
}

impl Products {
    /// The plan of a call, where the kernel is for it.
    fn gemv_plan(
        &self,
        properties: &Properties,
        call: &ProductCall<'_>,
    ) -> Option<SharedMemoryPlan> {
        let ProductCall { layout, columns, parts, side, shape, rows } = *call;
        let count = shape.tokens * columns.parts;
        let aligned = parts.iter().all(|part| part.first.is_multiple_of(TILE));
        let able = properties.capability[0] >= 9 && self.choice == KernelChoice::Fastest;
        let few = (1..=MOST_COLUMNS).contains(&count) && columns.tiles.is_none();
        if !aligned || !able || !few || shape.groups.is_some() {
            return None;
        }
        let units = call.arguments().1;
        // Blocks that multiply nothing else have no activations.
        let besides: u32 = side.iter().map(|part| DeviceWeight::units(part.rows)).sum();
        let able = side.len() <= MOST_BESIDE && besides <= units && count <= MOST_COLUMNS_BESIDE;
        if besides > 0 && (!able || layout.kind.planes > 1) {
            return None;
        }
        let segments = layout.segments();
        let sizes = GemvSizes {
            kind: layout.kind,
            segments,
            blocks: layout.blocks() / segments,
            columns: count,
            units: units as usize,
            subs: 1 + usize::from(shape.gate.is_some()),
            side: !side.is_empty(),
            multiprocessors: properties.multiprocessors as usize,
            shared: properties.shared_per_block as usize - STATIC,
        };
        let plan = sizes.plan()?;
        (rows.is_none() || plan.makes_columns(&sizes, layout.depth())).then_some(plan)
    }

    /// Whether a call goes to the GEMV kernel.
    pub(super) fn takes_gemv(&self, properties: &Properties, call: &ProductCall<'_>) -> bool {
        self.gemv_plan(properties, call).is_some()
    }

    /// Launches the GEMV kernel; false where it does not apply.
    ///
    /// # Safety
    /// `call` is as [`ProductCall`] says.
    pub(super) unsafe fn gemv(
        &mut self,
        driver: &mut dyn Driver,
        call: &ProductCall<'_>,
    ) -> Result<bool, DriverError> {
        let ProductCall { layout, columns, side, shape, rows, .. } = *call;
        let Some(plan) = self.gemv_plan(driver.properties(), call) else { return Ok(false) };
        let tiles = (shape.tokens * columns.parts).div_ceil(8);
        let source =
            source(layout.kind, plan.stage, tiles).with("BESIDE", i64::from(!side.is_empty()));
        let kernel = self.kernel(driver, &source, "product_gemv")?;
        let (mut args, units) = call.arguments();
        let mut side_units = 0;
        for i in 0..MOST_BESIDE {
            let part = side.get(i).copied().unwrap_or(WeightPart::NONE);
            args = part.fields(args).with(side_units);
            side_units += DeviceWeight::units(part.rows);
        }
        let (next, next_depth) = shape.next.unwrap_or((Address::NULL, 0));
        let norm = rows.and_then(|rows| rows.norm());
        let args = args
            .with(rows.map_or(Address::NULL, |rows| rows.at))
            .with(norm.map_or(Address::NULL, |norm| norm.weight))
            .size(rows.map_or(0, |rows| rows.dim))
            .with(norm.map_or(0.0, |norm| norm.eps))
            .with(next)
            .size(next_depth)
            .with(side_units)
            .with(units)
            .size(plan.slots)
            .size(plan.page)
            .size(plan.batch)
            .size(plan.ring)
            .size(plan.x)
            .size(plan.sums)
            .size(plan.total)
            .size(plan.side)
            .size(plan.saved);
        let blocks = driver.properties().multiprocessors.min(units);
        let warps = plan.warps + usize::from(side_units > 0);
        let launch = Launch {
            shared: plan.bytes.max(ALONE) as u32,
            ..Launch::line(kernel, blocks, 32 * warps as u32, &args)
        };
        // SAFETY: `arguments` writes `Product` with the operands, which are valid by the contract of this function; the
        // plan's offsets end at `plan.bytes`, which `SharedMemoryPlan` keeps within a block's shared memory.
        unsafe { driver.launch(&launch)? };
        Ok(true)
    }
}

/// The kernel for one kind of weight, blocks of a stage and tiles of eight columns; `BESIDE` is left to say.
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
