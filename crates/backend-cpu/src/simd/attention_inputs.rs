//! Queries, keys and values on their way to attention. See [`forerun_backend::op::AttentionInputs`] for the math.
//!
//! # Layout
//! A task is a key head of all rows, since places of a block share its cache lines, or some heads of queries. Keys are
//! normed and rotated in scratch, up to sixteen rows at a time, and stored from there.

use super::Scratch;
use super::cache::{BlockSlots, CacheSink, HeadRows, run_of};
use super::elementwise::Norm;
use super::isa::{Isa, Kernel, LANES, Task};
use super::math::{ScaledTimes, zip};
use crate::BufferStorage;
use crate::pool::SharedSlice;
use crate::reference::index;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use forerun_backend::BackendError;
use forerun_backend::op::CacheLayout;

/// With fewer elements, waking other threads costs more than it saves.
const SMALLEST: usize = 1 << 13;

/// The rope table: cosines and sines of each row, and the heads they rotate.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    pub(crate) table: &'a [f32],
    pub(crate) rotary: usize,
    pub(crate) head_dim: usize,
}

impl<'a> Rotation<'a> {
    fn of(&self, row: usize) -> [&'a [f32]; 2] {
        self.table[row * self.rotary..(row + 1) * self.rotary].split_at(self.rotary / 2).into()
    }
}

/// Queries, in place.
pub(crate) struct QueryHeads<'a> {
    pub(crate) q: &'a mut [f32],
    pub(crate) heads: usize,
    pub(crate) norm: Option<Norm<'a>>,
}

/// Keys and values, in this order.
pub(crate) struct KeyRows<'a> {
    pub(crate) sources: [&'a [f32]; 2],
    pub(crate) norms: [Option<Norm<'a>>; 2],
    pub(crate) places: &'a [u32],
    pub(crate) caches: [(&'a mut BufferStorage, usize); 2],
    pub(crate) layout: CacheLayout,
}

struct QueryTask<'a> {
    q: SharedSlice<'a, f32>,
    heads: usize,
    norm: Option<Norm<'a>>,
    parts: usize,
}

struct KeyTask<'a> {
    sources: [&'a [f32]; 2],
    norms: [Option<Norm<'a>>; 2],
    sinks: [CacheSink<'a>; 2],
    starts: [usize; 2],
    places: &'a [u32],
    layout: CacheLayout,
}

struct AttentionInputsTask<'a> {
    rotation: Rotation<'a>,
    keys: Option<KeyTask<'a>>,
    queries: Option<QueryTask<'a>>,
}

impl Task for AttentionInputsTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        let key_heads = self.keys.as_ref().map_or(0, |keys| keys.layout.kv_heads);
        match (&self.keys, &self.queries) {
            (Some(keys), _) if index < key_heads => keys.run(simd, self.rotation, index, scratch),
            (_, Some(queries)) => queries.run(simd, self.rotation, index - key_heads),
            _ => unreachable!("there are as many tasks as key heads and parts of queries"),
        }
    }
}

impl QueryTask<'_> {
    fn run<S: Isa>(&self, simd: S, rotation: Rotation<'_>, part: usize) {
        let dim = rotation.head_dim;
        for head in part_of(self.q.len() / dim, self.parts, 1, part) {
            // SAFETY: a head belongs to one task.
            let x = unsafe { self.q.part(head * dim, dim) };
            simd.call(NormRotate { x, norm: self.norm, angles: rotation.of(head / self.heads) });
        }
    }
}

impl KeyTask<'_> {
    fn run<S: Isa>(&self, simd: S, rotation: Rotation<'_>, head: usize, scratch: &mut Scratch) {
        let CacheLayout { kv_heads, block, head_dim: dim, .. } = self.layout;
        let (layout, mut row) = (self.layout, 0);
        while row < self.places.len() {
            let count = run_of(&self.places[row..], block);
            let (id, at) = (self.places[row] as usize / block, self.places[row] as usize % block);
            let from = (row * kv_heads + head) * dim;
            for (side, keys) in [true, false].into_iter().enumerate() {
                let (norm, source) = (self.norms[side], &self.sources[side][from..]);
                let rows = HeadRows { from: source, dim, width: kv_heads * dim, count };
                let angles = |i: usize| if keys { rotation.of(row + i) } else { [&[][..]; 2] };
                let rows = if norm.is_none() && angles(0)[0].is_empty() {
                    rows
                } else {
                    rows.rotated(simd, norm, angles, scratch.floats())
                };
                let start = self.starts[side] + layout.part(id, head);
                // SAFETY: a task has one head of every block, and other heads' parts do not overlap it; so even rows
                // with equal places meet only here.
                unsafe { self.sinks[side].put(simd, start, rows, BlockSlots { layout, keys, at }) };
            }
            row += count;
        }
    }
}

