//! Rows by index, rotary angles and the router: `rows.cu`, `router.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::{ROUTER, ROWS};
use crate::queue::site;
use forerun_backend::op::{
    ExpertGroups, GatherRows, RopeTable, Router, ScatterRows, ScatterWords, Scores,
};
use forerun_backend::{BackendError, View, WeightId};

pub(crate) fn gather_rows(device: &mut Device, op: GatherRows) -> Done {
    let GatherRows { x, rows, out, dim } = op;
    move_rows(device, "gather_rows", RowMove { x, rows, out, dim, limit: x.len / dim })
}

pub(crate) fn scatter_rows(device: &mut Device, op: ScatterRows) -> Done {
    let ScatterRows { x, rows, out, dim } = op;
    move_rows(device, "scatter_rows", RowMove { x, rows, out, dim, limit: out.len / dim })
}

/// Rows below which one is shared by several blocks.
const FEW_ROWS: usize = 64;

/// The operands of both; an index in `rows` is below `limit`.
struct RowMove {
    x: View,
    rows: View,
    out: View,
    dim: usize,
    limit: usize,
}

fn move_rows(device: &mut Device, name: &'static str, op: RowMove) -> Done {
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.x))
        .with(memory.at(op.rows))
        .with(memory.at(op.out))
        .with(device.queue.fault)
        .with(site(name))
        .size(op.limit)
        .size(op.dim);
    // Few rows are shared by several blocks.
    let pieces = if op.rows.len < FEW_ROWS { op.dim.div_ceil(1024) } else { 1 };
    device.queue.run((&ROWS, name), [op.rows.len, pieces, 1], 256, &args)
}

pub(crate) fn scatter_words(device: &mut Device, op: ScatterWords) -> Done {
    let memory = &device.memory;
    let count = op.from.len;
    let args = Args::new()
        .with(memory.at(op.words))
        .with(memory.at(op.from))
        .with(memory.at(op.to))
        .with(memory.at(op.out))
        .with(device.queue.fault)
        .with(site("scatter_words"))
        .size(op.words.len)
        .size(op.out.len)
        .size(count)
        .with(op.limit);
    device.queue.run((&ROWS, "scatter_words"), [count.div_ceil(256), 1, 1], 256, &args)
}

pub(crate) fn rope_table(device: &mut Device, op: RopeTable) -> Done {
    if op.out.len == 0 {
        return Ok(());
    }
    let count = op.out.len / 2;
    let args = Args::new()
        .with(device.memory.at(op.positions))
        .with(device.weights.small("rope_table", op.inv_freq)?)
        .with(device.memory.at(op.out))
        .with(count as u64)
        .size(count / op.positions.len)
        .with(op.shift)
        .with(op.scale);
    device.queue.run((&ROWS, "rope_table"), [count.div_ceil(256), 1, 1], 256, &args)
}

/// Groups of experts that the kernel ranks.
const GROUPS: usize = 32;

pub(crate) fn router(device: &mut Device, op: Router) -> Done {
    let rows = op.logits.len / op.experts;
    let ExpertGroups { count, open, ranked_by } =
        op.groups.unwrap_or(ExpertGroups { count: 0, open: 0, ranked_by: 0 });
    if count > GROUPS {
        let what = "more than 32 groups of experts";
        return Err(BackendError::Parameter { op: "router", what });
    }
    let numbers = |id: Option<WeightId>| {
        let found = id.map(|id| device.weights.small("router", id)).transpose()?;
        Ok::<_, BackendError>(found.unwrap_or(Address::NULL))
    };
    let (bias, scale) = (numbers(op.bias)?, numbers(op.expert_scale)?);
    let scores = match op.scores {
        Scores::Softmax => 0_u32,
        Scores::Sigmoid => 1,
        Scores::SqrtSoftplus => 2,
    };
    let args = Args::new()
        .with(device.memory.at(op.logits))
        .with(bias)
        .with(scale)
        .with(device.memory.at(op.chosen))
        .with(device.memory.at(op.weights))
        .size(rows)
        .size(op.experts)
        .size(op.top_k)
        .with(scores)
        .size(count)
        .size(open)
        .size(ranked_by)
        .with(u32::from(op.renormalise.is_some()))
        .with(op.renormalise.unwrap_or(0.0))
        .with(op.scale);
    device.queue.run((&ROUTER, "router"), [rows.div_ceil(4), 1, 1], 128, &args)
}
