//! Some rows of one sequence over the cache of one key head.
//!
//! # Layout
//! A query is a row's query head; those of a tile are numbered by row, then head. Scores are `[query][key]`, where
//! the keys of a block fill whole vectors.
//!
//! # Numerics
//! All f32. Keys are taken in chunks at absolute positions: the scores of a chunk, their maximum, the weights relative
//! to it, summed in lanes by place in the block, then the weighted values key by key. Chunks are merged in ascending
//! order (online softmax). A query takes no part in what it does not see. So which rows share a tile, and which thread
//! computes a chunk, does not enter a result.

use super::attention::AttentionArgs;
use super::attention_block::{CachedPart, MOST_LINES, RowIo, Sums, lines_together};
use super::attention_state::{SoftmaxState, SoftmaxWeights};
use super::isa::{Isa, LANES};
use crate::BufferStorage;
use crate::pool::SharedSlice;
use forerun_backend::op::{Attention, AttentionPart, CacheLayout};
use std::ops::Range;

/// Keys of a chunk, where blocks are not larger: few enough that a short context keeps several threads busy, enough
/// that merging costs little.
const CHUNK: usize = 256;

/// Keys of a chunk: whole blocks of so many positions.
pub(crate) const fn chunk_keys(block: usize) -> usize {
    let blocks = CHUNK / block;
    if blocks == 0 { block } else { blocks * block }
}

/// The rows of a tile are of one sequence.
pub(crate) struct Tile<'a> {
    pub(crate) op: &'a AttentionArgs<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) head: usize,
}

/// Sizes of what tiles need, for at most `rows` of them.
#[derive(Clone, Copy)]
pub(crate) struct TileSizes {
    rows: usize,
    /// Query heads of a key head.
    group: usize,
    /// Elements of a head, in whole vectors.
    wide: usize,
    /// Keys of a block, in whole vectors.
    keys: usize,
    layout: CacheLayout,
}

impl TileSizes {
    pub(crate) fn new(op: &AttentionArgs<'_>, rows: usize) -> Self {
        let layout = op.layout;
        let [wide, keys] = [layout.head_dim, layout.block].map(|n| n.next_multiple_of(LANES));
        Self { rows, group: op.heads / layout.kv_heads, wide, keys, layout }
    }

    fn queries(&self) -> usize {
        self.rows * self.group
    }

    /// Scores of a query.
    fn scores(&self) -> usize {
        chunk_keys(self.layout.block) / self.layout.block * self.keys
    }

    /// f32 of a [`SoftmaxState`].
    pub(crate) fn state(&self) -> usize {
        SoftmaxState::len(self.queries(), self.wide)
    }

    /// The widened part of a block: keys or values.
    fn table(&self) -> usize {
        (self.layout.head_dim * self.keys).max(self.layout.block * self.wide)
    }

    /// f32 and words of scratch: one [`ChunkScratch`] and two states.
    pub(crate) fn scratch(&self) -> (usize, usize) {
        let scratch = self.table() + self.queries() * self.scores();
        (scratch + 2 * self.state(), VISIBLE_QUERY_WORDS * self.queries())
    }

    /// A state in the first elements of `from`, whatever they hold.
    pub(crate) fn state_in<'a>(&self, from: &'a mut [f32]) -> SoftmaxState<'a> {
        SoftmaxState::new(from, self.queries(), self.wide)
    }

    /// Scratch in the first elements and words given; also the elements left.
    pub(crate) fn scratch_in<'a>(
        &self,
        floats: &'a mut [f32],
        words: &'a mut [u32],
    ) -> (ChunkScratch<'a>, &'a mut [f32]) {
        let (table, rest) = floats.split_at_mut(self.table());
        let (scores, rest) = rest.split_at_mut(self.queries() * self.scores());
        let visible = &mut words.as_chunks_mut().0[..self.queries()];
        (ChunkScratch { table, scores, visible }, rest)
    }
}

/// Scratch for computing a chunk.
pub(crate) struct ChunkScratch<'a> {
    table: &'a mut [f32],
    /// `[visible query][key]`.
    scores: &'a mut [f32],
    /// Queries that see the chunk.
    visible: &'a mut [VisibleQuery],
}

