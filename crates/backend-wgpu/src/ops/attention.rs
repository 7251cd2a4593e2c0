//! Attention and what goes in: `attention_inputs.wgsl`, `attention.wgsl`.

use super::Lowered;
use super::products::fits;
use crate::device::Device;
use crate::kernels::{ATTENTION, ATTENTION_MERGE, KEEP, Kernel, QUERIES, site};
use crate::launch::{Words, folded};
use crate::pipelines::Call;
use forerun_backend::op::{Attention, AttentionInputs, CacheLayout, HeadNorm, NewKeys, Queries};
use forerun_backend::{BackendError, View};
use forerun_base::DType;

/// Elements of a head that a kernel has workgroup memory for.
const MOST: usize = 1024;

/// The number of a cache's type.
fn kind(device: &Device, cache: View) -> u32 {
    match device.memory.dtype(cache) {
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I8 => 3,
        _ => 0,
    }
}

/// A norm's weight and what is added to the mean square.
fn norm(
    device: &mut Device,
    norm: Option<HeadNorm>,
) -> Result<(Option<wgpu::Buffer>, f32), BackendError> {
    let weight = norm.map(|norm| device.plain(norm.weight)).transpose()?;
    Ok((weight, norm.map_or(1.0, |norm| norm.eps)))
}

pub(super) fn attention_inputs(device: &mut Device, op: AttentionInputs) -> Lowered {
    if let Some(queries) = op.queries {
        turn_queries(device, &op, queries)?;
    }
    if let Some(keys) = op.keys {
        keep(device, &op, &keys, true)?;
        keep(device, &op, &keys, false)?;
    }
    Ok(())
}

