//! Norms: `norm.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::NORM;
use forerun_backend::op::{AddNorm, GatedNorm, JoinNorm, RmsNorm};

/// Elements up to which a warp has a row.
const NARROW: usize = 1024;

fn rows(device: &mut Device, name: &'static str, [rows, dim]: [usize; 2], args: &Args) -> Done {
    let blocks = if wide(dim) == 1 { rows } else { rows.div_ceil(8) };
    device.queue.run((&NORM, name), [blocks, 1, 1], 256, args)
}

fn wide(dim: usize) -> u32 {
    u32::from(dim > NARROW)
}

pub(crate) fn rms_norm(device: &mut Device, op: RmsNorm) -> Done {
    let count = op.x.len / op.dim;
    let args = Args::new()
        .with(device.memory.at(op.x))
        .with(device.weights.small("rms_norm", op.weight)?)
        .with(device.memory.at(op.out))
        .size(count)
        .size(op.dim)
        .with(wide(op.dim))
        .with(op.eps);
    rows(device, "rms_norm", [count, op.dim], &args)
}

pub(crate) fn add_norm(device: &mut Device, op: AddNorm) -> Done {
    let count = op.x.len / op.dim;
    let args = Args::new()
        .with(device.memory.at(op.x))
        .with(device.weights.small("add_norm", op.weight)?)
        .with(device.memory.at(op.out))
        .size(count)
        .size(op.dim)
        .with(wide(op.dim))
        .with(op.eps)
        .with(op.scale);
    rows(device, "add_norm", [count, op.dim], &args)
}

pub(crate) fn join_norm(device: &mut Device, op: JoinNorm) -> Done {
    let count = op.a.len / op.dim;
    let weight = |id| device.weights.small("join_norm", id);
    let weights = match op.norms {
        Some([a, b]) => [weight(a)?, weight(b)?],
        None => [Address::NULL; 2],
    };
    let args = Args::new()
        .with(device.memory.at(op.a))
        .with(device.memory.at(op.b))
        .with(weights[0])
        .with(weights[1])
        .with(device.memory.at(op.out))
        .size(count)
        .size(op.dim)
        .with(wide(op.dim))
        .with(u32::from(op.norms.is_some()))
        .with(op.eps);
    rows(device, "join_norm", [2 * count, op.dim], &args)
}

pub(crate) fn gated_norm(device: &mut Device, op: GatedNorm) -> Done {
    let count = op.x.len / op.dim;
    let args = Args::new()
        .with(device.memory.at(op.x))
        .with(device.memory.at(op.gate))
        .with(device.weights.small("gated_norm", op.weight)?)
        .size(count)
        .size(op.dim)
        .with(wide(op.dim))
        .with(op.eps);
    rows(device, "gated_norm", [count, op.dim], &args)
}
