//! The reference: one plain function per operation, safe Rust, one thread, f32 in the order written.

mod activation;
mod attention;
mod attention_inputs;
mod cluster;
mod conv;
mod delta;
mod delta_inputs;
mod entries;
mod hyper;
mod kda;
mod latent;
mod linear;
mod moe;
mod ngram;
mod norm;
mod rope;
mod rows;
mod sample;
mod scan;
mod sparse;
mod streams;
mod turn;

pub(crate) use activation::{add_gated, gate_mul, glu, softcap};
pub(crate) use attention::{attention, attention_part, check_part};
pub(crate) use attention_inputs::attention_inputs;
pub(crate) use cluster::{cluster_head, member};
pub(crate) use conv::short_conv;
pub(crate) use delta::delta_rule;
pub(crate) use delta_inputs::{delta_gates, delta_inputs, softplus};
pub(crate) use entries::{EntryRows, EntryWeights, choose_entries, pool, pool_entries};
pub(crate) use hyper::{
    UpdateRows, collapse, collapse_streams, group_norm, mix_streams, silu_rows, update_streams,
};
pub(crate) use kda::{kda_gates, kda_rule};
pub(crate) use latent::{head_linear, latent_attention, latent_inputs, seen_keys};
pub(crate) use linear::{gated_linear, grouped_linear, in_groups, linear, linears};
pub(crate) use moe::{experts, hash_router, router};
pub(crate) use ngram::{ngram_embed, ngram_gate, ngram_rows};
pub(crate) use norm::{add_norm, gated_norm, join_norm, join_rows, rms_norm};
pub(crate) use rope::{rope_table, shifted};
pub(crate) use rows::{embed, gather_rows, scatter_rows, scatter_words};
pub(crate) use sample::{Before, adjust, head_sample, mask_out, sample};
pub(crate) use scan::{gated_group_norm, scan_gates, selective_scan};
pub(crate) use sparse::{SeenRows, SparseRows, compressed_attention, each_row, sparse_attention};
pub(crate) use streams::{
    Coefficients, correct_streams, lent, match_rms, predict_streams, threshold,
};
pub(crate) use turn::{turn_tail, turn_tails};

use forerun_backend::BackendError;
use forerun_backend::op::{Activation, SpanEntry, Spans};

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

/// Reads a span entry and checks what it points at.
pub(crate) fn span_entry(
    op: &'static str,
    spans: &Spans,
    words: &[u32],
    rows: usize,
) -> Result<SpanEntry, BackendError> {
    let entry = SpanEntry::from_words(words);
    index(op, "spans.slot", entry.slot, spans.slots)?;
    index(op, "spans.pending", entry.pending, spans.log_rows + 1)?;
    index(op, "spans.confirmed", entry.confirmed, entry.rows as usize + 1)?;
    index(op, "spans.drafts", entry.rows - entry.confirmed, spans.log_rows + 1)?;
    let end = entry.first_row.saturating_add(entry.rows);
    index(op, "spans.rows", end, rows + 1)?;
    Ok(entry)
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `√(2/π)`.
const GELU_SLOPE: f32 = 0.797_884_6;

/// `act(gate) · up`.
pub(crate) fn gated(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::ClampedSilu { limit } => silu(gate.min(limit)) * up.clamp(-limit, limit),
        _ => activate(activation, gate) * up,
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu | Activation::ClampedSilu { .. } => silu(x),
        Activation::GeluTanh => {
            let inner = GELU_SLOPE * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}
