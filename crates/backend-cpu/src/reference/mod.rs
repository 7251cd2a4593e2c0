//! The definitions: one plain function per operation, safe Rust, one thread, f32 in the order written.

mod activation;
mod attention;
mod conv;
mod delta;
mod linear;
mod moe;
mod norm;
mod rope;
mod rows;
mod sample;

pub(crate) use activation::{add_gated, gate_mul, swiglu};
pub(crate) use attention::{attention, cache_offset, cache_write};
pub(crate) use conv::{conv, span_entry};
pub(crate) use delta::{delta_prepare, delta_rule, softplus};
pub(crate) use linear::{gated_linear, linear};
pub(crate) use moe::{experts, router};
pub(crate) use norm::{gated_norm, join_norm, join_rows, rms_norm};
pub(crate) use rope::{rope, rope_table};
pub(crate) use rows::{embed, gather_rows, scatter_rows};
pub(crate) use sample::{adjust, sample};

use forerun_backend::BackendError;

/// Checks an index that came from device memory.
pub(crate) fn index(
    op: &'static str,
    operand: &'static str,
    index: u32,
    limit: usize,
) -> Result<usize, BackendError> {
    let index = index as usize;
    if index < limit { Ok(index) } else { Err(BackendError::Index { op, operand, index, limit }) }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}
