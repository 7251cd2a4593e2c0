//! Attention over the cache: scattered blocks, several sequences, every cache type.
//!
//! Positions no row may see, for the causal rule or for a window, hold NaN, and unused table entries point nowhere or
//! to another sequence's block: a kernel that multiplies masked keys by zero instead of leaving them alone is caught.

use super::ConformCase;
use crate::conform::Rng;
use crate::op::{Attention, CacheLayout, CacheOrder};
use forerun_base::{DType, f32_to_bf16};
use std::ops::Range;

pub(super) const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

/// First position of a sequence's rows and one past the last.
pub(super) type StartAndRows = (u32, u32);

/// All keys up to a row's own.
const ALL: Option<usize> = None;

/// Spans of every kind in one call, an empty one among them.
pub(super) const MANY: [StartAndRows; 5] = [(0, 21), (15, 18), (77, 78), (16, 16), (3, 9)];

/// Spans around multiples of larger powers of two, where a kernel may cut keys.
pub(super) const LONG: [StartAndRows; 4] = [(250, 260), (509, 515), (1022, 1026), (300, 301)];

#[derive(Clone, Copy, Debug)]
pub(super) struct HeadCounts {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block: usize,
}

pub(super) fn cases() -> Vec<ConformCase> {
    let heads = |heads, kv_heads, head_dim, block| HeadCounts { heads, kv_heads, head_dim, block };
    let mut cases = Vec::new();
    for dtype in TYPES {
        for shape in [
            heads(1, 1, 8, 4),
            heads(4, 2, 16, 16),
            heads(6, 1, 40, 16),
            heads(8, 8, 33, 5),
            heads(12, 4, 64, 32),
        ] {
            cases.push(attention(dtype, shape, "one long", &[(145, 150)], ALL));
            cases.push(attention(dtype, shape, "first token", &[(0, 1)], ALL));
            cases.push(attention(dtype, shape, "many", &MANY, ALL));
        }
        for (shape, what, spans, window) in [
            (heads(2, 1, 256, 16), "wide heads", &[(40, 43), (0, 2)][..], ALL),
            (heads(4, 1, 128, 64), "block edge", &[(62, 66), (127, 129)], ALL),
            (heads(2, 2, 16, 16), "prompt", &[(0, 130), (5, 6)], ALL),
            (heads(2, 1, 16, 16), "no rows", &[], ALL),
            (heads(6, 2, 32, 64), "long", &LONG, ALL),
            (heads(5, 1, 24, 24), "long", &LONG, Some(300)),
            (heads(1, 1, 8, 4), "one long", &[(145, 150)], Some(9)),
            (heads(4, 2, 16, 16), "many", &MANY, Some(16)),
            (heads(8, 8, 33, 5), "many", &MANY, Some(13)),
            (heads(6, 1, 40, 16), "many", &MANY, Some(1)),
            (heads(12, 4, 64, 32), "one long", &[(145, 150)], Some(33)),
            (heads(4, 1, 128, 64), "block edge", &[(62, 66), (126, 130)], Some(64)),
            (heads(2, 2, 16, 16), "prompt", &[(0, 130), (5, 6)], Some(20)),
            (heads(2, 2, 16, 16), "prompt", &[(0, 130), (5, 6)], Some(usize::MAX)),
            (heads(2, 1, 256, 16), "wide heads", &[(40, 43), (0, 2)], Some(17)),
        ] {
            cases.push(attention(dtype, shape, what, spans, window));
        }
    }
    // Widths and blocks that matrix units take.
    for dtype in [DType::F16, DType::BF16] {
        for (shape, what, spans, window) in [
            (heads(6, 1, 64, 64), "long", &LONG[..], ALL),
            (heads(3, 3, 64, 64), "long", &LONG, Some(300)),
            (heads(4, 2, 128, 64), "many", &MANY, ALL),
            (heads(16, 2, 256, 64), "verified", &[(508, 514), (3, 7), (127, 128)], ALL),
            (heads(40, 1, 128, 64), "prompt", &[(0, 70)], Some(17)),
        ] {
            cases.push(attention(dtype, shape, what, spans, window));
        }
    }
    cases
}

/// Where an element lies in a cache: block, head, place in the block, element.
pub(super) type ElementIndex = fn(&CacheLayout, usize, usize, usize, usize) -> usize;

/// Block tables of some sequences over a shuffled pool.
pub(super) struct ScatteredBlocks {
    pub(super) layout: CacheLayout,
    /// Blocks per line of `tables`.
    pub(super) width: usize,
    pub(super) tables: Vec<u32>,
}

