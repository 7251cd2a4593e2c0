//! A thread pool for jobs of microseconds.
//!
//! A job is a number of tasks, divided into equal ranges, one for each thread. A thread, the caller included, takes the
//! tasks of its own range first, then steals what is left of the others'. So the same task index is run by the same
//! core, job after job, in whose caches its data are: what another core wrote last takes ten times as long as an L2
//! hit.
//!
//! A worker that sleeps through a job costs nothing: the caller closes the gate when no task is left and waits only for
//! workers that entered. After a job a worker spins for a short while, since the operations of a step follow each other
//! within microseconds, and then parks. Nothing is allocated after construction.

use crate::cores::pin_thread;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a worker looks for the next job before it parks.
const SPIN: Duration = Duration::from_micros(100);

/// The gate word: an epoch (a count of jobs), one bit that says the job may be entered, and the number of workers
/// inside.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 16;

type PoolJob = dyn Fn(usize, usize) + Sync;

/// State shared by the caller and the workers.
struct PoolState {
    gate: AtomicU64,
    /// One for each thread, the caller's first.
    ranges: Box<[TaskRange]>,
    /// Written by the caller while the gate is closed and empty, read only by those inside.
    job: UnsafeCell<Option<*const PoolJob>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    asleep: Box<[AtomicBool]>,
}

