//! Norms and gates.

use super::ConformCase;
use crate::op::{
    Activation, AddGated, AddNorm, GateMul, GatedNorm, Glu, JoinNorm, RmsNorm, Softcap,
};

const EPS: f32 = 1e-6;

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for rows in [0, 1, 3, 66] {
        for dim in [1, 7, 64, 131] {
            cases.push(rms_norm(rows, dim));
            for normed in [true, false] {
                cases.push(join_norm(rows, dim, normed));
            }
            for scale in [1.0, 0.37] {
                cases.push(add_norm(rows, dim, scale));
            }
            cases.push(softcap(rows, dim));
            cases.push(gated_norm(rows, dim));
            cases.push(gate_mul(rows, dim));
            for activation in [Activation::Silu, Activation::GeluTanh, Activation::Relu] {
                cases.push(glu(rows, dim, activation, [0, 0]));
                cases.push(glu(rows, dim, activation, [dim + 2, 5]));
            }
            cases.push(add_gated(rows, dim));
        }
    }
    cases.push(zero_row_norm());
    cases
}

fn rms_norm(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("rms_norm", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let x = stage.random("x", rows * dim)?;
        let weight = stage.norm_weight(dim)?;
        let out = stage.output("out", rows * dim)?;
        Ok(RmsNorm { x, weight, out, dim, eps: EPS }.into())
    })
}

fn join_norm(rows: usize, dim: usize, normed: bool) -> ConformCase {
    let norms = if normed { "" } else { ", no norms" };
    ConformCase::new("join_norm", format_args!("{rows} rows of {dim}{norms}"), rows, move |stage| {
        let a = stage.random("a", rows * dim)?;
        let b = stage.random("b", rows * dim)?;
        let (norms, out) = if normed {
            let norms = [stage.norm_weight(dim)?, stage.norm_weight(dim)?];
            (Some(norms), stage.output("out", 2 * rows * dim)?)
        } else {
            (None, stage.copied("out", 2 * rows * dim)?)
        };
        Ok(JoinNorm { a, b, norms, out, dim, eps: EPS }.into())
    })
}

fn add_norm(rows: usize, dim: usize, scale: f32) -> ConformCase {
    ConformCase::new(
        "add_norm",
        format_args!("{rows} rows of {dim} times {scale}"),
        rows,
        move |stage| {
            let x = stage.random("x", rows * dim)?;
            let weight = stage.norm_weight(dim)?;
            let before = stage.rng.values(rows * dim);
            let out = stage.updated("out", &before)?;
            Ok(AddNorm { x, weight, out, dim, eps: EPS, scale }.into())
        },
    )
}

fn softcap(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("softcap", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = steep(stage.rng.values(rows * dim));
        let x = stage.updated("x", &before)?;
        Ok(Softcap { x, cap: 30.0 }.into())
    })
}

/// A row of zeros has no direction; `eps` keeps it finite.
fn zero_row_norm() -> ConformCase {
    ConformCase::new("rms_norm", "rows of zeros", 2, |stage| {
        let x = stage.input("x", &[0.0; 32])?;
        let weight = stage.norm_weight(16)?;
        let out = stage.output("out", 32)?;
        Ok(RmsNorm { x, weight, out, dim: 16, eps: EPS }.into())
    })
}

fn gated_norm(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("gated_norm", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = stage.rng.values(rows * dim);
        let x = stage.updated("x", &before)?;
        let gate = stage.random("gate", rows * dim)?;
        let weight = stage.norm_weight(dim)?;
        Ok(GatedNorm { x, gate, weight, dim, eps: EPS }.into())
    })
}

fn gate_mul(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("gate_mul", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let before = stage.rng.values(rows * dim);
        let x = stage.updated("x", &before)?;
        let gate = steep(stage.rng.values(rows * dim));
        let gate = stage.input("gate", &gate)?;
        Ok(GateMul { x, gate }.into())
    })
}

/// `up` has `around[0]` elements before its part of a row and `around[1]` after, which must not matter.
fn glu(rows: usize, dim: usize, activation: Activation, around: [usize; 2]) -> ConformCase {
    let name = format!("{rows} rows of {dim}, {activation:?}, {around:?} around up");
    ConformCase::new("glu", name, rows, move |stage| {
        let before = steep(stage.rng.values(rows * dim));
        let gate = stage.updated("gate", &before)?;
        let [up_first, after] = around;
        let up_width = up_first + dim + after;
        let mut up = vec![f32::NAN; rows * up_width];
        for row in up.chunks_exact_mut(up_width) {
            row[up_first..up_first + dim].copy_from_slice(&stage.rng.values(dim));
        }
        let up = stage.input("up", &up)?;
        Ok(Glu { gate, up, dim, up_width, up_first, activation }.into())
    })
}

fn add_gated(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("add_gated", format_args!("{rows} rows of {dim}"), rows, move |stage| {
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
