//! Rows moved by index.

use super::ConformCase;
use crate::conform::matrices::{all_formats, fitting_columns, format_name};
use crate::op::{Embed, GatherRows, ScatterRows, ScatterWords};
use forerun_base::{DType, Format};

const VOCABULARY: usize = 23;

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases: Vec<ConformCase> =
        all_formats().into_iter().map(|format| embed(format, 3, 200, 1.0)).collect();
    for rows in [0, 1, 65] {
        for dim in [1, 17, 130] {
            for scale in [1.0, 7.3] {
                cases.push(embed(Format::Dense(DType::BF16), rows, dim, scale));
            }
            cases.push(gather_rows(rows, dim));
            cases.push(scatter_rows(rows, dim));
        }
        cases.push(scatter_words(rows));
    }
    cases
}

fn embed(format: Format, rows: usize, dim: usize, scale: f32) -> ConformCase {
    let dim = fitting_columns(format, dim);
    let name = format!("{}, {rows} rows of {dim} times {scale}", format_name(format));
    ConformCase::new("embed", name, rows, move |stage| {
        // The first and last entry are always among the rows.
        let ids: Vec<u32> = (0..rows)
            .map(|row| match row {
                0 => VOCABULARY as u32 - 1,
                1 => 0,
                _ => stage.rng.below(VOCABULARY) as u32,
            })
            .collect();
        let table = stage.matrix([VOCABULARY, dim], format)?;
        let ids = stage.indices("ids", &ids)?;
        // A scale alone is one rounding and so exact; what has two a device may fuse.
        let fused = scale != 1.0 || matches!(format, Format::Grouped { offset: true, .. });
        let len = rows * dim;
        let out = if fused { stage.output("out", len)? } else { stage.copied("out", len)? };
        Ok(Embed { ids, table, scale, out }.into())
    })
}

fn gather_rows(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("gather_rows", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        const FROM: usize = 9;
        let indices: Vec<u32> = (0..rows).map(|_| stage.rng.below(FROM) as u32).collect();
        let x = stage.random("x", FROM * dim)?;
        let rows = stage.indices("rows", &indices)?;
        let out = stage.copied("out", indices.len() * dim)?;
        Ok(GatherRows { x, rows, out, dim }.into())
    })
}

fn scatter_rows(rows: usize, dim: usize) -> ConformCase {
    ConformCase::new("scatter_rows", format_args!("{rows} rows of {dim}"), rows, move |stage| {
        let to = rows + 4;
        let mut free: Vec<u32> = (0..to as u32).collect();
        let mut place = || free.swap_remove(stage.rng.below(free.len()));
        let places: Vec<u32> = (0..rows).map(|_| place()).collect();
        let before = stage.rng.values(to * dim);
        let x = stage.random("x", rows * dim)?;
        let rows = stage.indices("rows", &places)?;
        let out = stage.moved("out", &before)?;
        Ok(ScatterRows { x, rows, out, dim }.into())
    })
}

fn scatter_words(count: usize) -> ConformCase {
    ConformCase::new("scatter_words", format_args!("{count} words"), count, move |stage| {
        const FROM: usize = 9;
        const LIMIT: usize = 1 << 29;
        let words: Vec<u32> = (0..FROM).map(|_| stage.rng.below(2 * LIMIT) as u32).collect();
        let from: Vec<u32> = (0..count).map(|_| stage.rng.below(FROM) as u32).collect();
        let mut free: Vec<u32> = (0..count as u32 + 4).collect();
        let to: Vec<u32> =
            (0..count).map(|_| free.swap_remove(stage.rng.below(free.len()))).collect();
        let before: Vec<u32> = (0..count as u32 + 4).map(|i| i + 7).collect();
        let words = stage.indices("words", &words)?;
        let from = stage.indices("from", &from)?;
        let to = stage.indices("to", &to)?;
        let out = stage.indices("out", &before)?;
        Ok(ScatterWords { words, from, to, out, limit: LIMIT as u32 }.into())
    })
}
