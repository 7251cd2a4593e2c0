//! The cache and attention over it: scattered blocks, several sequences, every cache type.
//!
//! Positions no row may see hold NaN and unused table entries point nowhere: a kernel that multiplies
//! masked keys by zero instead of leaving them alone is caught.

use super::Case;
use crate::conform::Rng;
use crate::op::{Attention, CacheLayout, CacheWrite};
use forerun_base::DType;

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// First position of a sequence's rows and one past the last.
type Span = (u32, u32);

/// Spans of every kind in one call, an empty one among them.
const MANY: [Span; 5] = [(0, 21), (15, 18), (77, 78), (16, 16), (3, 9)];

#[derive(Clone, Copy, Debug)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    block: usize,
}

pub(super) fn cases() -> Vec<Case> {
    let heads = |heads, kv_heads, head_dim, block| Heads { heads, kv_heads, head_dim, block };
    let mut cases = Vec::new();
    for dtype in TYPES {
        for shape in [
            heads(1, 1, 8, 4),
            heads(4, 2, 16, 16),
            heads(6, 1, 40, 16),
            heads(8, 8, 33, 5),
            heads(12, 4, 64, 32),
        ] {
            cases.push(attention(dtype, shape, "one long", &[(145, 150)]));
            cases.push(attention(dtype, shape, "first token", &[(0, 1)]));
            cases.push(attention(dtype, shape, "many", &MANY));
        }
        cases.push(attention(dtype, heads(2, 1, 256, 16), "wide heads", &[(40, 43), (0, 2)]));
        cases.push(attention(dtype, heads(4, 1, 128, 64), "block edge", &[(62, 66), (127, 129)]));
        cases.push(attention(dtype, heads(2, 2, 16, 16), "prompt", &[(0, 130), (5, 6)]));
        cases.push(attention(dtype, heads(2, 1, 16, 16), "no rows", &[]));
        for rows in [0, 1, 7, 65] {
            cases.push(cache_write(dtype, rows));
        }
    }
    cases
}

/// Block tables of some sequences over a shuffled pool.
struct Pool {
    layout: CacheLayout,
    /// Blocks per line of `tables`.
    width: usize,
    tables: Vec<u32>,
}

impl Pool {
    fn new(rng: &mut Rng, shape: Heads, lengths: &[usize]) -> Self {
        let Heads { kv_heads, head_dim, block, .. } = shape;
        let used: Vec<usize> = lengths.iter().map(|len| len.div_ceil(block)).collect();
        let blocks = used.iter().sum::<usize>() + 2;
        let width = used.iter().copied().max().unwrap_or(0) + 1;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let mut tables = Vec::new();
        for count in used {
            for entry in 0..width {
                let next = rng.below(free.len());
                tables.push(if entry < count { free.swap_remove(next) } else { u32::MAX });
            }
        }
        let layout = CacheLayout { blocks, kv_heads, block, head_dim };
        Self { layout, width, tables }
    }

    /// Random numbers where a sequence has a position, NaN elsewhere.
    fn contents(&self, rng: &mut Rng, lengths: &[usize]) -> Vec<f32> {
        let CacheLayout { kv_heads, block, head_dim, .. } = self.layout;
        let mut values = vec![f32::NAN; self.layout.len()];
        for (line, &len) in self.tables.chunks(self.width).zip(lengths) {
            for position in 0..len {
                let id = line[position / block] as usize;
                for head in 0..kv_heads {
                    let at = ((id * kv_heads + head) * block + position % block) * head_dim;
                    values[at..at + head_dim].copy_from_slice(&rng.values(head_dim));
                }
            }
        }
        values
    }
}

fn attention(dtype: DType, shape: Heads, what: &'static str, spans: &'static [Span]) -> Case {
    let rows = spans.iter().map(|(start, end)| (end - start) as usize).sum();
    Case::new("attention", format_args!("{dtype} {what} {shape:?}"), rows, move |stage| {
        let lengths: Vec<usize> = spans.iter().map(|span| span.1 as usize).collect();
        let pool = Pool::new(&mut stage.rng, shape, &lengths);
        let keys = pool.contents(&mut stage.rng, &lengths);
        let values = pool.contents(&mut stage.rng, &lengths);
        let [k_cache, v_cache] = stage.caches(dtype, pool.layout, [&keys, &values])?;
        let positions: Vec<u32> = spans.iter().flat_map(|&(start, end)| start..end).collect();
        let lines = (0..).zip(spans);
        let span_of: Vec<u32> =
            lines.flat_map(|(i, &(start, end))| (start..end).map(move |_| i)).collect();
        let width = shape.heads * shape.head_dim;
        let visible = positions.iter().map(|&p| p as usize + 1).sum();
        // Sharp enough that some keys dominate, so a wrong one shows.
        let q: Vec<f32> = stage.rng.values(rows * width).iter().map(|v| 4.0 * v).collect();
        Ok(Attention {
            q: stage.input("q", &q)?,
            k_cache,
            v_cache,
            layout: pool.layout,
            positions: stage.indices("positions", &positions)?,
            span_of: stage.indices("span_of", &span_of)?,
            tables: stage.indices("tables", &pool.tables)?,
            table_width: pool.width,
            heads: shape.heads,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            window: None,
            visible_keys: visible,
            out: stage.output("out", rows * width)?,
        }
        .into())
    })
}

fn cache_write(dtype: DType, rows: usize) -> Case {
    let layout = CacheLayout { blocks: 9, kv_heads: 3, block: 8, head_dim: 10 };
    Case::new("cache_write", format_args!("{dtype} {rows} rows"), rows, move |stage| {
        let width = layout.kv_heads * layout.head_dim;
        let mut free: Vec<u32> = (0..(layout.blocks * layout.block) as u32).collect();
        let places: Vec<u32> = (0..rows)
            .map(|_| {
                let next = stage.rng.below(free.len());
                free.swap_remove(next)
            })
            .collect();
        let before = stage.rng.values(layout.len());
        let [k_cache, v_cache] = stage.caches(dtype, layout, [&before, &before])?;
        let k = stage.random("k", rows * width)?;
        let v = stage.random("v", rows * width)?;
        let places = stage.indices("places", &places)?;
        Ok(CacheWrite { k, v, places, k_cache, v_cache, layout }.into())
    })
}
