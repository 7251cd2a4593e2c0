//! Attention by the tensor core: `attention_mma.cu`.

use super::Done;
use super::attention::{CHUNK, arguments, chunks_of, merge};
use crate::cuda::Device;
use crate::driver::{Address, Args, Launch};
use crate::kernels::attention_mma;
use crate::products::Precision;
use crate::queue::site;
use forerun_backend::op::{Attention, AttentionPart, CacheLayout};

/// Rows of a launch.
const MOST_ROWS: usize = 256;
/// Positions of a block of the cache.
const BLOCK: usize = 64;
/// Bytes of partial results of a launch.
const MOST_PARTIAL: usize = 128 << 20;
/// Sixteens of operand rows of a tile, with one limb and with several.
const MOST_SIXTEENS: [usize; 2] = [4, 2];
/// Numbers of a line of scores or weights in shared memory.
const STRIDE: usize = 72;
/// Stages of the ring.
const MOST_SLOTS: usize = 12;
const FEWEST_SLOTS: usize = 3;
/// Bytes of the list of tiles.
const TILES: usize = 9 * 1024;
/// Threads of a block.
const THREADS: u32 = 288;

/// How a call is cut into launches, and what a block's shared memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionPlan {
    /// Rows of a launch.
    rows: usize,
    /// Rows of a tile.
    tile: usize,
    limbs: usize,
    sixteens: usize,
    slots: usize,
    shared: usize,
}

/// The plan of a call, where the kernel is for it. That depends on nothing that may differ between two calls on the
/// same cache, so a row is always computed the same way.
pub(super) fn plan(device: &Device, op: &Attention, kind: u32) -> Option<AttentionPlan> {
    let CacheLayout { kv_heads, block, head_dim, .. } = op.layout;
    let properties = device.queue.driver().properties();
    let limbs = match (device.precision, kind) {
        (_, 0 | 3) => return None,
        (Precision::Half, _) => 1,
        // 22 and 24 bits of a query or weight.
        (Precision::Exact, 1) => 2,
        (Precision::Exact, _) => 3,
    };
    let most = MOST_SIXTEENS[usize::from(limbs > 1)];
    let (group, chunks) = (op.heads / kv_heads, chunks_of(op));
    let able = properties.capability[0] >= 9 && block == BLOCK;
    if !able || !matches!(head_dim, 64 | 128 | 256) || group > most * 16 {
        return None;
    }
    // Whether the largest tile fits is the same for every call.
    let fixed = |sixteens: usize| {
        let of_row = limbs * (head_dim * 2 + STRIDE * 2) + 2 * STRIDE * 4 + 16;
        1024 + sixteens * 16 * of_row
    };
    // The list of tiles is in static shared memory.
    let available = (properties.shared_per_block as usize).checked_sub(TILES)?;
    let slots_of =
        |sixteens: usize| available.saturating_sub(fixed(sixteens)) / (BLOCK * head_dim * 2);
    if slots_of(most) < FEWEST_SLOTS {
        return None;
    }
    let per_row = op.heads * chunks * (head_dim + 2) * 4;
    let rows = (MOST_PARTIAL / per_row.max(1)).clamp(1, MOST_ROWS).min(op.positions.len.max(1));
    let tile = (most * 16 / group).min(rows);
    let sixteens = (tile * group).div_ceil(16);
    let slots = slots_of(sixteens).min(MOST_SLOTS);
    let shared = fixed(sixteens) + slots * BLOCK * head_dim * 2;
    Some(AttentionPlan { rows, tile, limbs, sixteens, slots, shared })
}

pub(super) fn attend(
    device: &mut Device,
    part: &AttentionPart,
    kind: u32,
    plan: AttentionPlan,
) -> Done {
    let op = part.whole;
    let (rows, width) = (op.positions.len, op.heads * op.layout.head_dim);
    for first in (0..rows).step_by(plan.rows) {
        let count = plan.rows.min(rows - first);
        let state = op.heads * AttentionPart::state_width(op.layout.head_dim);
        let some = Attention {
            q: op.q.part(first * width, count * width),
            positions: op.positions.part(first, count),
            span_of: op.span_of.part(first, count),
            out: op.out.part(first * width, count * width),
            ..op
        };
        let carried = part.state.len > 0;
        let state =
            if carried { part.state.part(first * state, count * state) } else { part.state };
        launch(device, &AttentionPart { whole: some, state, ..*part }, kind, plan)?;
    }
    Ok(())
}

/// A launch over at most `plan.rows` rows.
fn launch(device: &mut Device, part: &AttentionPart, kind: u32, plan: AttentionPlan) -> Done {
    let op = &part.whole;
    let CacheLayout { blocks, kv_heads, head_dim, .. } = op.layout;
    let (rows, chunks) = (op.positions.len, chunks_of(op));
    let partial = device.queue.scratch((rows * op.heads * chunks * (head_dim + 2) * 4) as u64)?;
    let args = mma_arguments(device, part, partial)
        .size(rows)
        .size(op.heads)
        .size(kv_heads)
        .size(blocks)
        .size(op.table_width)
        .size(op.tables.len / op.table_width)
        .size(chunks)
        .size(plan.tile)
        .size(plan.slots)
        .size(plan.sixteens)
        .with(op.scale);
    let source = attention_mma(head_dim, kind, plan.limbs);
    let kernel = device.queue.kernel(&source, "attention_mma")?;
    let seen = part.end.min(op.table_width * BLOCK).saturating_sub(part.first).div_ceil(CHUNK);
    let multiprocessors = device.queue.driver().properties().multiprocessors as usize;
    let blocks = (rows * kv_heads * seen).min(multiprocessors) as u32;
    let shared = plan.shared as u32;
    device.queue.launch(&Launch { shared, ..Launch::line(kernel, blocks, THREADS, &args) })?;
    let args = arguments(device, part, partial);
    merge(device, op, kind, &args)
}

/// The addresses and limits of `AttentionMma`.
fn mma_arguments(device: &Device, part: &AttentionPart, partial: Address) -> Args {
    let (op, memory) = (&part.whole, &device.memory);
    Args::new()
        .with(memory.at(op.q))
        .with(memory.at(op.k_cache))
        .with(memory.at(op.v_cache))
        .with(memory.at(op.positions))
        .with(memory.at(op.span_of))
        .with(memory.at(op.tables))
        .with(partial)
        .with(device.queue.fault)
        .with(op.window.map_or(u64::MAX, |window| window as u64))
        .with(part.first as u64)
        .with(part.end as u64)
        .with(site("attention"))
}
