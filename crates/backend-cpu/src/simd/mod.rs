//! The tuned operations: written once against [`isa::Isa`], compiled for each instruction set, partitioned into tasks
//! for the thread pool. Matrix products have a module of their own, [`gemm`](crate::gemm).
//!
//! # Numerics
//! A row's result is batch-invariant: the same bits at any number of rows and threads and, but for products with packed
//! weights ([`PackedWeight`](crate::gemm::packed_weight::PackedWeight)), on any instruction set. Sums over a row run in
//! sixteen lanes: lane `l` takes the elements `l, l+16, …` in order with fused multiply-add, elements past the end
//! count as zeros, and the lanes are folded in one fixed tree. Attention has an order of its own, as fixed: see
//! [`attention_tile`].
#![allow(
    clippy::needless_range_loop,
    reason = "a tile of registers is indexed by row and channel; iterators over it hide which"
)]

mod attention;
mod attention_block;
mod attention_form;
mod attention_inputs;
mod attention_state;
mod attention_tile;
mod cache;
mod cluster;
mod conv;
mod delta;
mod delta_gates;
mod delta_inputs;
mod delta_pass;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod exec_ctx;
mod greedy;
mod group_norm;
mod head_linear;
mod hyper;
pub(crate) mod isa;
mod kda_gates;
mod latent;
mod math;
mod moe;
pub(crate) mod partition;
pub(crate) mod portable;
pub(crate) mod probe;
mod prologue;
mod rope;
mod router;
mod sample;
mod scan;
mod scratch;
mod short_conv;
mod sparse;
mod streams;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use attention::{AttentionArgs, CarriedState, attention};
pub(crate) use attention_inputs::{KeyRows, QueryHeads, Rotation, attention_inputs};
pub(crate) use attention_tile::chunk_keys;
pub(crate) use cluster::{ClusterOperands, cluster_head};
pub(crate) use delta::{DeltaArgs, delta_rule};
pub(crate) use delta_gates::{GateArgs, delta_gates};
pub(crate) use delta_inputs::{DeltaRows, Projected, delta_inputs};
pub(crate) use elementwise::{
    FusedNorm, Gate, Norm, Partners, add_gated, add_norm, gate, norm, softcap,
};
pub(crate) use embed::embed;
pub(crate) use exec_ctx::ExecCtx;
pub use exec_ctx::Level;
pub(crate) use greedy::{GreedyHead, greedy_head};
pub(crate) use group_norm::gated_group_norm;
pub(crate) use head_linear::{HeadLinearArgs, head_linear};
pub(crate) use hyper::{group_norm, mix_streams, silu_rows, turn_tails, update_streams};
pub(crate) use kda_gates::{KdaGateArgs, kda_gates};
pub(crate) use latent::{LatentArgs, LatentRows, latent_attention, store_latents};
pub(crate) use moe::{Mixture, Stack, experts};
pub(crate) use rope::{Angles, rope_table};
pub(crate) use router::{Route, router};
pub(crate) use sample::{SampleArgs, sample};
pub(crate) use scan::{ScanArgs, ScanGateArgs, scan_gates, selective_scan};
pub(crate) use scratch::Scratch;
pub(crate) use short_conv::{ConvArgs, short_conv};
pub(crate) use sparse::{SparseQueries, attend_to, choose_entries, sparse_attention};
pub(crate) use streams::{
    MatchArgs, StreamMix, correct_streams, match_rms, predict_streams, threshold,
};
