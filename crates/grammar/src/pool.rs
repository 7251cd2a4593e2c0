//! Threads that compute masks, so that the engine's thread never does.
//!
//! A sequence has one piece of work at a time, so threads are as many as sequences wait, and the system shares the
//! processor among them. Work that was slow before takes one of a few lanes: others need not share with all of it.

use crate::limits::SLOW_LANES;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type MaskJob = Box<dyn FnOnce() + Send>;

/// Threads there are at most.
const MOST: usize = 64;
/// A thread without work ends after this.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
pub(crate) struct MaskPool(Arc<MaskPoolState>);

#[derive(Default)]
struct MaskPoolState {
    work: Mutex<PoolQueue>,
    wake: Condvar,
    slow: Semaphore,
}

#[derive(Default)]
struct PoolQueue {
    jobs: VecDeque<MaskJob>,
    threads: usize,
    idle: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MaskPool {
    /// Does a piece of work on another thread, or here if there can be none.
    pub(crate) fn run(&self, job: MaskJob) {
        let mut work = lock(&self.0.work);
        work.jobs.push_back(job);
        if work.idle >= work.jobs.len() || work.threads >= MOST {
            return self.0.wake.notify_one();
        }
        work.threads += 1;
        drop(work);
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("masks".to_owned());
        if thread.spawn(move || shared.serve()).is_err() {
            let mut work = lock(&self.0.work);
            work.threads -= 1;
            let job = if work.threads == 0 { work.jobs.pop_front() } else { None };
            drop(work);
            job.into_iter().for_each(|job| job());
        }
    }

    /// A lane for slow work; waits until one is free or `gives_up` says so.
    pub(crate) fn slow_lane(&self, gives_up: impl Fn() -> bool) -> Option<Permit<'_>> {
        self.0.slow.enter(SLOW_LANES, gives_up)
    }
}

impl MaskPoolState {
    fn serve(&self) {
        let mut work = lock(&self.work);
        loop {
            if let Some(job) = work.jobs.pop_front() {
                drop(work);
                job();
                work = lock(&self.work);
                continue;
            }
            work.idle += 1;
            let (woken, waited) =
                self.wake.wait_timeout(work, IDLE).unwrap_or_else(PoisonError::into_inner);
            work = woken;
            work.idle -= 1;
            if waited.timed_out() && work.jobs.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

/// Room for so many at a time.
#[derive(Default)]
pub(crate) struct Semaphore {
    taken: Mutex<usize>,
    left: Condvar,
}

/// One of them, given back when dropped.
pub(crate) struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    /// One of `count`; waits until it is free or `gives_up` says so.
    pub(crate) fn enter(&self, count: usize, gives_up: impl Fn() -> bool) -> Option<Permit<'_>> {
        const LOOK: Duration = Duration::from_millis(20);
        let mut taken = lock(&self.taken);
        while *taken >= count {
            if gives_up() {
                return None;
            }
            taken = self.left.wait_timeout(taken, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken += 1;
        Some(Permit(self))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.left.notify_one();
    }
}