/// The tasks of a job that a thread takes first, on cache lines of their own; two, since prefetchers fetch lines in
/// pairs.
#[derive(Default)]
#[repr(align(128))]
struct TaskRange {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl TaskRange {
    /// The next task, if there is one.
    fn take(&self) -> Option<usize> {
        let end = self.end.load(Ordering::Relaxed);
        // Checked before the atomic increment, so that a thread that only looks does not take the line from others.
        if self.next.load(Ordering::Relaxed) >= end {
            return None;
        }
        let task = self.next.fetch_add(1, Ordering::Relaxed);
        (task < end).then_some(task)
    }
}

// SAFETY: all fields but `job` are `Sync`. `job` is written only while the gate is closed and nobody is inside, and
// read only between entering and leaving; the gate's acquire and release operations order the two. The pointee is
// `Sync`.
unsafe impl Send for PoolState {}
// SAFETY: all fields but `job` are `Sync`, and the gate orders every access to `job`, as said for `Send`.
unsafe impl Sync for PoolState {}

impl PoolState {
    fn new(workers: usize) -> Self {
        Self {
            gate: AtomicU64::new(EPOCH),
            ranges: (0..=workers).map(|_| TaskRange::default()).collect(),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Divides the tasks of a job among `threads`.
    fn deal(&self, tasks: usize, threads: usize) {
        let at = |i: usize| tasks * i.min(threads) / threads;
        for (i, range) in self.ranges.iter().enumerate() {
            range.next.store(at(i), Ordering::Relaxed);
            range.end.store(at(i + 1), Ordering::Relaxed);
        }
    }

    /// Takes tasks until none is left. A panic is kept for the caller.
    fn work(&self, job: &(dyn Fn(usize, usize) + Sync), worker: usize) {
        let (others, own) = self.ranges.split_at(worker);
        let all = || {
            for range in own.iter().chain(others) {
                while let Some(task) = range.take() {
                    job(task, worker);
                }
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            // Nobody needs the rest of the job any more.
            self.ranges.iter().for_each(|range| range.end.store(0, Ordering::Relaxed));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Enters the gate unless it is closed or its job is `seen`; returns the job's epoch.
    fn enter(&self, seen: u64) -> Option<u64> {
        let gate = self.gate.load(Ordering::Relaxed);
        let fresh = gate & OPEN != 0 && gate / EPOCH != seen;
        let entered = fresh
            && self
                .gate
                .compare_exchange(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        entered.then_some(gate / EPOCH)
    }

    fn worker_loop(&self, worker: usize) {
        let mut seen = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(epoch) = self.wait(worker, seen) {
                seen = epoch;
                // SAFETY: this thread is inside the gate, so the caller neither writes the cell nor returns from `run`,
                // whose argument the pointer came from.
                if let Some(job) = unsafe { *self.job.get() } {
                    // SAFETY: the closure lives until `run` returns, which waits until this thread has left the gate.
                    self.work(unsafe { &*job }, worker);
                }
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Spins, then parks, until a job was entered or the pool stops.
    fn wait(&self, worker: usize, seen: u64) -> Option<u64> {
        let since = Instant::now();
        while since.elapsed() < SPIN {
            for _ in 0..32 {
                if let Some(epoch) = self.enter(seen) {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
        }
        let asleep = &self.asleep[worker - 1];
        asleep.store(true, Ordering::Relaxed);
        // The fence pairs with the caller's: either this thread sees the job, or the caller sees it asleep.
        fence(Ordering::SeqCst);
        let entered = self.enter(seen);
        if entered.is_none() && !self.stop.load(Ordering::Relaxed) {
            thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
        entered
    }
}

/// How a thread waits for another one that is running.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Spins once; every 1024th time it yields, so that a thread that lost its core gets one.
    pub(crate) fn wait(&mut self) {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(1024) { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// See the module's text.
pub(crate) struct Pool {
    state: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Pool {
    /// A pool of `threads`, the caller being one of them; the others are pinned to the logical processors `affinity`,
    /// unless it is empty.
    pub(crate) fn new(threads: usize, affinity: &[usize]) -> Self {
        let workers = threads.clamp(1, INSIDE as usize) - 1;
        let state = Arc::new(PoolState::new(workers));
        let (up, started) = mpsc::channel();
        let spawn = |worker: usize| {
            let (state, up, affinity) = (state.clone(), up.clone(), affinity.to_vec());
            let name = format!("forerun-cpu-{worker}");
            let worker_loop = move || {
                pin_thread(&affinity);
                // The pool waits for this, so the receiver exists.
                let _ = up.send(());
                state.worker_loop(worker);
            };
            // If the system refuses a thread, the pool works with those it got.
            thread::Builder::new().name(name).spawn(worker_loop).ok()
        };
        let workers: Vec<JoinHandle<()>> = (1..=workers).map_while(spawn).collect();
        // A thread allocates while it starts; that belongs to loading, not to the first steps.
        started.iter().take(workers.len()).for_each(drop);
        Self { state, workers }
    }

    /// Threads that may take tasks.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(task, worker)` for every task, each worker number on one thread only, and returns when all are done.
    /// A panic in a task is resumed here.
    pub(crate) fn run(&mut self, tasks: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| job(task, 0));
            return;
        }
        let state = &*self.state;
        // SAFETY: the lifetime is erased only until this function returns: on every path the gate is closed and empty
        // again before that, and a worker reads the job only inside the gate.
        let erased = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const PoolJob>(job)
        };
        // SAFETY: the gate is closed and nobody is inside, so no other thread accesses the cell.
        unsafe { *state.job.get() = Some(erased) };
        state.deal(tasks, self.threads());
        state.gate.fetch_add(EPOCH + OPEN, Ordering::Release);
        fence(Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&state.asleep) {
            if asleep.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
        state.work(job, 0);
        state.gate.fetch_sub(OPEN, Ordering::Relaxed);
        let mut backoff = Backoff::default();
        while state.gate.load(Ordering::Acquire) & INSIDE != 0 {
            backoff.wait();
        }
        let panic = state.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Calls `job(task, local)` for every task; each thread has one of `locals` to itself.
    pub(crate) fn each<T: Send>(
        &mut self,
        tasks: usize,
        locals: &mut [T],
        job: &(dyn Fn(usize, &mut T) + Sync),
    ) {
        assert!(locals.len() >= self.threads(), "every thread needs a local");
        let locals = SharedSlice::new(locals);
        self.run(tasks, &|task, worker| {
            // SAFETY: a worker number belongs to one thread, which runs one task at a time, so no other reference to
            // this local exists.
            let local = unsafe { locals.part(worker, 1) };
            job(task, &mut local[0]);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Panics of tasks went to the caller, so the join has none to report.
            let _ = worker.join();
        }
    }
}

/// A slice that tasks write in disjoint parts: every access states its range, and its contract demands that ranges do
/// not overlap.
#[derive(Debug)]
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    life: std::marker::PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: it stands for an exclusive borrow of elements that may be sent; accessing them is unsafe, with the contract
// that parts are disjoint.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as for `Send`: sharing the value only shares the address.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares a slice.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), life: std::marker::PhantomData }
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Checked address of `len` elements from `at`, for tasks whose elements interleave.
    #[inline(always)]
    pub(crate) fn address(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at, "a part outside the slice");
        self.start.wrapping_add(at)
    }

    /// `len` elements from `at`, shared.
    ///
    /// # Safety
    /// No thread writes these elements while the reference lives, and earlier writes happened before this call.
    #[inline(always)]
    pub(crate) unsafe fn done(&self, at: usize, len: usize) -> &'a [T] {
        // SAFETY: the range is checked by `address`; nobody writes it (contract above).
        unsafe { std::slice::from_raw_parts(self.address(at, len), len) }
    }

    /// `len` elements from `at`, exclusive.
    ///
    /// # Safety
    /// No other reference covers any of these elements while this one lives.
    #[inline(always)]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at, "a part outside the slice");
        // SAFETY: the range is checked above, and no other reference covers it (contract above).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_its_own_run_first_and_then_what_is_left() {
        let order = |threads: usize, worker: usize| {
            let (state, taken) = (PoolState::new(2), Mutex::new(Vec::new()));
            state.deal(7, threads);
            state.work(&|task, _| taken.lock().unwrap().push(task), worker);
            taken.into_inner().unwrap()
        };
        assert_eq!(order(3, 0), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(order(3, 1), [2, 3, 4, 5, 6, 0, 1]);
        assert_eq!(order(3, 2), [4, 5, 6, 0, 1, 2, 3]);
        assert_eq!(order(2, 1), [3, 4, 5, 6, 0, 1, 2], "of a thread that was not given");
    }

    #[test]
    fn every_task_runs_once_at_any_number_of_threads() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads, &[]);
            for tasks in [0, 1, 2, 5, 100] {
                let mut hits = vec![0_u32; tasks];
                let shared = SharedSlice::new(&mut hits);
                pool.run(tasks, &|task, _| {
                    // SAFETY: a task has its own element.
                    let own = unsafe { shared.part(task, 1) };
                    own[0] += 1;
                });
                assert!(hits.iter().all(|&h| h == 1), "{threads} threads, {tasks} tasks: {hits:?}");
            }
        }
    }

    #[test]
    fn many_short_jobs_neither_hang_nor_lose_tasks() {
        let mut pool = Pool::new(3, &[]);
        let count = AtomicUsize::new(0);
        for round in 0..20_000 {
            pool.run(round % 5, &|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            if round % 4000 == 0 {
                // Long enough for the workers to park.
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(count.into_inner(), 40_000);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3, &[]);
        for _ in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(50, &|task, _| assert_ne!(task, 17, "task seventeen"));
            }));
            assert!(caught.is_err());
            let mut locals = [0; 3];
            pool.each(30, &mut locals, &|_, local| *local += 1);
            assert_eq!(locals.iter().sum::<i32>(), 30);
        }
    }
}
