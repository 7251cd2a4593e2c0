//! Elementwise functions and gates: `elementwise.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::Args;
use crate::kernels::ELEMENTWISE;
use forerun_backend::op::{Activation, AddGated, GateMul, Glu, Softcap};

/// A thread for each of `len` elements.
fn each(device: &mut Device, name: &'static str, len: usize, args: &Args) -> Done {
    device.queue.run((&ELEMENTWISE, name), [len.div_ceil(256), 1, 1], 256, args)
}

/// How kernels number functions.
pub(super) fn is_gelu(activation: Activation) -> u32 {
    u32::from(activation == Activation::GeluTanh)
}

pub(crate) fn glu(device: &mut Device, op: Glu) -> Done {
    let memory = &device.memory;
    let args = Args::new()
        .with(memory.at(op.gate))
        .with(memory.at(op.up))
        .with(op.gate.len as u64)
        .size(op.dim.min(u32::MAX as usize))
        .size(op.up_width.min(u32::MAX as usize))
        .size(op.up_first)
        .with(is_gelu(op.activation));
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
