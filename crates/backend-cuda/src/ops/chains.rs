//! Operations of a program that run together: one makes the rows of the next, which takes them without a kernel of
//! its own between them. Every result is written, with the bits that the operations give one by one.

use super::Done;
use super::elementwise::add_gated_by;
use super::norm::{head_norm, is_wide};
use super::products::{gated_and_down, linear_of};
use crate::cuda::Device;
use crate::products::{ChangeKind, ProductNorm, RowChange};
use forerun_backend::op::{GateMul, GatedNorm, Linear, RmsNorm};
use forerun_backend::{BackendError, Op};

/// Runs the first operations together, if there is a way to; how many they were.
pub(crate) fn run_chain(device: &mut Device, ops: &[Op]) -> Result<usize, BackendError> {
    match *ops {
        [Op::GatedNorm(norm), Op::Linear(linear), ..] if linear.x == norm.x => {
            let Some(change) = head_norm(device, &norm)? else { return Ok(0) };
            gated_heads(device, norm, change, linear).map(|()| 2)
        }
        [Op::GateMul(gate), Op::Linear(linear), ..] if linear.x == gate.x => {
            gated_rows(device, gate, linear).map(|()| 2)
        }
        [Op::RmsNorm(norm), Op::Linear(linear), ..]
            if linear.x == norm.out && norm.x.buffer != norm.out.buffer && is_wide(norm.dim) =>
        {
            normed_rows(device, norm, linear).map(|()| 2)
        }
        [Op::GatedLinear(gated), Op::Linear(down), ..] if down.x == gated.out => {
            gated_and_down(device, gated, down).map(|()| 2)
        }
        [Op::Linear(linear), Op::AddGated(add), ..] if add.gate == linear.out => {
            Ok(if add_gated_by(device, linear, add)? { 2 } else { 0 })
        }
        _ => Ok(0),
    }
}

fn gated_heads(device: &mut Device, norm: GatedNorm, kind: ChangeKind, linear: Linear) -> Done {
    let into = Some(device.memory.at(norm.x));
    linear_of(device, linear, norm.x, RowChange { kind, into })
}

fn gated_rows(device: &mut Device, op: GateMul, linear: Linear) -> Done {
    let kind = ChangeKind::Gated { gate: device.memory.at(op.gate) };
    let into = Some(device.memory.at(op.x));
    linear_of(device, linear, op.x, RowChange { kind, into })
}

fn normed_rows(device: &mut Device, norm: RmsNorm, linear: Linear) -> Done {
    let weight = device.weights.small("rms_norm", norm.weight)?;
    let kind = ChangeKind::Norm(ProductNorm { weight, eps: norm.eps });
    let into = Some(device.memory.at(norm.out));
    linear_of(device, linear, norm.x, RowChange { kind, into })
}
