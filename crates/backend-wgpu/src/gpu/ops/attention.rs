//! Attention and what goes in: `attention_inputs.wgsl`, `attention.wgsl`.

use super::Lowered;
use crate::gpu::kernels::{ATTENTION, ATTENTION_INPUTS, ATTENTION_MERGE, Kernel, site};
use crate::gpu::launch::{BoundOperand, Call, MOST as MOST_GROUPS, Words, folded};
use crate::gpu::lowering::{Lowering, Share, bound, bound_or_absent, plain, portion};
use forerun_backend::op::{
    Attention, AttentionInputs, AttentionPart, CacheLayout, HeadNorm, NewKeys,
};
use forerun_backend::{BackendError, Cost, View};
use forerun_base::DType;

/// Elements of a head that a kernel has workgroup memory for.
const MOST: usize = 1024;
/// Keys of a partition: see the kernel's text.
pub(crate) const PARTITION: usize = 1024;
/// Workgroups that fill an adapter; with fewer, partitions are spread over several.
const ENOUGH: usize = 512;
/// Bytes of what partitions leave.
const LEFT: usize = 64 << 20;

/// Bits of `flags` in the kernel's text.
const BEGINS: usize = 1;
const ENDS: usize = 2;
const GATED: usize = 4;

/// The number of a cache's type.
fn kind(to: &Lowering<'_>, cache: View) -> u32 {
    match to.dtype(cache) {
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::I8 => 3,
        _ => 0,
    }
}

/// An error where a head is wider than a kernel's memory.
pub(super) fn fits(op: &'static str, dim: usize, most: usize) -> Lowered {
    if dim <= most {
        return Ok(());
    }
    Err(BackendError::Device(format!("{op}: heads of {dim} elements; the kernels hold {most}")))
}

pub(super) fn attention_inputs(to: &mut Lowering<'_>, op: AttentionInputs) -> Lowered {
    let work = to.work(op);
    let Some(keys) = op.keys else { return inputs(to, &op, work) };
    let CacheLayout { blocks, kv_heads, block, head_dim, coded, .. } = keys.layout;
    // A row that is only moved may be as wide as a buffer: it is moved in parts that a kernel has memory for.
    let plain = op.rotary == 0 && keys.k_norm.is_none() && keys.v_norm.is_none();
    let whole = [kv_heads, block, blocks] == [1; 3] && plain && op.queries.is_none() && !coded;
    if !whole || head_dim <= MOST || keys.places.len != 1 {
        return inputs(to, &op, work);
    }
    (0..head_dim).step_by(MOST).try_for_each(|first| {
        let head_dim = MOST.min(head_dim - first);
        let part = |view: View| view.part(first, head_dim);
        let layout = CacheLayout { head_dim, ..keys.layout };
        let (k, v) = (part(keys.k), part(keys.v));
        let (k_cache, v_cache) = (part(keys.k_cache), part(keys.v_cache));
        let keys = Some(NewKeys { k, v, k_cache, v_cache, layout, ..keys });
        inputs(to, &AttentionInputs { head_dim, keys, ..op }, work)
    })
}

fn inputs(to: &mut Lowering<'_>, op: &AttentionInputs, work: Cost) -> Lowered {
    let AttentionInputs { table, rotary, head_dim, queries, keys } = *op;
    fits("attention_inputs", head_dim, MOST)?;
    let heads = queries.map_or(0, |queries| queries.heads);
    let rows = match (queries, keys) {
        (_, Some(keys)) => keys.places.len,
        (Some(queries), None) => queries.q.len / (heads * head_dim),
        (None, None) => 0,
    };
    let none = CacheLayout { head_dim, ..CacheLayout::NONE };
    let layout = keys.map_or(none, |keys| keys.layout);
    let CacheLayout { kv_heads, .. } = layout;
    let of_keys = |view: fn(&NewKeys) -> View| keys.as_ref().map(view);
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let caches = [of_keys(|keys| keys.k_cache), of_keys(|keys| keys.v_cache)];
    let from = [of_keys(|keys| keys.k), of_keys(|keys| keys.v)];
    let places = of_keys(|keys| keys.places);
    let q = queries.map(|queries| queries.q);
    let norms: [Option<HeadNorm>; 3] = [
        queries.and_then(|queries| queries.norm),
        keys.and_then(|keys| keys.k_norm),
        keys.and_then(|keys| keys.v_norm),
    ];
    let normed = norms.iter().enumerate().map(|(i, norm)| usize::from(norm.is_some()) << i).sum();
    let first = [table.start, start(q), start(places), rows, heads, kv_heads];
    let words = Words::of(&first).and_then(|words| words.sizes(&[head_dim, rotary, normed]));
    let eps = norms.map(|norm| norm.map_or(1.0, |norm| norm.eps));
    let words = words.map(|words| eps.into_iter().fold(words, Words::float));
    let site = site("attention_inputs") as usize;
    let places_of = [layout.blocks, layout.block, site, start(from[0]), start(from[1])];
    let words = words
        .and_then(|words| words.sizes(&places_of)?.sizes(&[start(caches[0]), start(caches[1])]));
    let [q_norm, k_norm, v_norm] = norms.map(|norm| plain(norm.map(|norm| norm.weight)));
    let [kind0, kind1] = caches.map(|cache| cache.map_or(0, |cache| kind(to, cache)));
    let [k, k_cache, v, v_cache] = [from[0], caches[0], from[1], caches[1]].map(bound_or_absent);
    let (q, places) = (bound_or_absent(q), bound_or_absent(places));
    to.calls.push(Call {
        kernel: &ATTENTION_INPUTS,
        constants: vec![("KIND0", kind0), ("KIND1", kind1)],
        operands: vec![bound(table), q_norm, k_norm, v_norm, places, q, k, k_cache, v, v_cache],
        words,
        grid: folded(rows * (heads + 2 * kv_heads)),
        work,
    });
    Ok(())
}