/// Words of [`VisibleQuery`].
const VISIBLE_QUERY_WORDS: usize = 4;

/// A query that sees a chunk: its number in the tile, its head's number among all rows' heads, its first key in the
/// chunk and one past its last.
pub(crate) type VisibleQuery = [u32; VISIBLE_QUERY_WORDS];

/// What a query sees of block `block` of `size` keys, counted from its first.
fn inside([.., start, end]: VisibleQuery, block: usize, size: usize) -> Range<usize> {
    let part = |key: u32| (key as usize).saturating_sub(block * size).min(size);
    part(start)..part(end)
}

/// Extends `all` to cover `seen`, unless that is empty.
fn extend_range(all: &mut Range<usize>, seen: &Range<usize>) {
    if !seen.is_empty() {
        *all = all.start.min(seen.start)..all.end.max(seen.end);
    }
}

/// Covers nothing yet.
const NONE: Range<usize> = Range { start: usize::MAX, end: 0 };

impl Tile<'_> {
    /// Sizes of this tile's state and scratch.
    pub(crate) fn sizes(&self) -> TileSizes {
        TileSizes::new(self.op, self.rows.len())
    }

    /// Indices of the chunks that some row sees, and perhaps of some between that none does.
    pub(crate) fn chunks(&self) -> Range<usize> {
        self.op.chunks(self.rows.clone())
    }

    /// Lists the queries that see a chunk. Returns their number.
    fn visible_queries(&self, chunk: usize, visible: &mut [VisibleQuery]) -> usize {
        let (keys, mut count) = (chunk_keys(self.op.layout.block), 0);
        let group = self.op.heads / self.op.layout.kv_heads;
        for (i, row) in self.rows.clone().enumerate() {
            let position = self.op.positions[row] as usize;
            let inside = |key: usize| key.saturating_sub(chunk * keys).min(keys);
            let start = inside(Attention::first_key(self.op.window, position));
            let end = inside(position + 1);
            for g in 0..if start < end { group } else { 0 } {
                let head = row * self.op.heads + self.head * group + g;
                visible[count] = [i * group + g, head, start, end].map(|n| n as u32);
                count += 1;
            }
        }
        count
    }

    /// The state of one chunk of keys.
    pub(crate) fn chunk<S: Isa>(
        &self,
        simd: S,
        chunk: usize,
        scratch: &mut ChunkScratch<'_>,
        state: &mut SoftmaxState<'_>,
    ) {
        state.clear();
        let ChunkScratch { table, scores, visible } = scratch;
        let count = self.visible_queries(chunk, visible);
        let (op, sizes) = (self.op, self.sizes());
        let blocks = chunk_keys(op.layout.block) / op.layout.block;
        let line = op.span_of[self.rows.start] as usize * op.table_width;
        let ids = &op.tables[line..line + op.table_width];
        let ids = &ids[chunk * blocks..((chunk + 1) * blocks).min(op.table_width)];
        let seen = VisibleChunk { tile: self, sizes, ids, queries: &visible[..count] };
        for block in 0..ids.len() {
            seen.score(simd, block, table, scores);
        }
        let wide = sizes.scores();
        let block = [op.layout.block, sizes.keys];
        simd.call(SoftmaxWeights { visible: seen.queries, block, scores, wide, state });
        for block in 0..ids.len() {
            seen.add_values(simd, block, (table, scores), state);
        }
    }

    /// Sets a state to what earlier calls left for this tile's queries, or to no keys.
    pub(crate) fn begin(&self, state: &mut SoftmaxState<'_>) {
        state.clear();
        let Some(carried) = self.op.carried.filter(|carried| !carried.begins) else { return };
        self.each_query(carried.data, |query, wide, kept| {
            let (values, rest) = kept.split_at(self.op.layout.head_dim);
            state.values[query * wide..][..values.len()].copy_from_slice(values);
            (state.maxima[query], state.totals[query]) = (rest[0], rest[1]);
        });
    }

    /// Leaves a state to later calls, or writes the output where there are none.
    pub(crate) fn end(&self, state: &SoftmaxState<'_>, out: &SharedSlice<'_, f32>) {
        let Some(carried) = self.op.carried.filter(|carried| !carried.ends) else {
            return self.finish(state, out);
        };
        self.each_query(carried.data, |query, wide, kept| {
            let (values, rest) = kept.split_at_mut(self.op.layout.head_dim);
            values.copy_from_slice(&state.values[query * wide..][..values.len()]);
            rest.copy_from_slice(&[state.maxima[query], state.totals[query]]);
        });
    }

    /// Calls `work` with each query of the tile, the f32 between queries of a state, and the query's part of `carried`.
    fn each_query(
        &self,
        carried: SharedSlice<'_, f32>,
        mut work: impl FnMut(usize, usize, &mut [f32]),
    ) {
        let TileSizes { group, wide, layout, .. } = self.sizes();
        let width = AttentionPart::state_width(layout.head_dim);
        for query in 0..self.rows.len() * group {
            let row = self.rows.start + query / group;
            let head = row * self.op.heads + self.head * group + query % group;
            // SAFETY: a row's key head belongs to one tile, and a tile's states to one task at a time; the operation's
            // description has checked that there is a part for each head of each row.
            work(query, wide, unsafe { carried.part(head * width, width) });
        }
    }

    /// Divides by the totals and writes each row's query heads to its part of `out`.
    pub(crate) fn finish(&self, state: &SoftmaxState<'_>, out: &SharedSlice<'_, f32>) {
        let TileSizes { group, wide, layout: CacheLayout { head_dim, .. }, .. } = self.sizes();
        let heads = state.values.chunks_exact(wide).zip(&*state.totals);
        for (query, (values, total)) in heads.enumerate() {
            let row = self.rows.start + query / group;
            let head = row * self.op.heads + self.head * group + query % group;
            // SAFETY: a row's key head belongs to one tile, and a tile to one task.
            let out = unsafe { out.part(head * head_dim, head_dim) };
            out.iter_mut().zip(values).for_each(|(out, value)| *out = value / total);
        }
    }
}

