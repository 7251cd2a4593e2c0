//! Micro-benchmarks that do one thing as fast as the processor can: the roofline of kernels.

use super::Scratch;
use super::isa::{Isa, Kernel, LANES, Task};
use crate::pool::{Backoff, SharedSlice};
use crate::simd::exec_ctx::{ExecCtx, part_of};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Independent accumulators, so that no addition waits for the one before.
const STREAMS: usize = 8;

/// Parts of the memory for each thread, so that one that is delayed does not delay all.
const PER_THREAD: usize = 8;

/// Multiply-adds of one vector in a task.
const ROUNDS: usize = 1 << 16;

/// Reads all of `data` once, partitioned among the threads.
pub(crate) fn read(ctx: &mut ExecCtx, data: &[f32]) {
    let parts = PER_THREAD * ctx.threads();
    ctx.run(parts, &Read { data, parts });
}

/// Copies all of `from` to the beginning of `to`, partitioned among the threads.
pub(crate) fn copy(ctx: &mut ExecCtx, from: &[f32], to: &mut [f32]) {
    assert!(from.len() <= to.len(), "no room for the copy");
    let parts = PER_THREAD * ctx.threads();
    ctx.run(parts, &Copy { from, to: SharedSlice::new(to), parts });
}

/// A job in which every thread takes part and does nothing.
pub(crate) fn barrier(ctx: &mut ExecCtx) {
    let threads = ctx.threads();
    ctx.run(threads, &Barrier { threads, here: AtomicUsize::new(0) });
}

/// Multiply-adds in registers on all threads; returns the flops done. `wide` has twice as many accumulators:
/// what is best depends on the registers there are.
pub(crate) fn multiply(ctx: &mut ExecCtx, wide: bool) -> u64 {
    let tasks = ctx.threads();
    let accumulators = if wide { 12 } else { 6 };
    if wide {
        ctx.run(tasks, &Multiply::<12>);
    } else {
        ctx.run(tasks, &Multiply::<6>);
    }
    (2 * tasks * accumulators * ROUNDS * LANES) as u64
}

struct Read<'a> {
    data: &'a [f32],
    parts: usize,
}

impl Task for Read<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, _: &mut Scratch) {
        let part = part_of(self.data.len(), self.parts, STREAMS * LANES, index);
        black_box(simd.call(Total(&self.data[part])));
    }
}

struct Copy<'a> {
    from: &'a [f32],
    to: SharedSlice<'a, f32>,
    parts: usize,
}

impl Task for Copy<'_> {
    fn run<S: Isa>(&self, _: S, index: usize, _: &mut Scratch) {
        let part = part_of(self.from.len(), self.parts, STREAMS * LANES, index);
        // SAFETY: parts of different tasks do not overlap, and nothing else refers to `to` while the job runs.
        let to = unsafe { self.to.part(part.start, part.len()) };
        to.copy_from_slice(&self.from[part]);
    }
}

/// The sum of all whole steps of [`STREAMS`] vectors.
struct Total<'a>(&'a [f32]);

impl Kernel for Total<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> f32 {
        let mut sums = [simd.splat(0.0); STREAMS];
        for step in self.0.chunks_exact(STREAMS * LANES) {
            for i in 0..STREAMS {
                // SAFETY: a step has `STREAMS` vectors.
                let x = unsafe { simd.load(step.as_ptr().add(i * LANES)) };
                sums[i] = simd.add(sums[i], x);
            }
        }
        let mut all = sums[0];
        for i in 1..STREAMS {
            all = simd.add(all, sums[i]);
        }
        simd.sum(all)
    }
}

/// As many tasks as threads, each of which ends when all have begun, so that no thread can do two.
struct Barrier {
    threads: usize,
    here: AtomicUsize,
}

impl Task for Barrier {
    fn run<S: Isa>(&self, _: S, _: usize, _: &mut Scratch) {
        self.here.fetch_add(1, Ordering::Relaxed);
        let mut backoff = Backoff::default();
        while self.here.load(Ordering::Relaxed) < self.threads {
            backoff.wait();
        }
    }
}

struct Multiply<const N: usize>;

impl<const N: usize> Task for Multiply<N> {
    fn run<S: Isa>(&self, simd: S, _: usize, _: &mut Scratch) {
        black_box(simd.call(FmaChains::<N>([black_box(0.5), black_box(0.25)])));
    }
}

/// `N` chains of `a·x + b`, which stay near `b / (1 − a)`.
struct FmaChains<const N: usize>([f32; 2]);

impl<const N: usize> Kernel for FmaChains<N> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> f32 {
        let (a, b) = (simd.splat(self.0[0]), simd.splat(self.0[1]));
        let mut x = [b; N];
        for _ in 0..ROUNDS {
            for i in 0..N {
                x[i] = simd.fma(a, x[i], b);
            }
        }
        let mut all = x[0];
        for i in 1..N {
            all = simd.add(all, x[i]);
        }
        simd.sum(all)
    }
}
