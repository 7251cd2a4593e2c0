//! Norms: `norm.cu`.

use super::Done;
use crate::cuda::Device;
use crate::driver::{Address, Args};
use crate::kernels::NORM;
use crate::products::{ChangeKind, HEADS, ProductInput, ProductNorm, RowChange};
use forerun_backend::BackendError;
use forerun_backend::op::{AddNorm, GatedNorm, JoinNorm, RmsNorm};

/// Elements up to which a warp has a row.
const NARROW: usize = 1024;
/// Elements of a wide row that a block has, where the row is shared.
const PIECE: usize = 1024;
/// Rows from which on there are blocks enough without sharing them.
const MANY: usize = 128;
/// Elements that the blocks of one row of heads have at most.
const LONGEST: usize = 65535 * 2048;

/// Blocks of a launch over `rows` rows. `apart`: what is written is not what the norm is of, so blocks may share a row.
fn grid(rows: usize, dim: usize, apart: bool) -> [usize; 3] {
    match wide(dim) {
        1 if apart && rows < MANY => [rows, dim.div_ceil(PIECE), 1],
        1 => [rows, 1, 1],
        _ => [rows.div_ceil(8), 1, 1],
    }
}

/// Whether a row of this width is normed as products norm theirs.
pub(super) const fn is_wide(dim: usize) -> bool {
    dim > NARROW
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
    let grid = grid(count, op.dim, op.x.buffer != op.out.buffer);
    device.queue.run((&NORM, "rms_norm"), grid, 256, &args)
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
    let grid = grid(count, op.dim, op.x.buffer != op.out.buffer);
    device.queue.run((&NORM, "add_norm"), grid, 256, &args)
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
    let apart = op.a.buffer != op.out.buffer && op.b.buffer != op.out.buffer;
    device.queue.run((&NORM, "join_norm"), grid(2 * count, op.dim, apart), 256, &args)
}

/// The norm of heads as a product's rows take it, where heads have one of the widths for that.
pub(super) fn head_norm(
    device: &Device,
    op: &GatedNorm,
) -> Result<Option<ChangeKind>, BackendError> {
    if !HEADS.contains(&op.dim) {
        return Ok(None);
    }
    let norm = ProductNorm { weight: device.weights.small("gated_norm", op.weight)?, eps: op.eps };
    Ok(Some(ChangeKind::GatedHeads { norm, head: op.dim, gate: device.memory.at(op.gate) }))
}

pub(crate) fn gated_norm(device: &mut Device, op: GatedNorm) -> Done {
    let (at, count) = (device.memory.at(op.x), op.x.len / op.dim);
    if let Some(kind) = head_norm(device, &op)? {
        // Heads do not depend on each other: all of them are one long row, or many short ones.
        let rows = if op.x.len <= LONGEST { 1 } else { count };
        let change = Some(RowChange { kind, into: Some(at) });
        let x = ProductInput { change, ..ProductInput::plain(at, rows, op.x.len / rows) };
        let driver = device.queue.driver_mut();
        // SAFETY: `OpDesc::check` has compared the lengths of `x`, `gate` and the weight.
        return Ok(unsafe { device.products.change_rows(driver, x) }.map(drop)?);
    }
    let args = Args::new()
        .with(at)
        .with(device.memory.at(op.gate))
        .with(device.weights.small("gated_norm", op.weight)?)
        .size(count)
        .size(op.dim)
        .with(wide(op.dim))
        .with(op.eps);
    device.queue.run((&NORM, "gated_norm"), grid(count, op.dim, false), 256, &args)
}