/// A chunk of keys and the queries that see some of it.
struct VisibleChunk<'a> {
    tile: &'a Tile<'a>,
    sizes: TileSizes,
    /// The chunk's blocks.
    ids: &'a [u32],
    queries: &'a [VisibleQuery],
}

impl<'a> VisibleChunk<'a> {
    /// Keys of a block that any query sees.
    fn used(&self, block: usize) -> Range<usize> {
        let mut used = NONE;
        // The queries of a row see the same.
        for &query in self.queries.iter().step_by(self.sizes.group) {
            extend_range(&mut used, &inside(query, block, self.sizes.layout.block));
        }
        used
    }

    /// First element of a block's part of keys (0) or values (1). `None` if the block's id is out of range, as it may
    /// be where no row looks.
    fn place(&self, block: usize, which: usize) -> Option<(&'a BufferStorage, usize)> {
        let op = self.tile.op;
        let id = self.ids.get(block).filter(|&&id| (id as usize) < op.layout.blocks)?;
        let at = op.starts[which] + op.layout.part(*id as usize, self.tile.head);
        Some(([op.k, op.v][which], at))
    }

    /// A block's keys (0) or values (1), to be followed by the next block's or, after keys, the first values.
    fn stored(&self, block: usize, which: usize) -> CachedPart<'a> {
        let (cache, at) = self.place(block, which).expect("ids that a row needs were checked");
        let next = self.place(block + 1, which).or_else(|| self.place(0, 1));
        let (layout, next) = (self.sizes.layout, next.unwrap_or((cache, at)));
        CachedPart { cache, at, layout, keys: which == 0, next }
    }

    /// Scores of a block's keys, minus infinity for keys that a query does not see.
    fn score<S: Isa>(&self, simd: S, block: usize, scratch: &mut [f32], scores: &mut [f32]) {
        if self.used(block).is_empty() {
            return;
        }
        let (op, TileSizes { keys, layout, .. }) = (self.tile.op, self.sizes);
        let (dim, wide, all) = (layout.head_dim, self.sizes.scores(), self.queries.len());
        let mut table = self.stored(block, 0).table(simd, all, 0..dim, scratch);
        let to = scores[..all * wide].as_mut_ptr().wrapping_add(block * keys);
        let together = lines_together::<S>(all);
        for (part_of, queries) in self.queries.chunks(together).enumerate() {
            let mut lines = [RowIo::NONE; MOST_LINES];
            let mut columns = NONE;
            for (i, (line, &query)) in lines.iter_mut().zip(queries).enumerate() {
                let from = op.q[query[1] as usize * dim..][..dim].as_ptr();
                *line = RowIo { from, to: to.wrapping_add((part_of * together + i) * wide) };
                extend_range(&mut columns, &inside(query, block, layout.block));
            }
            if !columns.is_empty() {
                let (lines, parts) = (&lines[..queries.len()], [0..dim, columns]);
                // SAFETY: a query has `dim` numbers; its scores of this block, `keys` of them, are its own.
                unsafe { table.multiply(simd, lines, parts, Sums::Scaled(op.scale)) };
            }
        }
        for (&query, scores) in self.queries.iter().zip(scores.chunks_exact_mut(wide)) {
            let seen = inside(query, block, layout.block);
            if !seen.is_empty() && seen.len() < keys {
                let scores = &mut scores[block * keys..(block + 1) * keys];
                scores[..seen.start].fill(f32::NEG_INFINITY);
                scores[seen.end..].fill(f32::NEG_INFINITY);
            }
        }
    }

    /// Adds a block's weighted values, key by key.
    ///
    /// Keys that all queries of a register block see are taken together; each query takes the keys before and after by
    /// itself, since masked values may be anything, and zero times NaN is not zero.
    fn add_values<S: Isa>(
        &self,
        simd: S,
        block: usize,
        (scratch, scores): (&mut [f32], &[f32]),
        state: &mut SoftmaxState<'_>,
    ) {
        let used = self.used(block);
        if used.is_empty() {
            return;
        }
        let (TileSizes { wide, keys, layout, .. }, all) = (self.sizes, self.queries.len());
        let mut table = self.stored(block, 1).table(simd, all, used, scratch);
        let from = scores[..all * self.sizes.scores()].as_ptr().wrapping_add(block * keys);
        let to = state.values.as_mut_ptr();
        let together = lines_together::<S>(all);
        for (part_of, queries) in self.queries.chunks(together).enumerate() {
            let mut lines = [RowIo::NONE; MOST_LINES];
            let (mut common, mut any) = (0..usize::MAX, NONE);
            for (i, (line, &query)) in lines.iter_mut().zip(queries).enumerate() {
                let from = from.wrapping_add((part_of * together + i) * self.sizes.scores());
                *line = RowIo { from, to: to.wrapping_add(query[0] as usize * wide) };
                let seen = inside(query, block, layout.block);
                extend_range(&mut any, &seen);
                common = common.start.max(seen.start)..common.end.min(seen.end);
            }
            let differ = common != any;
            if common.is_empty() {
                common = usize::MAX..usize::MAX;
            }
            let lines = &lines[..queries.len()];
            let mut add = |lines: &[RowIo], seen: Range<usize>| {
                // SAFETY: a line reads the weights of its query, which sees these keys of the block, and writes its
                // query's values, whole vectors.
                unsafe { table.multiply(simd, lines, [seen, 0..wide], Sums::Added) };
            };
            if differ {
                for (line, &query) in lines.iter().zip(queries) {
                    let seen = inside(query, block, layout.block);
                    add(std::slice::from_ref(line), seen.start..common.start.min(seen.end));
                }
            }
            add(lines, common.clone());
            if differ {
                for (line, &query) in lines.iter().zip(queries) {
                    let seen = inside(query, block, layout.block);
                    add(std::slice::from_ref(line), common.end.max(seen.start)..seen.end);
                }
            }
        }
    }
}
