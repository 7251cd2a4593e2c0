//! A long prompt and an answer behind it take no memory beyond the plan.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{Engine, Event, ModelRunner, Request, Settings};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes in use and the most there ever were, whatever thread asks.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(used, Ordering::Relaxed);
        // SAFETY: `layout` has a size above zero (contract of `GlobalAlloc::alloc`).
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` was allocated here, so by `System`, with `layout` (contract of `dealloc`).
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CHUNK: usize = 256;
const PROMPT: usize = 4096;
const ANSWER: usize = 16;

/// Scratch of the kernels' own, which does not depend on the context.
const KERNELS: usize = 2 << 20;

fn engine(name: &str) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(2)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let context = PROMPT + ANSWER;
    let settings = Settings { context, prefill_chunk: CHUNK, ..Settings::default() };
    Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"))
}

fn run(engine: &mut Engine<ModelRunner>, prompt: usize) {
    let vocabulary = engine.runner().model().spec.vocabulary as Token;
    let prompt: Vec<Token> = (0..prompt as Token).map(|t| t * 37 % vocabulary).collect();
    engine.submit(Request::greedy(prompt, ANSWER)).expect("accepted");
    let mut events: Vec<Event> = Vec::with_capacity(ANSWER + 2);
    // From here on a step may use what there is, and no more.
    MOST.store(USED.load(Ordering::Relaxed), Ordering::Relaxed);
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    assert_eq!(events.len(), ANSWER + 2, "the start, every token and the end");
}

/// One test alone in this file: another would allocate beside it.
#[test]
fn memory_stays_at_its_plan_from_the_first_piece_of_a_long_prompt_to_the_end_of_the_answer() {
    for name in ["qwen3_5", "qwen3_next", "gemma3"] {
        let before = USED.load(Ordering::Relaxed);
        let mut engine = engine(name);
        let planned = engine.runner().memory().total() as usize;
        // Kernels make room for their largest step once.
        run(&mut engine, CHUNK + 1);
        let settled = USED.load(Ordering::Relaxed) - before;
        assert!(settled < planned + KERNELS, "{name}: {settled} bytes in use, {planned} planned");
        run(&mut engine, PROMPT);
        let grown = (MOST.load(Ordering::Relaxed) - before).saturating_sub(settled);
        let tokens = (PROMPT + ANSWER) * size_of::<Token>();
        assert!(grown <= 2 * tokens, "{name}: {grown} bytes more for {tokens} bytes of tokens");
        let left = USED.load(Ordering::Relaxed) - before;
        assert!(
            left <= settled,
            "{name}: {left} bytes behind the answer, {settled} before the prompt"
        );
    }
}
