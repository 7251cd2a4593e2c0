//! Attention over the cache. See [`forerun_backend::op::Attention`] for the math.
//!
//! # Layout
//! Rows of one sequence make a tile with one key head, so that a block of keys and values is read and widened once for
//! all of them. A task is a tile; if there are too few tiles to keep the threads busy, a task is a chunk of a tile's
//! keys, and the partial results are merged afterwards, as in flash decoding.

use super::Scratch;
use super::attention_tile::{Tile, TileSizes, chunk_keys};
use super::isa::{Isa, Task};
use crate::BufferStorage;
use crate::pool::SharedSlice;
use crate::reference::index;
use crate::simd::exec_ctx::ExecCtx;
use forerun_backend::BackendError;
use forerun_backend::op::{Attention, CacheLayout};
use std::ops::Range;

/// With this many queries in a tile, widening a block costs a few per cent.
const MANY_QUERIES: usize = 192;
/// Tiles with fewer queries are not split for the sake of threads.
const FEW_QUERIES: usize = 32;
/// With this many tiles per thread, threads finish together though some tiles see more keys than others.
const TILES_PER_THREAD: usize = 4;
/// f32 that the states of chunks may take together, unless threads would be idle.
const STATES: usize = 1 << 18;

/// Operands of attention; their sizes were checked against the operation's declaration.
pub(crate) struct AttentionArgs<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a BufferStorage,
    pub(crate) v: &'a BufferStorage,
    /// First element of keys and values in their buffers.
    pub(crate) starts: [usize; 2],
    pub(crate) layout: CacheLayout,
    pub(crate) positions: &'a [u32],
    pub(crate) span_of: &'a [u32],
    pub(crate) tables: &'a [u32],
    pub(crate) table_width: usize,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
    /// The keys that this call takes: whole chunks, or all up to the last.
    pub(crate) keys: Range<usize>,
    /// What calls for other keys left and will go on from, where this one does not take all of them.
    pub(crate) carried: Option<CarriedState<'a>>,
}

/// The states of all query heads between calls that take some keys each: `[head][values, maximum, total]`.
#[derive(Clone, Copy)]
pub(crate) struct CarriedState<'a> {
    pub(crate) data: SharedSlice<'a, f32>,
    /// Whether nothing was left before.
    pub(crate) begins: bool,
    /// Whether nobody goes on: the output is written.
    pub(crate) ends: bool,
}

impl AttentionArgs<'_> {
    /// Checks every index of the row against what it points into.
    fn check(&self, row: usize) -> Result<(), BackendError> {
        let (op, width, block) = ("attention", self.table_width, self.layout.block);
        let line = index(op, "span_of", self.span_of[row], self.tables.len() / width)?;
        let position = index(op, "positions", self.positions[row], width * block)?;
        let first = Attention::first_key(self.window, position) / block;
        for &id in &self.tables[line * width + first..=line * width + position / block] {
            index(op, "tables", id, self.layout.blocks)?;
        }
        Ok(())
    }

    /// Indices of the chunks among this call's keys that some of `rows` sees, and perhaps of some between that none
    /// does.
    pub(crate) fn chunks(&self, rows: Range<usize>) -> Range<usize> {
        let keys = chunk_keys(self.layout.block);
        let (mut first, mut end) = (usize::MAX, 0);
        for &position in &self.positions[rows] {
            let position = position as usize;
            let start = Attention::first_key(self.window, position).max(self.keys.start);
            let last = position.min(self.keys.end - 1);
            if start <= last {
                first = first.min(start / keys);
                end = end.max(last / keys + 1);
            }
        }
        first.min(end)..end
    }
}

/// How rows are partitioned into tiles, and tiles into tasks.
#[derive(Clone, Copy)]
struct TileList<'a> {
    op: &'a AttentionArgs<'a>,
    /// First row of each tile and one past its last.
    tiles: &'a [[u32; 2]],
}

