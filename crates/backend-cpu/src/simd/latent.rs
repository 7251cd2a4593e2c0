//! Attention over a latent cache. See [`forerun_backend::op::LatentAttention`] for the math.
//!
//! # Layout
//! A task is some heads of one row, a multiple of four where they are not the last. It goes through the row's blocks:
//! the rows that are seen are widened to f32 in scratch, zeros behind their ends, and then four heads at a time take
//! scores, weights and the weighted sum of latents.
//!
//! ```text
//! scratch   [keys | queries | sums of latents | weights | maxima, sums]
//!           keys and queries `stride` wide, a multiple of sixteen at least so wide that vectors of latents end inside
//! ```
//!
//! # Numerics
//! A score is a sum in lanes. Blocks are merged in ascending order by maximum and sum; in a block, latents are added
//! key by key. Which heads or rows share a task changes nothing.

use super::Scratch;
use super::cache::{BlockSlots, CacheSink, HeadRows};
use super::elementwise::Norm;
use super::exec_ctx::ExecCtx;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{ScaledTimes, exp_nonpositive, zip};
use crate::BufferStorage;
use crate::pool::SharedSlice;
use forerun_backend::op::CacheLayout;
use forerun_base::bf16_to_f32;

/// Heads that are computed together.
const TILE: usize = 4;
/// Keys whose scores are computed together.
const KEYS: usize = 2;
/// Vectors of latents that are added to together.
const WIDE: usize = 2;
/// Most tiles of a task: their sums stay in the second-level cache.
const MOST_TILES: usize = 8;
/// With fewer multiply-adds, waking other threads costs more than it saves.
const SMALLEST: usize = 1 << 14;

/// Operands, checked.
pub(crate) struct LatentArgs<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) cache: &'a BufferStorage,
    /// Where the cache begins in its buffer.
    pub(crate) start: usize,
    pub(crate) layout: CacheLayout,
    pub(crate) latent: usize,
    /// For each row the beginning of its line in `tables` and how many keys it sees.
    pub(crate) seen: &'a [(usize, usize)],
    /// Block ids, those that any row sees checked.
    pub(crate) tables: &'a [u32],
    pub(crate) heads: usize,
    pub(crate) scale: f32,
}

impl LatentArgs<'_> {
    /// Elements before the latent.
    fn lead(&self) -> usize {
        self.layout.head_dim - self.latent
    }

    /// Width of a sum of latents, in whole vectors.
    fn wide(&self) -> usize {
        self.latent.next_multiple_of(LANES)
    }

    /// From one row of keys or queries in scratch to the next.
    fn stride(&self) -> usize {
        (self.lead() + self.wide()).next_multiple_of(LANES)
    }

    /// Room for the weights of a head.
    fn block(&self) -> usize {
        self.layout.block.next_multiple_of(LANES)
    }

    /// Parts of the scratch for so many heads, in the order of the module's text.
    fn room(&self, heads: usize) -> [usize; 5] {
        let stride = self.stride();
        [
            self.block() * stride,
            heads * stride,
            heads * self.wide(),
            heads * self.block(),
            heads * 2,
        ]
    }
}

struct LatentTask<'a> {
    op: &'a LatentArgs<'a>,
    out: SharedSlice<'a, f32>,
    /// Tiles of heads in a task, and tasks of a row.
    tiles: usize,
    parts: usize,
}

