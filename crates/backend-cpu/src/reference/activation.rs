use super::{gated, sigmoid};
use crate::Memory;
use forerun_backend::BackendError;
use forerun_backend::op::{AddGated, GateMul, Glu, Softcap};

pub(crate) fn glu(memory: &mut Memory, op: Glu) -> Result<(), BackendError> {
    memory.lend([op.gate], |memory, [gate]| {
        let up = memory.f32(op.up);
        for (i, gate) in gate.f32_mut(op.gate).iter_mut().enumerate() {
            let (row, column) = (i / op.dim, i % op.dim);
            let up = up[row * op.up_width + op.up_first + column];
            *gate = gated(op.activation, *gate, up);
        }
        Ok(())
    })
}

pub(crate) fn softcap(memory: &mut Memory, op: Softcap) -> Result<(), BackendError> {
    memory.lend([op.x], |_, [x]| {
        x.f32_mut(op.x).iter_mut().for_each(|x| *x = op.cap * (*x / op.cap).tanh());
        Ok(())
    })
}

pub(crate) fn gate_mul(memory: &mut Memory, op: GateMul) -> Result<(), BackendError> {
    memory.lend([op.x], |memory, [x]| {
        for (x, &gate) in x.f32_mut(op.x).iter_mut().zip(memory.f32(op.gate)) {
            *x *= sigmoid(gate);
        }
        Ok(())
    })
}

pub(crate) fn add_gated(memory: &mut Memory, op: AddGated) -> Result<(), BackendError> {
    memory.lend([op.out], |memory, [out]| {
        let gates = memory.f32(op.gate);
        if gates.is_empty() {
            return Ok(());
        }
        let dim = op.x.len / gates.len();
        let x = memory.f32(op.x);
        for (i, out) in out.f32_mut(op.out).iter_mut().enumerate() {
            *out += sigmoid(gates[i / dim]) * x[i];
        }
        Ok(())
    })
}