impl<'a> TileList<'a> {
    /// Tiles by key head: all heads of a tile, then the tile before it. The last rows of a prompt see most, so
    /// they come first.
    fn tile(&self, index: usize) -> Tile<'a> {
        let kv_heads = self.op.layout.kv_heads;
        let [start, end] = self.tiles[self.tiles.len() - 1 - index / kv_heads].map(|n| n as usize);
        Tile { op: self.op, rows: start..end, head: index % kv_heads }
    }
}

/// Full tiles.
struct TileTask<'a> {
    tile_list: TileList<'a>,
    out: SharedSlice<'a, f32>,
}

impl Task for TileTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let tile = self.tile_list.tile(index);
        let (floats, words) = scratch.parts();
        let sizes = tile.sizes();
        let (mut scratch, rest) = sizes.scratch_in(floats, words);
        let (all, rest) = rest.split_at_mut(sizes.state());
        let (mut all, mut state) = (sizes.state_in(all), sizes.state_in(rest));
        tile.begin(&mut all);
        for chunk in tile.chunks() {
            tile.chunk(simd, chunk, &mut scratch, &mut state);
            all.merge(simd, &state);
        }
        tile.end(&all, &self.out);
    }
}

/// Some chunks of all tiles, and where their states are: `[tile][tile's own, then one per chunk]`.
#[derive(Clone, Copy)]
struct Wave<'a> {
    tile_list: TileList<'a>,
    /// The chunks that are tasks now.
    now: [usize; 2],
    /// Chunks whose states fit scratch.
    most: usize,
    /// f32 of a state.
    state: usize,
    states: SharedSlice<'a, f32>,
}

impl<'a> Wave<'a> {
    /// State number `which` of a tile.
    ///
    /// # Safety
    /// No other reference covers state `which` of the tile while this one lives.
    unsafe fn state(&self, tile: usize, which: usize) -> &'a mut [f32] {
        let at = tile * (1 + self.most) + which;
        // SAFETY: states do not overlap, and nobody else has this one (contract above).
        unsafe { self.states.part(at * self.state, self.state) }
    }
}

/// One chunk of a tile's keys.
struct ChunkTask<'a>(Wave<'a>);

impl Task for ChunkTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let Self(wave) = self;
        let [first, end] = wave.now;
        let (index, chunk) = (index / (end - first), first + index % (end - first));
        let tile = wave.tile_list.tile(index);
        if !tile.chunks().contains(&chunk) {
            return;
        }
        let sizes = tile.sizes();
        // SAFETY: a task has its own state.
        let state = unsafe { wave.state(index, 1 + chunk - first) };
        let (floats, words) = scratch.parts();
        let (mut scratch, _) = sizes.scratch_in(floats, words);
        tile.chunk(simd, chunk, &mut scratch, &mut sizes.state_in(state));
    }
}

/// The chunks of a tile, merged with those before.
struct MergeTask<'a> {
    wave: Wave<'a>,
    /// All chunks: first and one past the last.
    chunks: [usize; 2],
    out: SharedSlice<'a, f32>,
}

impl Task for MergeTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _scratch: &mut Scratch) {
        let Self { wave, chunks, .. } = self;
        let tile = wave.tile_list.tile(index);
        let (sizes, [first, end]) = (tile.sizes(), wave.now);
        // SAFETY: the states of a tile belong to one task.
        let mut all = sizes.state_in(unsafe { wave.state(index, 0) });
        if first == chunks[0] {
            tile.begin(&mut all);
        }
        for chunk in (first..end).filter(|chunk| tile.chunks().contains(chunk)) {
            // SAFETY: the states of a tile belong to one task, and each chunk has its own.
            let state = unsafe { wave.state(index, 1 + chunk - first) };
            all.merge(simd, &sizes.state_in(state));
        }
        if end == chunks[1] {
            tile.end(&all, &self.out);
        }
    }
}

