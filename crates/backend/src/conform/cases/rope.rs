//! Rotary tables and turns.

use super::Case;
use crate::op::{HeadNorm, Rope, RopeTable};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for rows in [0, 1, 67] {
        for pairs in [1, 5, 32] {
            cases.push(rope_table(rows, pairs, 0));
            cases.push(rope_table(rows, pairs, 3));
        }
        for shape in [
            Turn { heads: 1, head_dim: 8, rotary: 8, norm: false },
            Turn { heads: 3, head_dim: 16, rotary: 4, norm: true },
            Turn { heads: 4, head_dim: 34, rotary: 10, norm: true },
            Turn { heads: 2, head_dim: 64, rotary: 64, norm: true },
            Turn { heads: 2, head_dim: 128, rotary: 32, norm: false },
            Turn { heads: 2, head_dim: 9, rotary: 0, norm: true },
            Turn { heads: 2, head_dim: 9, rotary: 0, norm: false },
        ] {
            cases.push(rope(rows, shape));
        }
    }
    cases
}

fn rope_table(rows: usize, pairs: usize, shift: u32) -> Case {
    let sizes = format!("{rows} rows, {pairs} pairs, shift {shift}");
    Case::new("rope_table", sizes, rows, move |stage| {
        let positions: Vec<u32> =
            (0..rows).map(|row| if row == 0 { 0 } else { stage.rng.below(4096) as u32 }).collect();
        let frequency = |i: usize| 10_000f32.powf(-(i as f32) / pairs as f32);
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        let positions = stage.indices("positions", &positions)?;
        let inv_freq = stage.vector(&frequencies)?;
        let out = stage.output("out", rows * 2 * pairs)?;
        Ok(RopeTable { positions, shift, inv_freq, scale: 1.25, out }.into())
    })
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    heads: usize,
    head_dim: usize,
    rotary: usize,
    norm: bool,
}

fn rope(rows: usize, turn: Turn) -> Case {
    Case::new("rope", format_args!("{rows} rows, {turn:?}"), rows, move |stage| {
        let Turn { heads, head_dim, rotary, norm } = turn;
        let before = stage.rng.values(rows * heads * head_dim);
        let x = stage.updated("x", &before)?;
        let table = stage.random("table", rows * rotary)?;
        let norm = if norm {
            Some(HeadNorm { weight: stage.norm_weight(head_dim)?, eps: 1e-6 })
        } else {
            None
        };
        Ok(Rope { x, table, norm, heads, head_dim, rotary }.into())
    })
}