/// An attention, with what multiplies it afterwards.
pub(super) fn attention(to: &mut Lowering<'_>, op: Attention, gate: Option<View>) -> Lowered {
    let state = op.out.part(0, 0);
    let end = op.table_width.saturating_mul(op.layout.block);
    let part = AttentionPart { whole: op, first: 0, end, begins: true, ends: true, state };
    let work = to.work(op);
    attend(to, &part, gate, work)
}

pub(super) fn attention_part(to: &mut Lowering<'_>, op: AttentionPart) -> Lowered {
    let whole_chunks = op.first.is_multiple_of(PARTITION);
    if !whole_chunks || !(op.ends || op.end.is_multiple_of(PARTITION)) {
        let what = "keys are cut inside a chunk";
        return Err(BackendError::Parameter { op: "attention_part", what });
    }
    let work = to.work(op);
    let seen = op.whole.table_width.saturating_mul(op.whole.layout.block);
    // No key comes behind the last one that a table holds.
    let end = op.end.min(seen).max(op.first);
    attend(to, &AttentionPart { end, ..op }, None, work)
}

fn attend(to: &mut Lowering<'_>, part: &AttentionPart, gate: Option<View>, work: Cost) -> Lowered {
    let op = &part.whole;
    let head_dim = op.layout.head_dim;
    fits("attention", head_dim, MOST)?;
    let pairs = op.positions.len * op.heads;
    if pairs == 0 {
        return Ok(());
    }
    let partitions = part.end.div_ceil(PARTITION) - part.first / PARTITION;
    let left = pairs.saturating_mul(partitions).saturating_mul(4 * (head_dim + 2));
    let pair = portion(work, 1, pairs);
    let room = left <= LEFT && partitions <= MOST_GROUPS && pairs <= MOST_GROUPS;
    // One workgroup for all keys of a pair takes as long as one for each partition, partitions times.
    let split =
        partitions > 1 && room && (pairs < ENOUGH || to.shares(pair, partitions, 1).len() > 1);
    let [q, out] = [op.q, op.out].map(|view| (bound(view), view.start));
    let run = Run { kernel: &ATTENTION, ends: [q, out], partitions, split, gate };
    if !split {
        for share in to.shares(work, pairs, 1) {
            call(to, part, &run, (share, [0, 1]));
        }
        return Ok(());
    }
    let parts = (to.scratch(0, left), 0);
    let spread = Run { ends: [q, parts], ..run };
    for keys in to.shares(work, partitions, 1) {
        for share in to.shares(keys.work, pairs, 1) {
            call(to, part, &spread, (share, [keys.first, keys.count]));
        }
    }
    let merge = Run { kernel: &ATTENTION_MERGE, ends: [parts, out], split: false, ..run };
    for share in to.shares(to.elements(left / 4), pairs, 1) {
        call(to, part, &merge, (share, [0, 1]));
    }
    Ok(())
}

/// A kernel of an attention between two operands.
#[derive(Clone, Copy)]
struct Run {
    kernel: &'static Kernel,
    ends: [(BoundOperand, usize); 2],
    partitions: usize,
    split: bool,
    gate: Option<View>,
}

/// A call for some pairs of row and head, and some partitions of their keys where it is split.
fn call(
    to: &mut Lowering<'_>,
    part: &AttentionPart,
    run: &Run,
    (pairs, keys): (Share, [usize; 2]),
) {
    let op = &part.whole;
    let CacheLayout { blocks, kv_heads, block, head_dim, .. } = op.layout;
    let [(from, from_at), (out, out_at)] = run.ends;
    let [which, count] = keys;
    let caches = [op.k_cache.start, op.v_cache.start, op.positions.start, op.span_of.start];
    // No position is further than all blocks.
    let window = op.window.unwrap_or(usize::MAX).min(u32::MAX as usize);
    let lines = op.tables.len / op.table_width;
    let words = Words::of(&[from_at]).and_then(|words| {
        let words = words.sizes(&caches)?.sizes(&[op.tables.start, out_at, op.positions.len])?;
        let words = words.sizes(&[op.heads, kv_heads, head_dim, block, blocks, op.table_width])?;
        let words = words.sizes(&[lines, window])?.float(op.scale);
        let flags = if part.begins { BEGINS } else { 0 }
            | if part.ends { ENDS } else { 0 }
            | if run.gate.is_some() { GATED } else { 0 };
        let words = words.sizes(&[site("attention") as usize, run.partitions])?;
        let words = words.sizes(&[part.first, part.end, flags, part.state.start])?;
        let gate = run.gate.map_or(0, |gate| gate.start);
        words.sizes(&[gate, pairs.first, part.first / PARTITION + which])
    });
    let keys = [op.k_cache, op.v_cache, op.positions, op.span_of, op.tables].map(bound);
    let rest = [out, bound(part.state), bound_or_absent(run.gate)];
    let grid = if run.split { [pairs.count, count, 1] } else { folded(pairs.count) };
    to.calls.push(Call {
        kernel: run.kernel,
        constants: vec![("KIND", kind(to, op.k_cache)), ("SPLIT", u32::from(run.split))],
        operands: [from].into_iter().chain(keys).chain(rest).collect(),
        words,
        grid,
        work: pairs.work,
    });
}