impl HeadRows<'_> {
    /// These rows in `scratch`, normed and rotated.
    fn rotated<'r, 'a, S: Isa>(
        &self,
        simd: S,
        norm: Option<Norm<'a>>,
        angles: impl Fn(usize) -> [&'a [f32]; 2],
        scratch: &'r mut [f32],
    ) -> HeadRows<'r> {
        let Self { from, dim, width, count } = *self;
        let scratch = &mut scratch[..count * dim];
        for (i, x) in scratch.chunks_exact_mut(dim).enumerate() {
            x.copy_from_slice(&from[i * width..][..dim]);
            simd.call(NormRotate { x, norm, angles: angles(i) });
        }
        HeadRows { from: scratch, dim, width: dim, count }
    }
}

/// Norms a head, then rotates its first elements by cosines and sines.
pub(crate) struct NormRotate<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) norm: Option<Norm<'a>>,
    pub(crate) angles: [&'a [f32]; 2],
}

impl Kernel for NormRotate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Self { x, norm, angles: [cos, sin] } = self;
        if let Some(norm) = norm {
            let factor = norm.scale(simd, x);
            zip(simd, x, norm.weight, ScaledTimes(factor));
        }
        let half = cos.len();
        let (low, rest) = x.split_at_mut(half);
        let high = &mut rest[..half];
        for at in (0..half).step_by(LANES) {
            let count = LANES.min(half - at);
            let (low, high) = (low[at..].as_mut_ptr(), high[at..].as_mut_ptr());
            // SAFETY: `count` elements are left in each of the four slices of `half`.
            unsafe {
                let (a, b) = (simd.load_part(low, count), simd.load_part(high, count));
                let cos = simd.load_part(cos[at..].as_ptr(), count);
                let sin = simd.load_part(sin[at..].as_ptr(), count);
                simd.store_part(low, count, simd.sub(simd.mul(a, cos), simd.mul(b, sin)));
                simd.store_part(high, count, simd.add(simd.mul(b, cos), simd.mul(a, sin)));
            }
        }
    }
}

/// Norms and rotates queries, and writes keys and values to the cache; either may be missing.
pub(crate) fn attention_inputs(
    ctx: &mut ExecCtx,
    rotation: Rotation<'_>,
    queries: Option<QueryHeads<'_>>,
    keys: Option<KeyRows<'_>>,
) -> Result<(), BackendError> {
    let (mut tasks, mut work) = (0, 0);
    let mut key_task = None;
    if let Some(KeyRows { sources, norms, places, caches, layout }) = keys {
        for &place in places {
            index("attention_inputs", "places", place, layout.blocks * layout.block)?;
        }
        let starts = caches.each_ref().map(|cache| cache.1);
        let sinks = caches.map(|cache| CacheSink::new(cache.0));
        ctx.reserve(LANES * rotation.head_dim, 0);
        tasks += layout.kv_heads;
        work += 2 * sources[0].len();
        key_task = Some(KeyTask { sources, norms, sinks, starts, places, layout });
    }
    let queries = queries.map(|QueryHeads { q, heads, norm }| {
        let smallest = SMALLEST.div_ceil(rotation.head_dim);
        let parts = ctx.parts(q.len() / rotation.head_dim, smallest, 1);
        tasks += parts;
        work += q.len();
        QueryTask { q: SharedSlice::new(q), heads, norm, parts }
    });
    ctx.run_if(work >= SMALLEST, tasks, &AttentionInputsTask { rotation, keys: key_task, queries });
    Ok(())
}
