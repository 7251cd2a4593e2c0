//! Embedding and products with weights in the canonical layout: `canonical.cu`.

use super::elementwise::is_gelu;
use super::{Done, glu, rms_norm};
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::CANONICAL;
use crate::queue::site;
use forerun_backend::op::{
    ClusterHead, Embed, ExpertRows, Experts, GatedLinear, Linear, Linears, Store,
};

/// Rows of a launch.
const ROWS: usize = 65535;

pub(crate) fn embed(device: &mut Device, op: Embed) -> Done {
    let args = device
        .weights
        .fields(Args::new(), op.table)
        .with(device.memory.at(op.ids))
        .with(device.memory.at(op.out))
        .with(device.queue.fault)
        .with(site("embed"))
        .with(op.scale);
    device.queue.run((&CANONICAL, "embed"), [op.ids.len, 1, 1], 256, &args)
}

pub(crate) fn linear(device: &mut Device, op: Linear) -> Done {
    let Some(info) = device.weights.info(op.weight) else { return Ok(()) };
    let channels = op.channels.unwrap_or(info.rows);
    let bias = op.bias.map(|id| device.weights.small("linear", id)).transpose()?;
    let rows = op.x.len / info.cols;
    for first in (0..rows).step_by(ROWS) {
        let count = ROWS.min(rows - first);
        let x = op.x.part(first * info.cols, count * info.cols);
        let out = op.out.part(first * channels, count * channels);
        let args = device
            .weights
            .fields(Args::new(), op.weight)
            .with(device.memory.at(x))
            .with(bias.unwrap_or(Address::NULL))
            .with(device.memory.at(out))
            .size(channels)
            .with(u32::from(op.store == Store::Add));
        let grid = [channels.div_ceil(8), count, 1];
        device.queue.run((&CANONICAL, "linear"), grid, 256, &args)?;
    }
    Ok(())
}

pub(crate) fn linears(device: &mut Device, op: Linears) -> Done {
    let (norm, mut products) = op.parts();
    if let Some(norm) = norm {
        rms_norm(device, norm)?;
    }
    products.try_for_each(|part| linear(device, part))
}

pub(crate) fn gated_linear(device: &mut Device, op: GatedLinear) -> Done {
    let (norm, products, join) = op.parts();
    if let Some(norm) = norm {
        rms_norm(device, norm)?;
    }
    products.into_iter().try_for_each(|part| linear(device, part))?;
    glu(device, join)
}

pub(crate) fn experts(device: &mut Device, op: Experts) -> Done {
    let stack = |args: Args, rows: ExpertRows| {
        device.weights.fields(args, rows.weight).size(rows.first).size(rows.stride)
    };
    let memory = &device.memory;
    let (rows, picks) = (op.x.len / op.dim, op.chosen.len);
    let args = [op.gate, op.up, op.down].into_iter().fold(Args::new(), stack);
    let args = args
        .with(memory.at(op.x))
        .with(memory.at(op.chosen))
        .with(memory.at(op.weights))
        .with(memory.at(op.hidden))
        .with(memory.at(op.partial))
        .with(memory.at(op.out))
        .with(device.queue.fault)
        .with(site("experts"))
        .size(op.experts)
        .size(op.top_k)
        .size(op.ffn)
        .size(op.dim)
        .with(is_gelu(op.activation))
        .with(u32::from(op.store == Store::Add))
        .size(rows);
    let queue = &mut device.queue;
    queue.run((&CANONICAL, "experts_hidden"), [op.ffn.div_ceil(8), picks, 1], 256, &args)?;
    queue.run((&CANONICAL, "experts_down"), [op.dim.div_ceil(8), picks, 1], 256, &args)?;
    queue.run((&CANONICAL, "experts_sum"), [(rows * op.dim).div_ceil(256), 1, 1], 256, &args)
}

pub(crate) fn cluster_head(device: &mut Device, op: ClusterHead) -> Done {
    let Some(members) = device.weights.info(op.members) else { return Ok(()) };
    let rows = op.scores.len / op.clusters;
    let picks = rows * op.top_k;
    let tokens = picks * members.cols;
    let room = device.queue.scratch(4 * (picks + 2 * tokens) as u64)?;
    let args = device.weights.fields(Args::new(), op.head);
    let args = device
        .weights
        .fields(args, op.members)
        .with(device.memory.at(op.x))
        .with(device.memory.at(op.scores))
        .with(device.memory.at(op.out))
        .with(room)
        .with(room.offset(4 * picks as u64))
        .with(room.offset(4 * (picks + tokens) as u64))
        .with(device.queue.fault)
        .with(site("cluster_head"))
        .size(op.clusters)
        .size(op.top_k)
        .size(rows);
    let (queue, each) = (&mut device.queue, op.top_k * members.cols);
    queue.run((&CANONICAL, "cluster_choose"), [rows.div_ceil(8), 1, 1], 256, &args)?;
    queue.run((&CANONICAL, "cluster_logits"), [each.div_ceil(8), rows, 1], 256, &args)?;
    queue.run((&CANONICAL, "cluster_fill"), [rows, 1, 1], 256, &args)
}
