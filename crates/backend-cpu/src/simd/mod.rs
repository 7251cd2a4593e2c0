//! The operations, tuned: written once against [`isa::Isa`], compiled for each instruction set, cut into
//! tasks for the pool.
//!
//! # Numerics
//! A row's result is the same bits at any number of rows and threads and, but for products with repacked weights ([`Tiled`]), on any
//! instruction set. Sums
//! over a row run in sixteen lanes: lane `l` takes the elements `l, l+16, …` in order with fused
//! multiply-add, elements past the end count as zeros, and the lanes are folded in one fixed tree. Attention has an
//! order of its own, as fixed: see [`attention_tile`].
#![allow(
    clippy::needless_range_loop,
    reason = "a tile of registers is indexed by row and channel; iterators over it hide which"
)]

mod after;
mod attention;
mod attention_block;
mod attention_form;
mod attention_inputs;
mod attention_state;
mod attention_tile;
mod batch;
mod cache;
mod cluster;
mod codes;
mod conv;
mod crew;
mod decode;
mod delta;
mod delta_inputs;
mod delta_pass;
mod digits;
mod elementwise;
mod greedy;
mod isa;
mod linear;
mod math;
mod moe;
mod packing;
mod pieces;
mod portable;
pub(crate) mod probe;
mod product;
mod repack;
mod rope;
mod sample;
mod scratch;
mod tile;
mod tiled;
mod walk;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(not(target_arch = "x86_64"))]
mod no_amx;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(not(target_arch = "x86_64"))]
use no_amx as amx;

pub(crate) use attention::{Attend, attention};
pub(crate) use attention_inputs::{KeyRows, QueryHeads, Turns, attention_inputs};
pub(crate) use cluster::{Clusters, cluster_head};
pub(crate) use crew::Crew;
pub use crew::Level;
pub(crate) use decode::embed;
pub(crate) use delta::{Deltas, delta_rule};
pub(crate) use delta_inputs::{DeltaRows, Projected, delta_inputs};
pub(crate) use elementwise::{
    Gate, Norm, Normed, Partners, add_gated, add_norm, gate, norm, softcap,
};
pub(crate) use greedy::{GreedyHead, greedy_head};
pub(crate) use linear::{LinearPart, gated_linear, linears};
pub(crate) use moe::{Mixture, Route, Stack, experts, router};
pub(crate) use packing::Rows;
pub(crate) use rope::{Angles, rope_table};
pub(crate) use sample::{Choose, sample};
pub(crate) use scratch::Scratch;
use tiled::Packed;
pub(crate) use tiled::Tiled;
