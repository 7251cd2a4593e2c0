//! Rotary tables.

use super::ConformCase;
use crate::op::RopeTable;

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for rows in [0, 1, 67] {
        for pairs in [1, 5, 32] {
            cases.push(rope_table(rows, pairs, 0));
            cases.push(rope_table(rows, pairs, 3));
        }
    }
    cases
}

fn rope_table(rows: usize, pairs: usize, shift: u32) -> ConformCase {
    let sizes = format!("{rows} rows, {pairs} pairs, shift {shift}");
    ConformCase::new("rope_table", sizes, rows, move |stage| {
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
