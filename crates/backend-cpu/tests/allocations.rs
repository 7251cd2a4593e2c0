//! An operation that has run once at its size allocates nothing when it runs again.

use forerun_backend::conform::{ConformStage, cases};
use forerun_backend_cpu::tuned;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `layout` has a size above zero (contract of `GlobalAlloc::alloc`).
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` was allocated here, so by `System`, with `layout` (contract of `dealloc`).
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_second_run_allocates_nothing() {
    let mut device = tuned(Some(2));
    let mut allocating = BTreeSet::new();
    for case in cases() {
        let op = case.set(&mut ConformStage::new(&mut device, &case.name)).expect("a stage");
        op.apply(&mut device).expect("a first run");
        let before = COUNT.load(Ordering::Relaxed);
        op.apply(&mut device).expect("a second run");
        let count = COUNT.load(Ordering::Relaxed) - before;
        if count > 0 {
            allocating.insert(case.op);
        }
    }
    assert!(allocating.is_empty(), "{allocating:?} allocate");
}
