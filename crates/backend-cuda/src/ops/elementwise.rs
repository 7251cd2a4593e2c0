//! Elementwise functions and gates: `elementwise.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::Args;
use crate::kernels::ELEMENTWISE;
use forerun_backend::BackendError;
use forerun_backend::op::{Activation, AddGated, GateMul, Glu, Linear, Softcap, Store};

/// A thread for each of `len` elements.
fn each(device: &mut Device, name: &'static str, len: usize, args: &Args) -> Done {
    device.queue.run((&ELEMENTWISE, name), [len.div_ceil(256), 1, 1], 256, args)
}

/// How kernels number functions; one with a clamp is refused before.
pub(super) fn number_of(activation: Activation) -> u32 {
    match activation {
        Activation::Silu | Activation::ClampedSilu { .. } => 0,
        Activation::GeluTanh => 1,
        Activation::Relu => 2,
    }
}

pub(crate) fn glu(device: &mut Device, op: Glu) -> Done {
    op.activation.unclamped("glu")?;
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.gate))
        .with(memory.at(op.up))
        .with(op.gate.len as u64)
        .size(op.dim.min(u32::MAX as usize))
        .size(op.up_width.min(u32::MAX as usize))
        .size(op.up_first)
        .with(number_of(op.activation));
    each(device, "glu", op.gate.len, &args)
}

pub(crate) fn softcap(device: &mut Device, op: Softcap) -> Done {
    let args = Args::new().with(device.memory.at(op.x)).with(op.x.len as u64).with(op.cap);
    each(device, "softcap", op.x.len, &args)
}

pub(crate) fn gate_mul(device: &mut Device, op: GateMul) -> Done {
    let (x, gate) = (device.memory.at(op.x), device.memory.at(op.gate));
    let args = Args::new().with(x).with(gate).with(op.x.len as u64);
    each(device, "gate_mul", op.x.len, &args)
}

pub(crate) fn add_gated(device: &mut Device, op: AddGated) -> Done {
    if op.x.len == 0 {
        return Ok(());
    }
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.x))
        .with(memory.at(op.gate))
        .with(memory.at(op.out))
        .with(op.x.len as u64)
        .size(op.x.len / op.gate.len);
    each(device, "add_gated", op.x.len, &args)
}

/// `add_gated` with the product that makes its gate, where that has a plain weight; false, and nothing done, elsewhere.
pub(super) fn add_gated_by(
    device: &mut Device,
    linear: Linear,
    op: AddGated,
) -> Result<bool, BackendError> {
    let weight = device.weights.get(linear.weight);
    let Linear { bias: None, channels: None, store: Store::Set, .. } = linear else {
        return Ok(false);
    };
    if weight.layout.is_some() || weight.rows != 1 || op.x.len == 0 {
        return Ok(false);
    }
    let memory = &device.memory;
    let (rows, dim) = (op.gate.len, op.x.len / op.gate.len);
    let args = Args::new()
        .with(memory.at(op.x))
        .with(weight.at)
        .with(memory.at(linear.x))
        .with(memory.at(op.gate))
        .with(memory.at(op.out))
        .size(dim)
        .size(weight.cols);
    let grid = [rows, dim.div_ceil(256), 1];
    device.queue.run((&ELEMENTWISE, "add_gated_by"), grid, 256, &args).map(|()| true)
}