/// Partitions runs of rows of the same sequence into tiles of at most `most` rows. Returns the number of tiles.
fn tile_list(span_of: &[u32], most: usize, tiles: &mut [[u32; 2]]) -> usize {
    let (mut count, mut row) = (0, 0);
    for run in span_of.chunk_by(|a, b| a == b) {
        for part in run.chunks(most) {
            tiles[count] = [row as u32, (row + part.len()) as u32];
            (count, row) = (count + 1, row + part.len());
        }
    }
    count
}

/// Rows of `queries` queries, or one.
fn rows_of(op: &AttentionArgs<'_>, queries: usize) -> usize {
    (queries * op.layout.kv_heads / op.heads).max(1)
}

/// Rows of the largest tile: enough queries to make widening a block worthwhile, few enough to stay in cache and to
/// give every thread some.
fn tile_rows(op: &AttentionArgs<'_>, threads: usize) -> usize {
    let each = op.positions.len() * op.layout.kv_heads / (TILES_PER_THREAD * threads);
    each.clamp(rows_of(op, FEW_QUERIES), rows_of(op, MANY_QUERIES))
}

/// Causal attention of each row.
pub(crate) fn attention(
    ctx: &mut ExecCtx,
    operands: &AttentionArgs<'_>,
    shared: &mut Scratch,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let same = matches!(
        (operands.k, operands.v),
        (BufferStorage::F32(_), BufferStorage::F32(_))
            | (BufferStorage::F16(_), BufferStorage::F16(_))
            | (BufferStorage::BF16(_), BufferStorage::BF16(_))
            | (BufferStorage::I8(_), BufferStorage::I8(_))
    );
    if !same {
        let what = "keys and values are stored in different types";
        return Err(BackendError::Parameter { op: "attention", what });
    }
    let rows = operands.positions.len();
    for row in 0..rows {
        operands.check(row)?;
    }
    if rows > 0 {
        attend(ctx, operands, shared, SharedSlice::new(out));
    }
    Ok(())
}

/// What [`attention`] does with operands that it has checked.
fn attend(
    ctx: &mut ExecCtx,
    op: &AttentionArgs<'_>,
    shared: &mut Scratch,
    out: SharedSlice<'_, f32>,
) {
    let (rows, wanted) = (op.positions.len(), TILES_PER_THREAD * ctx.threads());
    let most_rows = tile_rows(op, ctx.threads());
    // Sized for the largest possible tile, so that a few rows more never reallocate.
    let (floats, words) = TileSizes::new(op, rows_of(op, MANY_QUERIES)).scratch();
    ctx.reserve(floats, words);
    shared.reserve(0, 2 * rows);
    let count = tile_list(op.span_of, most_rows, shared.parts().1.as_chunks_mut().0);
    let tasks = count * op.layout.kv_heads;
    let longest = (op.table_width * op.layout.block).div_ceil(chunk_keys(op.layout.block));
    let Range { start, end } = op.chunks(0..rows);
    let many = ctx.threads() == 1 || tasks >= wanted;
    if ctx.threads() > 1 && longest > 1 {
        // Sized for the largest possible case again: if tiles are few, they have few queries.
        let state = TileSizes::new(op, rows_of(op, FEW_QUERIES)).state();
        let most = (wanted * longest * state).min(STATES.max(2 * wanted * state));
        shared.reserve(wanted * state + most, 0);
    }
    let (states, words) = shared.parts();
    let tile_list = TileList { op, tiles: &words.as_chunks().0[..count] };
    if many || end - start <= 1 {
        ctx.run(tasks, &TileTask { tile_list, out });
        return;
    }
    let state = TileSizes::new(op, most_rows.min(rows)).state();
    let most = (STATES / (tasks * state)).max(wanted.div_ceil(tasks)).min(longest);
    let (states, chunks) = (SharedSlice::new(states), [start, end]);
    for first in (start..end).step_by(most) {
        let now = [first, (first + most).min(end)];
        let wave = Wave { tile_list, now, most, state, states };
        ctx.run(tasks * (now[1] - now[0]), &ChunkTask(wave));
        ctx.run(tasks, &MergeTask { wave, chunks, out });
    }
}
