//! Operations as launches. Operands were checked by the operation's desc.

mod attention;
mod attention_mma;
mod chains;
mod delta;
mod elementwise;
mod missing;
mod norm;
mod products;
mod rows;
mod sample;
mod streams;

pub(crate) use attention::{CHUNK as ATTENTION_CHUNK, attention, attention_inputs, attention_part};
pub(crate) use chains::run_chain;
pub(crate) use delta::{delta_gates, delta_inputs, delta_rule, short_conv};
pub(crate) use elementwise::{add_gated, gate_mul, glu, softcap};
pub(crate) use missing::{
    MISSING, choose_entries, collapse_streams, compressed_attention, gated_group_norm, group_norm,
    grouped_linear, hash_router, head_linear, kda_gates, kda_rule, latent_attention, latent_inputs,
    mix_streams, ngram_embed, ngram_gate, pool_entries, scan_gates, selective_scan, silu_rows,
    sparse_attention, turn_tails, update_streams,
};
pub(crate) use norm::{add_norm, gated_norm, join_norm, rms_norm};
pub(crate) use products::{cluster_head, embed, experts, gated_linear, linear, linears};
pub(crate) use rows::{gather_rows, rope_table, router, scatter_rows, scatter_words};
pub(crate) use sample::{head_sample, sample};
pub(crate) use streams::{correct_streams, match_rms, predict_streams, threshold};

/// What every operation returns.
type Done = Result<(), forerun_backend::BackendError>;