impl ScatteredBlocks {
    /// `seen` is what any row may see of each sequence, ending at its length.
    pub(super) fn new(
        rng: &mut Rng,
        shape: HeadCounts,
        coded: bool,
        seen: &[Range<usize>],
    ) -> Self {
        let HeadCounts { kv_heads, head_dim, block, .. } = shape;
        let used: Vec<Range<usize>> =
            seen.iter().map(|seen| seen.start / block..seen.end.div_ceil(block)).collect();
        let blocks = used.iter().map(Range::len).sum::<usize>() + 2;
        let width = used.iter().map(|used| used.end).max().unwrap_or(0) + 1;
        let mut free: Vec<u32> = (0..blocks as u32).collect();
        let mut tables = Vec::new();
        for used in used {
            for entry in 0..width {
                let next = rng.below(free.len());
                tables.push(match entry {
                    _ if used.contains(&entry) => free.swap_remove(next),
                    // Stale: by now somebody else's block, or none.
                    _ if entry < used.start && entry % 2 == 0 => 0,
                    _ => u32::MAX,
                });
            }
        }
        let order = CacheOrder::Transposed;
        let layout = CacheLayout { blocks, kv_heads, block, head_dim, coded, order };
        Self { layout, width, tables }
    }

    /// Block, head and place in the block of whatever some row may look at.
    fn seen<'a>(
        &'a self,
        seen: &'a [Range<usize>],
    ) -> impl Iterator<Item = (usize, usize, usize)> + 'a {
        let CacheLayout { kv_heads, block, .. } = self.layout;
        self.tables.chunks(self.width).zip(seen).flat_map(move |(line, seen)| {
            seen.clone().flat_map(move |position| {
                let id = line[position / block] as usize;
                (0..kv_heads).map(move |head| (id, head, position % block))
            })
        })
    }

    /// Random numbers where some row may look, NaN elsewhere, each at its `place`.
    pub(super) fn contents(
        &self,
        rng: &mut Rng,
        seen: &[Range<usize>],
        place: ElementIndex,
    ) -> Vec<f32> {
        let mut values = vec![f32::NAN; self.layout.len()];
        for (id, head, at) in self.seen(seen) {
            for (i, value) in rng.values(self.layout.head_dim).into_iter().enumerate() {
                values[place(&self.layout, id, head, at, i)] = value;
            }
        }
        values
    }

    /// Random codes, with random scales where some row may look and NaN elsewhere.
    pub(super) fn codes(&self, rng: &mut Rng, seen: &[Range<usize>]) -> Vec<u8> {
        let mut bytes = random_bytes(rng, self.layout.len());
        let part = self.layout.block * self.layout.stored();
        bytes.chunks_mut(part).for_each(|part| part[self.layout.scales()..].fill(0xff));
        for (id, head, at) in self.seen(seen) {
            for (group, value) in rng.values(self.layout.groups()).into_iter().enumerate() {
                let scale = f32_to_bf16(value.abs() / 127.0).to_le_bytes();
                bytes[self.layout.scale(id, head, at, group)..][..2].copy_from_slice(&scale);
            }
        }
        bytes
    }
}

/// Any but the lowest, which is no code.
pub(super) fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| (rng.below(255) as u8).wrapping_sub(127)).collect()
}

fn attention(
    dtype: DType,
    shape: HeadCounts,
    what: &'static str,
    spans: &'static [StartAndRows],
    window: Option<usize>,
) -> ConformCase {
    let rows = spans.iter().map(|(start, end)| (end - start) as usize).sum();
    let keys = window.map_or(String::new(), |window| format!(", window of {window}"));
    ConformCase::new(
        "attention",
        format_args!("{dtype} {what} {shape:?}{keys}"),
        rows,
        move |stage| {
            let first = |position: u32| Attention::first_key(window, position as usize);
            let seen: Vec<Range<usize>> =
                spans.iter().map(|&(start, end)| first(start)..end as usize).collect();
            let pool = ScatteredBlocks::new(&mut stage.rng, shape, dtype == DType::I8, &seen);
            let [k_cache, v_cache] = if pool.layout.coded {
                let keys = pool.codes(&mut stage.rng, &seen);
                let values = pool.codes(&mut stage.rng, &seen);
                stage.coded_caches(pool.layout, [&keys, &values])?
            } else {
                let keys = pool.contents(&mut stage.rng, &seen, CacheLayout::key);
                let values = pool.contents(&mut stage.rng, &seen, CacheLayout::value);
                stage.caches(dtype, pool.layout, [&keys, &values])?
            };
            let positions: Vec<u32> = spans.iter().flat_map(|&(start, end)| start..end).collect();
            let lines = (0..).zip(spans);
            let span_of: Vec<u32> =
                lines.flat_map(|(i, &(start, end))| (start..end).map(move |_| i)).collect();
            let width = shape.heads * shape.head_dim;
            // Sharp enough that some keys dominate, so a wrong one shows.
            let q: Vec<f32> = stage.rng.values(rows * width).iter().map(|v| 4.0 * v).collect();
            Ok(Attention {
                q: stage.input("q", &q)?,
                k_cache,
                v_cache,
                layout: stage.layout(pool.layout),
                positions: stage.indices("positions", &positions)?,
                span_of: stage.indices("span_of", &span_of)?,
                tables: stage.indices("tables", &pool.tables)?,
                table_width: pool.width,
                heads: shape.heads,
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
                window,
                out: stage.output("out", rows * width)?,
            }
            .into())
        },
    )
}
