//! The definitions: one plain function per operation, safe Rust, one thread, f32 in the order written.

mod activation;
mod attention;
mod cluster;
mod conv;
mod delta;
mod linear;
mod moe;
mod norm;
mod rope;
mod rows;
mod sample;

pub(crate) use activation::{add_gated, gate_mul, glu, softcap};
pub(crate) use attention::{attention, cache_write};
pub(crate) use cluster::{cluster_head, member};
pub(crate) use conv::{conv, span_entry};
pub(crate) use delta::{delta_prepare, delta_rule, softplus};
pub(crate) use linear::{gated_linear, linear, linears};
pub(crate) use moe::{experts, router};
pub(crate) use norm::{add_norm, gated_norm, join_norm, join_rows, rms_norm};
pub(crate) use rope::{rope, rope_table, shifted};
pub(crate) use rows::{embed, gather_rows, scatter_rows};
pub(crate) use sample::{Before, adjust, head_sample, mask_out, sample};

use forerun_backend::BackendError;
use forerun_backend::op::Activation;

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

/// `√(2/π)`.
const GELU_SLOPE: f32 = 0.797_884_6;

pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => {
            let inner = GELU_SLOPE * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
