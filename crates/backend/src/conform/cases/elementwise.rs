//! Norms and gates.

use super::Case;
use crate::op::{Activation, AddGated, GateMul, GatedNorm, Glu, JoinNorm, RmsNorm};

const EPS: f32 = 1e-6;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rows in [0, 1, 3, 66] {
        for dim in [1, 7, 64, 131] {
            cases.push(rms_norm(rows, dim));
            cases.push(join_norm(rows, dim));
            cases.push(gated_norm(rows, dim));
            cases.push(gate_mul(rows, dim));
            cases.push(glu(rows, dim));
            cases.push(add_gated(rows, dim));
        }
    }
    cases.push(zero_row_norm());
    cases
}

fn rms_norm(rows: usize, dim: usize) -> Case {
    Case::new("rms_norm", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let x = stage.random("x", rows * dim)?;
        let weight = stage.norm_weight(dim)?;
        let out = stage.output("out", rows * dim)?;
        Ok(RmsNorm { x, weight, out, dim, eps: EPS }.into())
    })
}

fn join_norm(rows: usize, dim: usize) -> Case {
    Case::new("join_norm", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let a = stage.random("a", rows * dim)?;
        let b = stage.random("b", rows * dim)?;
        let norms = Some([stage.norm_weight(dim)?, stage.norm_weight(dim)?]);
        let out = stage.output("out", 2 * rows * dim)?;
        Ok(JoinNorm { a, b, norms, out, dim, eps: EPS }.into())
    })
}

/// A row of zeros has no direction; `eps` keeps it finite.
fn zero_row_norm() -> Case {
    Case::new("rms_norm", "rows of zeros", 2, |stage| {
        let x = stage.input("x", &[0.0; 32])?;
        let weight = stage.norm_weight(16)?;
        let out = stage.output("out", 32)?;
        Ok(RmsNorm { x, weight, out, dim: 16, eps: EPS }.into())
    })
}

fn gated_norm(rows: usize, dim: usize) -> Case {
    Case::new("gated_norm", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = stage.rng.values(rows * dim);
        let x = stage.updated("x", &before)?;
        let gate = stage.random("gate", rows * dim)?;
        let weight = stage.norm_weight(dim)?;
        Ok(GatedNorm { x, gate, weight, dim, eps: EPS }.into())
    })
}

fn gate_mul(rows: usize, dim: usize) -> Case {
    Case::new("gate_mul", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = stage.rng.values(rows * dim);
        let x = stage.updated("x", &before)?;
        let gate = steep(stage.rng.values(rows * dim));
        let gate = stage.input("gate", &gate)?;
        Ok(GateMul { x, gate }.into())
    })
}

fn glu(rows: usize, dim: usize) -> Case {
    Case::new("glu", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = steep(stage.rng.values(rows * dim));
        let gate = stage.updated("gate", &before)?;
        let up = stage.random("up", rows * dim)?;
        Ok(Glu { gate, up, dim, up_width: dim, up_first: 0, activation: Activation::Silu }.into())
    })
}

fn add_gated(rows: usize, dim: usize) -> Case {
    Case::new("add_gated", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let x = stage.random("x", rows * dim)?;
        let gate = stage.random("gate", rows)?;
        let before = stage.rng.values(rows * dim);
        let out = stage.updated("out", &before)?;
        Ok(AddGated { x, gate, out }.into())
    })
}

/// Spread so far that a careless exponential overflows.
fn steep(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|v| 120.0 * v * v * v).collect()
}
