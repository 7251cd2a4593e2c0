//! Attention and its inputs: `attention_inputs.cu`, `attention.cu`.

use super::{Done, attention_mma};
use crate::cuda::Device;
use crate::driver::{Address, Args, Launch};
use crate::kernels::{ATTENTION, ATTENTION_INPUTS, cache_kind};
use crate::queue::{grid_of, site};
use forerun_backend::op::{Attention, AttentionInputs, AttentionPart, CacheLayout, HeadNorm};
use forerun_backend::{BackendError, View};

/// Keys of a chunk.
pub(crate) const CHUNK: usize = 512;
/// Widest head.
const WIDEST: usize = 512;
/// Bytes of partial results up to which chunks are spread over blocks.
const MOST_PARTIAL: usize = 64 << 20;

pub(crate) fn attention_inputs(device: &mut Device, op: AttentionInputs) -> Done {
    let AttentionInputs { table, rotary, head_dim, queries, keys } = op;
    let rows = match (queries, keys) {
        (_, Some(keys)) => keys.places.len,
        (Some(queries), None) => queries.q.len / (queries.heads * head_dim),
        (None, None) => 0,
    };
    let memory = &device.memory;
    let address = |view: Option<View>| view.map_or(Address::NULL, |view| memory.at(view));
    let side = |args: Args, norm: Option<HeadNorm>, heads: usize| -> Result<Args, BackendError> {
        let weight = norm.map(|norm| device.weights.small("attention_inputs", norm.weight));
        let eps = norm.map_or(0.0, |norm| norm.eps);
        Ok(args.with(weight.transpose()?.unwrap_or(Address::NULL)).with(eps).size(heads))
    };
    let none = CacheLayout { head_dim, ..CacheLayout::NONE };
    let layout = keys.map_or(none, |keys| keys.layout);
    let query_heads = queries.map_or(0, |queries| queries.heads);
    let args = Args::new()
        .with(memory.at(table))
        .with(address(queries.map(|queries| queries.q)))
        .with(address(keys.map(|keys| keys.k)))
        .with(address(keys.map(|keys| keys.v)))
        .with(address(keys.map(|keys| keys.places)))
        .with(address(keys.map(|keys| keys.k_cache)))
        .with(address(keys.map(|keys| keys.v_cache)))
        .with(device.queue.fault);
    let args = side(args, queries.and_then(|queries| queries.norm), query_heads)?;
    let args = side(args, keys.and_then(|keys| keys.k_norm), layout.kv_heads)?;
    let args = side(args, keys.and_then(|keys| keys.v_norm), layout.kv_heads)?;
    let kind = keys.map_or(0, |keys| cache_kind(memory.dtype(keys.k_cache)));
    let other = keys.map_or(kind, |keys| cache_kind(memory.dtype(keys.v_cache)));
    same_kind("attention_inputs", kind, other)?;
    let args = args
        .with(site("attention_inputs"))
        .size(rotary)
        .size(head_dim)
        .size(layout.blocks)
        .size(layout.block)
        .with(kind);
    let heads = query_heads + 2 * layout.kv_heads;
    device.queue.run((&ATTENTION_INPUTS, "attention_inputs"), [rows, heads, 1], 128, &args)
}

fn same_kind(op: &'static str, k: u32, v: u32) -> Done {
    if k == v {
        return Ok(());
    }
    Err(BackendError::Parameter { op, what: "caches of keys and values differ in type" })
}

pub(crate) fn attention(device: &mut Device, op: Attention) -> Done {
    let state = op.out.part(0, 0);
    let (first, end) = (0, usize::MAX);
    attend(device, AttentionPart { whole: op, first, end, begins: true, ends: true, state })
}

pub(crate) fn attention_part(device: &mut Device, op: AttentionPart) -> Done {
    if op.first.is_multiple_of(CHUNK) && (op.ends || op.end.is_multiple_of(CHUNK)) {
        return attend(device, op);
    }
    let what = "keys are cut inside a chunk";
    Err(BackendError::Parameter { op: "attention_part", what })
}