impl Task for LatentTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let (op, row) = (self.op, index / self.parts);
        let first = index % self.parts * self.tiles * TILE;
        let heads = (self.tiles * TILE).min(op.heads - first);
        let width = op.layout.head_dim;
        let mut rest = scratch.floats();
        let [keys, queries, sums, weights, states] = op.room(heads).map(|len| {
            let (part, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            part
        });
        let from = (row * op.heads + first) * width;
        let given = op.q[from..from + heads * width].chunks_exact(width);
        for (q, to) in given.zip(queries.chunks_exact_mut(op.stride())) {
            to[..width].copy_from_slice(q);
            to[width..].fill(0.0);
        }
        sums.fill(0.0);
        states
            .chunks_exact_mut(2)
            .for_each(|state| state.copy_from_slice(&[f32::NEG_INFINITY, 0.0]));
        let (line, seen) = op.seen[row];
        let block = op.layout.block;
        for b in 0..seen.div_ceil(block) {
            let count = block.min(seen - b * block);
            let id = op.tables[line + b] as usize;
            simd.call(Widen { op, id, count, to: keys });
            for tile in (0..heads).step_by(TILE) {
                let part = BlockOfHeads {
                    op,
                    keys,
                    count,
                    queries: &queries[tile * op.stride()..],
                    sums: &mut sums[tile * op.wide()..],
                    weights: &mut weights[tile * op.block()..],
                    states: &mut states[tile * 2..],
                };
                match heads - tile {
                    1 => simd.call(HeadsKernel::<1>(part)),
                    2 => simd.call(HeadsKernel::<2>(part)),
                    3 => simd.call(HeadsKernel::<3>(part)),
                    _ => simd.call(HeadsKernel::<TILE>(part)),
                }
            }
        }
        // SAFETY: these heads of the row are this task's alone.
        let out = unsafe { self.out.part((row * op.heads + first) * op.latent, heads * op.latent) };
        for (head, out) in out.chunks_exact_mut(op.latent).enumerate() {
            let sum = states[2 * head + 1];
            let from = &sums[head * op.wide()..][..op.latent];
            out.iter_mut().zip(from).for_each(|(out, x)| *out = x / sum);
        }
    }
}

/// The first rows of a block as f32, zeros behind each.
struct Widen<'a> {
    op: &'a LatentArgs<'a>,
    id: usize,
    count: usize,
    to: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { op, id, count, to } = self;
        let width = op.layout.head_dim;
        for (at, to) in to.chunks_exact_mut(op.stride()).take(count).enumerate() {
            let from = op.start + op.layout.value(id, 0, at, 0);
            let (row, behind) = to.split_at_mut(width);
            behind.fill(0.0);
            match op.cache {
                BufferStorage::F32(all) => row.copy_from_slice(&all[from..from + width]),
                BufferStorage::F16(all) => {
                    let all = &all[from..from + width];
                    for i in (0..width / LANES * LANES).step_by(LANES) {
                        // SAFETY: sixteen elements are left in both.
                        unsafe {
                            let wide = simd.load_f16(all.as_ptr().add(i).cast());
                            simd.store(row.as_mut_ptr().add(i), wide);
                        }
                    }
                    rest(op.cache, from, row);
                }
                BufferStorage::BF16(all) => {
                    let all = &all[from..from + width];
                    for i in (0..width / LANES * LANES).step_by(LANES) {
                        // SAFETY: sixteen elements are left in both.
                        unsafe {
                            let wide = simd.load_bf16(all.as_ptr().add(i).cast());
                            simd.store(row.as_mut_ptr().add(i), wide);
                        }
                    }
                    rest(op.cache, from, row);
                }
                BufferStorage::I8(all) => {
                    let codes = &all[from..from + width];
                    let start = op.start;
                    for (group, row) in row.chunks_mut(CacheLayout::GROUP).enumerate() {
                        let scale = &all[start + op.layout.scale(id, 0, at, group)..];
                        let scale = bf16_to_f32(u16::from_le_bytes([scale[0], scale[1]]));
                        let codes = &codes[group * CacheLayout::GROUP..];
                        for (x, &code) in row.iter_mut().zip(codes) {
                            *x = f32::from(code as i8) * scale;
                        }
                    }
                }
                BufferStorage::U32(_) => unreachable!("the desc refused a cache of indices"),
            }
        }
    }
}

/// What whole vectors leave of a row.
#[inline(always)]
fn rest(cache: &BufferStorage, from: usize, row: &mut [f32]) {
    let whole = row.len() / LANES * LANES;
    for (i, x) in row.iter_mut().enumerate().skip(whole) {
        *x = cache.get(from + i);
    }
}

/// One block of keys and up to four heads; slices begin at the first of them.
struct BlockOfHeads<'a> {
    op: &'a LatentArgs<'a>,
    keys: &'a [f32],
    count: usize,
    queries: &'a [f32],
    sums: &'a mut [f32],
    weights: &'a mut [f32],
    states: &'a mut [f32],
}

struct HeadsKernel<'a, const H: usize>(BlockOfHeads<'a>);

