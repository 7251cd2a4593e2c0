//! Tasks that need other tasks done first, in the same job: threads that arrive do the first ones together.

use super::Scratch;
use super::isa::{Isa, Task};
use crate::pool::Backoff;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `then`, each of whose tasks waits for all `tasks` of `first`. On cache lines of its own, since all threads write the
/// counters.
#[repr(align(128))]
pub(crate) struct WithPrologue<'a, A, B> {
    first: &'a A,
    tasks: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    then: &'a B,
}

/// Counts a task of the first as done when dropped, also by a panic: others must not wait for ever.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

impl<'a, A: Task, B: Task> WithPrologue<'a, A, B> {
    pub(crate) fn new(tasks: usize, first: &'a A, then: &'a B) -> Self {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { first, tasks, next, done, then }
    }

    fn prepare<S: Isa>(&self, simd: S, scratch: &mut Scratch) {
        while self.next.load(Ordering::Relaxed) < self.tasks {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index < self.tasks {
                let _counted = Counted(&self.done);
                self.first.run(simd, index, scratch);
            }
        }
        let mut backoff = Backoff::default();
        // Threads that began a task wait for nobody, so this ends.
        while self.done.load(Ordering::Acquire) < self.tasks {
            backoff.wait();
        }
    }
}

impl<A: Task, B: Task> Task for WithPrologue<'_, A, B> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        self.prepare(simd, scratch);
        self.then.run(simd, index, scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{ExecCtx, Level};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    struct Count<'a>(&'a AtomicUsize);

    impl Task for Count<'_> {
        fn run<S: Isa>(&self, _simd: S, _index: usize, _scratch: &mut Scratch) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every task must find all of the first done.
    struct Look<'a>(&'a AtomicUsize, usize, &'a AtomicUsize);

    impl Task for Look<'_> {
        fn run<S: Isa>(&self, _simd: S, _index: usize, _scratch: &mut Scratch) {
            assert_eq!(self.0.load(Ordering::Relaxed), self.1);
            self.2.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Fail;

    impl Task for Fail {
        fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
            assert_ne!(index, 1, "a task that fails");
        }
    }

    #[test]
    fn the_first_is_done_once_and_before_the_rest() {
        for threads in [1, 2, 3, 7] {
            let mut ctx =
                ExecCtx::new(Level::Portable, Some(threads)).expect("every machine has it");
            for tasks in [0, 1, 2, 9] {
                for then in [1, 2, 50] {
                    let (done, seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
                    let (first, look) = (Count(&done), Look(&done, tasks, &seen));
                    ctx.run(then, &WithPrologue::new(tasks, &first, &look));
                    assert_eq!(seen.into_inner(), then);
                }
            }
        }
    }

    #[test]
    fn a_panic_in_the_first_ends_the_job() {
        let mut ctx = ExecCtx::new(Level::Portable, Some(3)).expect("every machine has it");
        let seen = AtomicUsize::new(0);
        let job = AssertUnwindSafe(|| ctx.run(8, &WithPrologue::new(4, &Fail, &Count(&seen))));
        assert!(catch_unwind(job).is_err());
    }
}
