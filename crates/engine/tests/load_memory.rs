//! Bringing weights to a device takes little memory beyond what the device keeps, however large they are.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::MatrixParts;
use forerun_model::{Blueprint, Model};
use forerun_testkit::tiny::{Family, Tiny};
use forerun_weights::gguf::{self, BlockType};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Adds up what is allocated and remembers the most there was.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn taken(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: `layout` has a size above zero (contract of `GlobalAlloc::alloc`).
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: `layout` has a size above zero (contract of `GlobalAlloc::alloc_zeroed`).
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` was allocated here, so by `System`, with `layout` (contract of `dealloc`).
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` was allocated here, so by `System`, with `layout`; `size` is above zero (contract of `realloc`).
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` allocated at most beyond what is left when it returns.
fn passing<T>(work: impl FnOnce() -> T) -> (T, usize) {
    PEAK.store(LIVE.load(Ordering::Relaxed), Ordering::Relaxed);
    let result = work();
    let left = LIVE.load(Ordering::Relaxed);
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(left))
}

/// Passing memory that any load may take. The largest weight below is many times as large.
const BOUND: usize = 4 << 20;
const COLS: usize = 1024;
/// Threads of the device.
const THREADS: usize = 2;

/// Four stored tensors of so many rows in all, stacked with their halves turned around.
fn stack(block: BlockType, rows: usize) -> MatrixParts {
    let [values, bytes] = block.block().expect("a readable type");
    let (each, row) = (rows / 4, COLS / values * bytes);
    let part = |number: u8| {
        let packed = vec![number; each * row];
        gguf::parts(block, [each, COLS], packed.into()).expect("whole blocks")
    };
    let parts: Vec<MatrixParts> = (1..=4)
        .map(|number| part(number).select_rows(&[each / 2..each, 0..each / 2]).expect("rows"))
        .collect();
    MatrixParts::stack(&parts).expect("equal formats")
}

/// One test alone in this file: another would allocate beside it.
#[test]
fn loading_takes_memory_that_does_not_grow_with_the_weights() {
    for name in ["Q8_0", "Q4_K", "Q6_K", "MXFP4", "IQ4_NL"] {
        let mut types = BlockType::readable();
        let block = types.find(|block| block.to_string() == name).expect("a readable type");
        for rows in [4096, 32 << 10] {
            let parts = stack(block, rows);
            let mut device = tuned(Some(THREADS));
            let (weight, passing) = passing(|| device.upload_parts(name, &parts));
            weight.expect("memory");
            assert!(passing < BOUND, "{name}, {rows} rows: {passing} bytes come and go");
        }
    }
    // Experts that are modules of their own, fused experts, fused queries and gates.
    for (family, scale) in [
        (Family::Qwen3Moe, 1),
        (Family::Qwen3Moe, 4),
        (Family::Qwen35Moe, 1),
        (Family::Qwen35Moe, 4),
        (Family::Qwen3Next, 4),
    ] {
        let mut tiny = Tiny { hidden: 256 * scale, layers: 4, ffn: 512, ..Tiny::new(family) };
        tiny.head_dim = 64 * scale;
        tiny.experts.ffn = 128 * scale;
        tiny.experts.count = 16;
        tiny.vocabulary = 500 * scale;
        let folder = tempfile::tempdir().expect("a folder");
        tiny.write(folder.path());
        let blueprint = Blueprint::open(folder.path()).expect("a model");
        let mut device: Box<dyn Backend> = Box::new(tuned(Some(THREADS)));
        let (model, passing) =
            passing(|| Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model"));
        assert!(
            passing < BOUND,
            "{family:?}, {} bytes of weights: {passing} bytes come and go",
            model.weight_bytes
        );
    }
}