fn turn_queries(device: &mut Device, op: &AttentionInputs, queries: Queries) -> Lowered {
    fits("attention_inputs", op.head_dim, MOST)?;
    let Queries { q, heads, norm: head_norm } = queries;
    let (weight, eps) = norm(device, head_norm)?;
    let rows = q.len / (heads * op.head_dim);
    let has_norm = usize::from(weight.is_some());
    let words =
        Words::of(&[op.table.start, q.start, 0, 0, rows, heads, op.head_dim, op.rotary, has_norm]);
    let words = words.and_then(|words| words.float(eps).sizes(&[0, 0, 0, 0]));
    let memory = &device.memory;
    let call = Call {
        kernel: &QUERIES,
        constants: &[],
        operands: &[memory.buffer(op.table), weight.as_ref(), None, None, memory.buffer(q), None],
        words,
        grid: folded(rows * heads),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

/// Keys, or values, to their places.
fn keep(device: &mut Device, op: &AttentionInputs, keys: &NewKeys, is_key: bool) -> Lowered {
    let CacheLayout { blocks, kv_heads, block, head_dim, .. } = keys.layout;
    let rows = keys.places.len;
    let (x, cache, head_norm, rotary) = if is_key {
        (keys.k, keys.k_cache, keys.k_norm, op.rotary)
    } else {
        (keys.v, keys.v_cache, keys.v_norm, 0)
    };
    // A row that is only moved may be as wide as a buffer: it is moved as many narrow heads.
    let moved = kv_heads == 1 && block == 1 && blocks == 1 && rotary == 0 && head_norm.is_none();
    if moved && !keys.layout.coded {
        return keep_whole(device, keys, (x, cache));
    }
    fits("attention_inputs", head_dim, MOST)?;
    let kind = kind(device, cache);
    let (weight, eps) = norm(device, head_norm)?;
    let has_norm = usize::from(weight.is_some());
    let words = Words::of(&[
        op.table.start,
        x.start,
        keys.places.start,
        cache.start,
        rows,
        kv_heads,
        head_dim,
        rotary,
        has_norm,
    ]);
    let site = site("attention_inputs") as usize;
    let words =
        words.and_then(|words| words.float(eps).sizes(&[blocks, block, usize::from(is_key), site]));
    let memory = &device.memory;
    let call = Call {
        kernel: &KEEP,
        constants: &[("KIND", kind)],
        operands: &[
            memory.buffer(op.table),
            weight.as_ref(),
            memory.buffer(x),
            memory.buffer(keys.places),
            None,
            memory.buffer(cache),
        ],
        words,
        grid: folded(rows * kv_heads),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

/// A cache of one place: its row in parts that a kernel has memory for.
fn keep_whole(device: &mut Device, keys: &NewKeys, (x, cache): (View, View)) -> Lowered {
    let kind = kind(device, cache);
    let dim = keys.layout.head_dim;
    let site = site("attention_inputs") as usize;
    for first in (0..if keys.places.len > 0 { dim } else { 0 }).step_by(MOST) {
        let part = MOST.min(dim - first);
        let words = Words::of(&[
            0,
            x.start + first,
            keys.places.start,
            cache.start + first,
            1,
            1,
            part,
            0,
            0,
        ]);
        let words = words.and_then(|words| words.float(1.0).sizes(&[1, 1, 0, site]));
        let memory = &device.memory;
        let call = Call {
            kernel: &KEEP,
            constants: &[("KIND", kind)],
            operands: &[
                None,
                None,
                memory.buffer(x),
                memory.buffer(keys.places),
                None,
                memory.buffer(cache),
            ],
            words,
            grid: [1, 1, 1],
        };
        Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)?;
    }
    Ok(())
}

/// Keys of a partition: see the kernel's text.
const PARTITION: usize = 1024;
/// Workgroups that fill an adapter; with fewer, partitions are spread over several.
const ENOUGH: usize = 512;
/// Bytes of what partitions leave.
const LEFT: usize = 64 << 20;

pub(super) fn attention(device: &mut Device, op: Attention) -> Lowered {
    let CacheLayout { block, head_dim, .. } = op.layout;
    fits("attention", head_dim, MOST)?;
    let (rows, context) = (op.positions.len, op.table_width.saturating_mul(block));
    let partitions = context.div_ceil(PARTITION);
    let pairs = rows * op.heads;
    let left = pairs.saturating_mul(partitions).saturating_mul(4 * (head_dim + 2));
    let [Some(q), Some(out)] = [op.q, op.out].map(|view| device.memory.buffer(view).cloned())
    else {
        return Ok(());
    };
    if partitions < 2 || pairs >= ENOUGH || left > LEFT || partitions > 65_535 {
        let ends = [(&q, op.q.start), (&out, op.out.start)];
        return launch(device, &op, (&ATTENTION, partitions, false), ends, folded(pairs));
    }
    let parts = device.scratch(0, left)?;
    let ends = [(&q, op.q.start), (&parts, 0)];
    launch(device, &op, (&ATTENTION, partitions, true), ends, [pairs, partitions, 1])?;
    let ends = [(&parts, 0), (&out, op.out.start)];
    launch(device, &op, (&ATTENTION_MERGE, partitions, false), ends, [pairs, 1, 1])
}

/// A kernel of attention between two buffers.
fn launch(
    device: &mut Device,
    op: &Attention,
    (kernel, partitions, split): (&'static Kernel, usize, bool),
    [from, to]: [(&wgpu::Buffer, usize); 2],
    grid: [usize; 3],
) -> Lowered {
    let CacheLayout { blocks, kv_heads, block, head_dim, .. } = op.layout;
    let kind = kind(device, op.k_cache);
    // No position is further than all blocks.
    let window = op.window.unwrap_or(usize::MAX).min(u32::MAX as usize);
    let words = Words::of(&[
        from.1,
        op.k_cache.start,
        op.v_cache.start,
        op.positions.start,
        op.span_of.start,
        op.tables.start,
        to.1,
        op.positions.len,
        op.heads,
        kv_heads,
        head_dim,
        block,
        blocks,
        op.table_width,
        op.tables.len / op.table_width,
        window,
    ]);
    let site = site("attention") as usize;
    let memory = &device.memory;
    let call = Call {
        kernel,
        constants: &[("KIND", kind), ("SPLIT", u32::from(split))],
        operands: &[
            Some(from.0),
            memory.buffer(op.k_cache),
            memory.buffer(op.v_cache),
            memory.buffer(op.positions),
            memory.buffer(op.span_of),
            memory.buffer(op.tables),
            Some(to.0),
        ],
        words: words.and_then(|words| words.float(op.scale).sizes(&[site, partitions])),
        grid,
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}