impl<const H: usize> Kernel for HeadsKernel<'_, H> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let BlockOfHeads { op, keys, count, queries, sums, weights, states } = self.0;
        let (stride, block, wide) = (op.stride(), op.block(), op.wide());
        assert!(keys.len() >= count * stride && queries.len() >= H * stride, "room for rows");
        assert!(sums.len() >= H * wide && weights.len() >= H * block, "room for sums");
        for first in (0..count).step_by(KEYS) {
            // A single last key stands in for its neighbour, whose score is dropped.
            let second = (first + 1).min(count - 1);
            let keys = [&keys[first * stride..][..stride], &keys[second * stride..][..stride]];
            for (h, found) in scores::<S, H>(simd, queries, keys).into_iter().enumerate() {
                weights[h * block + first] = found[0] * op.scale;
                weights[h * block + second] = found[second - first] * op.scale;
            }
        }
        let mut shrink = [0.0; H];
        for h in 0..H {
            let [max, sum] = [states[2 * h], states[2 * h + 1]];
            let weights = &mut weights[h * block..][..count];
            let (most, factor, added) = weigh(simd, weights, max);
            shrink[h] = factor;
            states[2 * h..2 * h + 2].copy_from_slice(&[most, sum * factor + added]);
        }
        for first in (0..wide).step_by(WIDE * LANES) {
            let at = op.lead() + first;
            let vectors = WIDE.min((wide - first) / LANES);
            let mut add =
                Latents { keys, stride, at, count, weights, block, shrink, sums, wide, first };
            match vectors {
                1 => add.run::<S, 1>(simd),
                _ => add.run::<S, WIDE>(simd),
            }
        }
    }
}

/// `q · k` for heads and two keys.
#[inline(always)]
fn scores<S: Isa, const H: usize>(
    simd: S,
    queries: &[f32],
    keys: [&[f32]; KEYS],
) -> [[f32; KEYS]; H] {
    let stride = keys[0].len();
    let mut dots = [[simd.splat(0.0); KEYS]; H];
    for at in (0..stride).step_by(LANES) {
        // SAFETY: rows are whole vectors, `stride` elements each.
        unsafe {
            let k = [simd.load(keys[0].as_ptr().add(at)), simd.load(keys[1].as_ptr().add(at))];
            for h in 0..H {
                let q = simd.load(queries.as_ptr().add(h * stride + at));
                dots[h][0] = simd.fma(q, k[0], dots[h][0]);
                dots[h][1] = simd.fma(q, k[1], dots[h][1]);
            }
        }
    }
    let mut found = [[0.0; KEYS]; H];
    for h in 0..H {
        found[h] = [simd.sum(dots[h][0]), simd.sum(dots[h][1])];
    }
    found
}

/// Scores become weights under the new maximum: it, the factor on what came before, and the sum of the weights.
#[inline(always)]
fn weigh<S: Isa>(simd: S, scores: &mut [f32], max: f32) -> (f32, f32, f32) {
    let most = scores.iter().copied().fold(max, f32::max);
    let mut sum = simd.splat(0.0);
    let subtract = simd.splat(most);
    for part in scores.chunks_mut(LANES) {
        let (at, count) = (part.as_mut_ptr(), part.len());
        // SAFETY: exactly the elements of the chunk are loaded and stored.
        unsafe {
            let p = exp_nonpositive(simd, simd.sub(simd.load_part(at, count), subtract));
            simd.store_part(at, count, p);
            sum = simd.add(sum, simd.load_part(at, count));
        }
    }
    let mut factor = [0.0; LANES];
    let shrunk = exp_nonpositive(simd, simd.splat(max - most));
    // SAFETY: sixteen f32.
    unsafe { simd.store(factor.as_mut_ptr(), shrunk) };
    // Before the first block there is nothing to shrink.
    let factor = if max == f32::NEG_INFINITY { 0.0 } else { factor[0] };
    (most, factor, simd.sum(sum))
}

/// Weighted latents of a block, some vectors of them.
struct Latents<'a, const H: usize> {
    keys: &'a [f32],
    stride: usize,
    /// Where the vectors begin in a row of keys.
    at: usize,
    count: usize,
    weights: &'a [f32],
    block: usize,
    shrink: [f32; H],
    sums: &'a mut [f32],
    wide: usize,
    /// Where they begin in a sum.
    first: usize,
}

