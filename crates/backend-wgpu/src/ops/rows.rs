//! Rows by index, rotary angles and the router: `rows.wgsl`, `rope.wgsl`, `choose.wgsl`.

use super::Lowered;
use crate::device::Device;
use crate::kernels::{CHOOSE, MOVE_ROWS, ROPE_TABLE, site};
use crate::launch::{Words, folded, invocations};
use crate::pipelines::Call;
use forerun_backend::View;
use forerun_backend::op::{GatherRows, RopeTable, Router, ScatterRows, ScatterWords};

/// Rows of `dim` words that move.
struct Moved {
    x: View,
    from: Option<View>,
    to: Option<View>,
    out: View,
    rows: usize,
    dim: usize,
    op: &'static str,
}

fn move_rows(device: &mut Device, moved: Moved) -> Lowered {
    let Moved { x, from, to, out, rows, dim, op } = moved;
    let start = |view: Option<View>| view.map_or(0, |view| view.start);
    let site = site(op) as usize;
    let sizes =
        [x.start, start(from), start(to), out.start, rows, dim, x.len / dim, out.len / dim, site];
    let memory = &device.memory;
    let index = |view: Option<View>| view.and_then(|view| memory.buffer(view));
    let constants = [("GATHER", u32::from(from.is_some())), ("SCATTER", u32::from(to.is_some()))];
    let call = Call {
        kernel: &MOVE_ROWS,
        constants: &constants,
        operands: &[memory.buffer(x), index(from), index(to), memory.buffer(out)],
        words: Words::of(&sizes),
        grid: folded(rows),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

pub(super) fn gather_rows(device: &mut Device, op: GatherRows) -> Lowered {
    let GatherRows { x, rows, out, dim } = op;
    let (from, to, op) = (Some(rows), None, "gather_rows");
    move_rows(device, Moved { x, from, to, out, rows: rows.len, dim, op })
}

pub(super) fn scatter_rows(device: &mut Device, op: ScatterRows) -> Lowered {
    let ScatterRows { x, rows, out, dim } = op;
    let (from, to, op) = (None, Some(rows), "scatter_rows");
    move_rows(device, Moved { x, from, to, out, rows: rows.len, dim, op })
}

pub(super) fn scatter_words(device: &mut Device, op: ScatterWords) -> Lowered {
    let ScatterWords { words, from, to, out, limit: _ } = op;
    let (rows, from, to) = (from.len, Some(from), Some(to));
    move_rows(device, Moved { x: words, from, to, out, rows, dim: 1, op: "scatter_words" })
}

pub(super) fn rope_table(device: &mut Device, op: RopeTable) -> Lowered {
    if op.out.len == 0 {
        return Ok(());
    }
    let inv_freq = device.plain(op.inv_freq)?;
    let count = op.out.len / 2;
    let pairs = count / op.positions.len;
    let words = Words::of(&[op.positions.start, op.out.start, count, pairs, op.shift as usize]);
    let memory = &device.memory;
    let call = Call {
        kernel: &ROPE_TABLE,
        constants: &[],
        operands: &[memory.buffer(op.positions), Some(&inv_freq), memory.buffer(op.out)],
        words: words.map(|words| words.float(op.scale)),
        grid: invocations(count),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}

pub(super) fn router(device: &mut Device, op: Router) -> Lowered {
    let scale = op.expert_scale.map(|id| device.plain(id)).transpose()?;
    let rows = op.logits.len / op.experts;
    let words = Words::of(&[
        op.logits.start,
        op.chosen.start,
        op.weights.start,
        rows,
        op.experts,
        op.top_k,
        1,
        usize::from(op.renormalise),
        usize::from(scale.is_some()),
    ]);
    let memory = &device.memory;
    let call = Call {
        kernel: &CHOOSE,
        constants: &[],
        operands: &[
            memory.buffer(op.logits),
            scale.as_ref(),
            memory.buffer(op.chosen),
            memory.buffer(op.weights),
        ],
        words,
        grid: folded(rows),
    };
    Device::launch(&device.queue.fault, (&mut device.pipelines, &mut device.launches), call)
}
