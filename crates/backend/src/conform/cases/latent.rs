//! Latent attention: products of heads, rows on their way to the cache, and attention over it.

use super::ConformCase;
use super::attention::{
    HeadCounts, LONG, MANY, ScatteredBlocks, StartAndRows, TYPES, random_bytes,
};
use crate::op::{CacheLayout, HeadLinear, HeadNorm, LatentAttention, LatentInputs};
use forerun_base::{DType, Format};
use std::ops::Range;

/// Heads, and widths of a row of the cache and of the latent in it.
#[derive(Clone, Copy, Debug)]
struct LatentShape {
    heads: usize,
    width: usize,
    latent: usize,
    block: usize,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let shape = |heads, width, latent, block| LatentShape { heads, width, latent, block };
    let mut cases = Vec::new();
    for rows in [0, 1, 5, 33] {
        for (heads, carry, inner, each) in
            [(1, 0, 16, 4), (4, 8, 16, 32), (3, 0, 33, 7), (2, 5, 9, 1), (8, 64, 128, 96)]
        {
            for dtype in [DType::F32, DType::BF16] {
                cases.push(head_linear(rows, [heads, carry, inner, each], dtype));
            }
        }
        for (shape, rotary) in [
            (shape(4, 40, 32, 8), 8),
            (shape(1, 10, 7, 8), 2),
            (shape(3, 24, 16, 8), 0),
            (shape(2, 576, 512, 8), 64),
        ] {
            for queries in [true, false] {
                cases.push(inputs(rows, shape, rotary, queries));
            }
        }
    }
    for dtype in TYPES {
        for shape in
            [shape(1, 8, 5, 4), shape(4, 40, 32, 16), shape(6, 33, 33, 5), shape(13, 72, 64, 32)]
        {
            cases.push(attention(dtype, shape, "one long", &[(145, 150)]));
            cases.push(attention(dtype, shape, "first token", &[(0, 1)]));
            cases.push(attention(dtype, shape, "many", &MANY));
        }
        cases.push(attention(dtype, shape(2, 40, 32, 16), "no rows", &[]));
        cases.push(attention(dtype, shape(5, 576, 512, 64), "block edge", &[(62, 66), (127, 129)]));
        cases.push(attention(dtype, shape(7, 40, 32, 64), "long", &LONG));
    }
    cases
}

fn head_linear(rows: usize, [heads, carry, inner, each]: [usize; 4], dtype: DType) -> ConformCase {
    let sizes = format!("{rows} rows, {heads} heads, {carry} and {inner} to {each}, {dtype}");
    ConformCase::new("head_linear", sizes, rows, move |stage| {
        Ok(HeadLinear {
            x: stage.random("x", rows * heads * (carry + inner))?,
            weight: stage.matrix([heads * each, inner], Format::Dense(dtype))?,
            heads,
            carry,
            out: stage.output("out", rows * heads * (carry + each))?,
        }
        .into())
    })
}

fn inputs(rows: usize, shape: LatentShape, rotary: usize, queries: bool) -> ConformCase {
    let LatentShape { heads, width, latent, block } = shape;
    let layout =
        CacheLayout { blocks: 9, kv_heads: 1, block, head_dim: width, ..CacheLayout::NONE };
    let name = format!("{rows} rows, {shape:?}, {rotary} rotated, queries {queries}");
    ConformCase::new("latent_inputs", name, rows, move |stage| {
        let before = stage.rng.values(layout.len());
        let [_, cache] = stage.updated_caches(layout, [&before, &before])?;
        let q = stage.rng.values(if queries { rows * heads * width } else { 0 });
        let mut free: Vec<u32> = (0..(layout.blocks * block) as u32).collect();
        let places: Vec<u32> =
            (0..rows).map(|_| free.swap_remove(stage.rng.below(free.len()))).collect();
        Ok(LatentInputs {
            table: stage.random("table", rows * rotary)?,
            rotary,
            q: stage.updated("q", &q)?,
            heads,
            kv: stage.random("kv", rows * width)?,
            norm: HeadNorm { weight: stage.norm_weight(latent)?, eps: 1e-6 },
            places: stage.indices("places", &places)?,
            cache,
            layout: stage.layout(layout),
        }
        .into())
    })
}

fn attention(
    dtype: DType,
    shape: LatentShape,
    what: &'static str,
    spans: &'static [StartAndRows],
) -> ConformCase {
    let LatentShape { heads, width, latent, block } = shape;
    let rows = spans.iter().map(|(start, end)| (end - start) as usize).sum();
    let name = format!("{dtype} {what} {shape:?}");
    ConformCase::new("latent_attention", name, rows, move |stage| {
        let seen: Vec<Range<usize>> = spans.iter().map(|&(_, end)| 0..end as usize).collect();
        let counts = HeadCounts { heads, kv_heads: 1, head_dim: width, block };
        let pool = ScatteredBlocks::new(&mut stage.rng, counts, dtype == DType::I8, &seen);
        let [_, cache] = if pool.layout.coded {
            let rows = pool.codes(&mut stage.rng, &seen);
            let others = random_bytes(&mut stage.rng, rows.len());
            stage.coded_caches(pool.layout, [&others, &rows])?
        } else {
            let rows = pool.contents(&mut stage.rng, &seen, CacheLayout::value);
            stage.caches(dtype, pool.layout, [&rows, &rows])?
        };
        let positions: Vec<u32> = spans.iter().flat_map(|&(start, end)| start..end).collect();
        let lines = (0..).zip(spans);
        let span_of: Vec<u32> =
            lines.flat_map(|(i, &(start, end))| (start..end).map(move |_| i)).collect();
        // Sharp enough that some keys dominate, so a wrong one shows.
        let q = stage.rng.values(rows * heads * width);
        let q: Vec<f32> = q.iter().map(|v| 4.0 * v).collect();
        Ok(LatentAttention {
            q: stage.input("q", &q)?,
            cache,
            layout: stage.layout(pool.layout),
            latent,
            positions: stage.indices("positions", &positions)?,
            span_of: stage.indices("span_of", &span_of)?,
            tables: stage.indices("tables", &pool.tables)?,
            table_width: pool.width,
            heads,
            scale: 1.0 / (width as f32).sqrt(),
            out: stage.output("out", rows * heads * latent)?,
        }
        .into())
    })
}