impl<const H: usize> Latents<'_, H> {
    #[inline(always)]
    fn run<S: Isa, const W: usize>(&mut self, simd: S) {
        let mut sums = [[simd.splat(0.0); W]; H];
        for h in 0..H {
            let shrink = simd.splat(self.shrink[h]);
            let from = &self.sums[h * self.wide + self.first..][..W * LANES];
            for w in 0..W {
                // SAFETY: `W` vectors.
                let sum = unsafe { simd.load(from.as_ptr().add(w * LANES)) };
                sums[h][w] = simd.mul(sum, shrink);
            }
        }
        for key in 0..self.count {
            let row = &self.keys[key * self.stride + self.at..][..W * LANES];
            let mut values = [simd.splat(0.0); W];
            for w in 0..W {
                // SAFETY: `W` vectors.
                values[w] = unsafe { simd.load(row.as_ptr().add(w * LANES)) };
            }
            for h in 0..H {
                let weight = simd.splat(self.weights[h * self.block + key]);
                for w in 0..W {
                    sums[h][w] = simd.fma(weight, values[w], sums[h][w]);
                }
            }
        }
        for h in 0..H {
            let to = &mut self.sums[h * self.wide + self.first..][..W * LANES];
            for w in 0..W {
                // SAFETY: `W` vectors.
                unsafe { simd.store(to.as_mut_ptr().add(w * LANES), sums[h][w]) };
            }
        }
    }
}

/// Attention of all rows.
pub(crate) fn latent_attention(ctx: &mut ExecCtx, op: &LatentArgs<'_>, out: &mut [f32]) {
    let (rows, all) = (op.seen.len(), op.heads.div_ceil(TILE));
    // Few rows are cut by heads, so that every thread has work.
    let wanted = (2 * ctx.threads()).div_ceil(rows.max(1)).clamp(1, all);
    let tiles = all.div_ceil(wanted).min(MOST_TILES);
    let parts = all.div_ceil(tiles);
    ctx.reserve(op.room(tiles * TILE).into_iter().sum(), 0);
    let keys: usize = op.seen.iter().map(|(_, seen)| seen).sum();
    let work = keys * op.heads * (op.layout.head_dim + op.latent);
    let task = LatentTask { op, out: SharedSlice::new(out), tiles, parts };
    ctx.run_if(work >= SMALLEST, rows * parts, &task);
}

/// New rows of a latent cache and what is done to them.
pub(crate) struct LatentRows<'a> {
    pub(crate) kv: &'a [f32],
    /// Cosines and sines, `rotary` for each row.
    pub(crate) table: &'a [f32],
    pub(crate) rotary: usize,
    pub(crate) norm: Norm<'a>,
    /// Checked.
    pub(crate) places: &'a [u32],
    pub(crate) layout: CacheLayout,
}

struct StoreTask<'a> {
    rows: LatentRows<'a>,
    sink: CacheSink<'a>,
    start: usize,
}

impl Task for StoreTask<'_> {
    fn run<S: Isa>(&self, simd: S, _index: usize, scratch: &mut Scratch) {
        let LatentRows { kv, table, rotary, norm, places, layout } = self.rows;
        let (width, block) = (layout.head_dim, layout.block);
        let lead = width - norm.weight.len();
        for (row, &place) in places.iter().enumerate() {
            let line = &mut scratch.floats()[..width];
            line.copy_from_slice(&kv[row * width..(row + 1) * width]);
            let angles = table[row * rotary..(row + 1) * rotary].split_at(rotary / 2).into();
            let (rope, latent) = line.split_at_mut(lead);
            simd.call(super::attention_inputs::NormRotate { x: rope, norm: None, angles });
            simd.call(NormLatent { x: latent, norm });
            let (id, at) = (place as usize / block, place as usize % block);
            let start = self.start + layout.part(id, 0);
            let from = HeadRows { from: line, dim: width, width, count: 1 };
            // SAFETY: there is one task.
            unsafe { self.sink.put(simd, start, from, BlockSlots { layout, keys: false, at }) };
        }
    }
}

struct NormLatent<'a> {
    x: &'a mut [f32],
    norm: Norm<'a>,
}

impl Kernel for NormLatent<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let factor = self.norm.scale(simd, self.x);
        zip(simd, self.x, self.norm.weight, ScaledTimes(factor));
    }
}

/// Norms, rotates and stores rows of the cache, whose elements begin at `start` of its buffer. They are few and narrow
/// beside everything else of a layer, so one thread does it.
pub(crate) fn store_latents(
    ctx: &mut ExecCtx,
    rows: LatentRows<'_>,
    cache: &mut BufferStorage,
    start: usize,
) {
    ctx.reserve(rows.layout.head_dim, 0);
    ctx.run_inline(1, &StoreTask { sink: CacheSink::new(cache), start, rows });
}
