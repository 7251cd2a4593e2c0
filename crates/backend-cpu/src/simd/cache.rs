//! New keys and values into the cache.
//!
//! # Layout
//! A value's elements lie side by side. A key's lie `block` apart, so they are narrowed sixteen at a time and
//! stored one by one; the rows of a prompt fill the same lines of memory one after the other.

use super::Scratch;
use super::crew::Crew;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::Storage;
use crate::pool::Shared;
use crate::reference::index;
use forerun_backend::BackendError;
use forerun_backend::op::CacheLayout;

/// Elements below which other threads are not worth waking.
const SMALLEST: usize = 1 << 13;

/// A cache to be written in parts.
#[derive(Clone, Copy)]
enum Sink<'a> {
    F32(Shared<'a, f32>),
    F16(Shared<'a, u16>),
    Bf16(Shared<'a, u16>),
}

impl<'a> Sink<'a> {
    fn new(storage: &'a mut Storage) -> Self {
        match storage {
            Storage::F32(v) => Self::F32(Shared::new(v)),
            Storage::F16(v) => Self::F16(Shared::new(v)),
            Storage::BF16(v) => Self::Bf16(Shared::new(v)),
            Storage::U32(_) => unreachable!("operands were checked to be floats"),
        }
    }

    /// Stores `from` at `at` and every `stride` elements after it.
    ///
    /// # Safety
    /// No other thread touches the elements from `at` to the last one stored.
    unsafe fn put<S: Isa>(&self, simd: S, at: usize, from: &[f32], stride: usize) {
        let span = from.len().saturating_sub(1) * stride + 1;
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(all) => {
                    let to = all.part(at, span).iter_mut().step_by(stride);
                    to.zip(from).for_each(|(to, from)| *to = *from);
                }
                Self::F16(all) => {
                    simd.call(Narrow::<true> { from, to: all.part(at, span), stride });
                }
                Self::Bf16(all) => {
                    simd.call(Narrow::<false> { from, to: all.part(at, span), stride });
                }
            }
        }
    }
}

/// f32 to halves: IEEE, or bfloat16.
struct Narrow<'a, const IEEE: bool> {
    from: &'a [f32],
    to: &'a mut [u16],
    /// From one half to the next.
    stride: usize,
}

impl<const IEEE: bool> Kernel for Narrow<'_, IEEE> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let steps = self.to.chunks_mut(LANES * self.stride);
        for (from, to) in self.from.chunks(LANES).zip(steps) {
            let mut lanes = [0_u16; LANES];
            // SAFETY: a chunk is loaded as far as it goes, and `lanes` has sixteen halves.
            unsafe {
                let wide = simd.load_part(from.as_ptr(), from.len());
                if IEEE {
                    simd.store_f16(lanes.as_mut_ptr(), wide);
                } else {
                    simd.store_bf16(lanes.as_mut_ptr(), wide);
                }
            }
            let to = to.iter_mut().step_by(self.stride);
            to.zip(&lanes[..from.len()]).for_each(|(to, half)| *to = *half);
        }
    }
}

struct WriteTask<'a> {
    sources: [&'a [f32]; 2],
    sinks: [Sink<'a>; 2],
    starts: [usize; 2],
    places: &'a [u32],
    layout: CacheLayout,
}

impl Task for WriteTask<'_> {
    fn run<S: Isa>(&self, simd: S, head: usize, _scratch: &mut Scratch) {
        let CacheLayout { kv_heads, block, head_dim, .. } = self.layout;
        for (row, &place) in self.places.iter().enumerate() {
            let (from, place) = ((row * kv_heads + head) * head_dim, place as usize);
            let (id, at) = (place / block, place % block);
            let [k, v] = self.sources.map(|source| &source[from..from + head_dim]);
            let to = [self.layout.key(id, head, at, 0), self.layout.value(id, head, at, 0)];
            let [k_at, v_at] = [self.starts[0] + to[0], self.starts[1] + to[1]];
            // SAFETY: a task has one head of every block, all of which is its own, so even equal places do not meet.
            unsafe {
                self.sinks[0].put(simd, k_at, k, block);
                self.sinks[1].put(simd, v_at, v, 1);
            }
        }
    }
}

/// Writes keys and values `[rows, kv_heads, head_dim]` to their places; a task is a key head.
pub(crate) fn cache_write(
    crew: &mut Crew,
    sources: [&[f32]; 2],
    caches: [(&mut Storage, usize); 2],
    places: &[u32],
    layout: CacheLayout,
) -> Result<(), BackendError> {
    for &place in places {
        index("cache_write", "places", place, layout.blocks * layout.block)?;
    }
    let starts = caches.each_ref().map(|cache| cache.1);
    let sinks = caches.map(|cache| Sink::new(cache.0));
    let task = WriteTask { sources, sinks, starts, places, layout };
    if sources[0].len() < SMALLEST {
        crew.run_here(layout.kv_heads, &task);
    } else {
        crew.run(layout.kv_heads, &task);
    }
    Ok(())
}