/// Powers of two in a natural exponent.
const LOG2_E: f32 = std::f32::consts::LOG2_E;

fn attend(device: &mut Device, part: AttentionPart) -> Done {
    let op = part.whole;
    if op.layout.head_dim > WIDEST {
        let what = "heads wider than 512";
        return Err(BackendError::Parameter { op: "attention", what });
    }
    let kind = cache_kind(device.memory.dtype(op.k_cache));
    same_kind("attention", kind, cache_kind(device.memory.dtype(op.v_cache)))?;
    match attention_mma::plan(device, &op, kind) {
        Some(plan) => attention_mma::attend(device, &part, kind, plan),
        None => attend_by_element(device, &part, kind),
    }
}

/// Chunks that a line of the tables has.
pub(super) fn chunks_of(op: &Attention) -> usize {
    (op.table_width * op.layout.block).div_ceil(CHUNK)
}

/// The fields of `Attention` in `attention.cu`.
pub(super) fn arguments(device: &Device, part: &AttentionPart, partial: Address) -> Args {
    let (op, memory) = (&part.whole, &device.memory);
    let CacheLayout { blocks, kv_heads, block, head_dim, .. } = op.layout;
    Args::new()
        .with(memory.at(op.q))
        .with(memory.at(op.k_cache))
        .with(memory.at(op.v_cache))
        .with(memory.at(op.positions))
        .with(memory.at(op.span_of))
        .with(memory.at(op.tables))
        .with(memory.at(op.out))
        .with(partial)
        .with(memory.at(part.state))
        .with(device.queue.fault)
        .with(op.window.map_or(u64::MAX, |window| window as u64))
        .with(part.first as u64)
        .with(part.end as u64)
        .with(u32::from(part.begins))
        .with(u32::from(part.ends))
        .with(site("attention"))
        .size(op.heads)
        .size(kv_heads)
        .size(head_dim)
        .size(blocks)
        .size(block)
        .size(op.table_width)
        .size(op.tables.len / op.table_width)
        .size(chunks_of(op))
        .with(op.scale * LOG2_E)
}

/// Attention of any width over any cache.
fn attend_by_element(device: &mut Device, part: &AttentionPart, kind: u32) -> Done {
    let op = &part.whole;
    let CacheLayout { kv_heads, head_dim, .. } = op.layout;
    let (rows, chunks) = (op.positions.len, chunks_of(op));
    let per_key = op.heads / kv_heads;
    let (name, together) = match per_key {
        1 => ("attention_1", 1),
        2..=4 => ("attention_4", 4),
        _ => ("attention_8", 8),
    };
    let blocks_of_row = kv_heads * per_key.div_ceil(together);
    // Few rows fill the device only if their chunks are blocks of their own.
    let few =
        rows * blocks_of_row < 2 * device.queue.driver().properties().multiprocessors as usize;
    let partial = (rows * op.heads * chunks * (head_dim + 2)).saturating_mul(4);
    let spread = few && chunks > 1 && chunks < 65536 && partial <= MOST_PARTIAL;
    let scratch = if spread { device.queue.scratch(partial as u64)? } else { Address::NULL };
    let args = arguments(device, part, scratch);
    let source = &ATTENTION[kind as usize];
    let kernel = device.queue.kernel(source, name)?;
    let grid = grid_of(name, [rows, blocks_of_row, if spread { chunks } else { 1 }])?;
    let shared = (together * (head_dim + CHUNK) * 4) as u32;
    device.queue.launch(&Launch { grid, shared, ..Launch::line(kernel, 1, 256, &args) })?;
    if spread { merge(device, op, kind, &args) } else { Ok(()) }
}

/// Merges the chunks of every row and head.
pub(super) fn merge(device: &mut Device, op: &Attention, kind: u32, args: &Args) -> Done {
    let grid = [op.positions.len, op.heads, 1];
    device.queue.run((&ATTENTION[kind as usize], "attention_merge"), grid, 256, args)
}
