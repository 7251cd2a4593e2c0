//! New keys and values into the cache.

use super::Scratch;
use super::crew::Crew;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::Storage;
use crate::pool::Shared;
use crate::reference::{cache_offset, index};
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

    /// # Safety
    /// No other thread touches `from.len()` elements from `at` on.
    unsafe fn put<S: Isa>(&self, simd: S, at: usize, from: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32(all) => all.part(at, from.len()).copy_from_slice(from),
                Self::F16(all) => {
                    simd.call(Narrow::<true> { from, to: all.part(at, from.len()) });
                }
                Self::Bf16(all) => {
                    simd.call(Narrow::<false> { from, to: all.part(at, from.len()) });
                }
            }
        }
    }
}

/// f32 to halves: IEEE, or bfloat16.
struct Narrow<'a, const IEEE: bool> {
    from: &'a [f32],
    to: &'a mut [u16],
}

impl<const IEEE: bool> Kernel for Narrow<'_, IEEE> {
    type Out = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        for (from, to) in self.from.chunks(LANES).zip(self.to.chunks_mut(LANES)) {
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
            to.copy_from_slice(&lanes[..to.len()]);
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
            let to = cache_offset(&self.layout, place / block, head, place % block);
            for ((source, sink), start) in self.sources.iter().zip(&self.sinks).zip(self.starts) {
                // SAFETY: a task has one head of every place, so even equal places do not meet.
                unsafe { sink.put(simd, start + to, &source[from..from + head_dim]) };
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
