//! After warm-up a decode step allocates nothing.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{
    Allowed, CacheSettings, Constraint, Depth, Engine, Event, ModelRunner, Request, Sampling,
    Settings, Speculation, SpeculationMode,
};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts every allocation of the process, whatever thread makes it.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `layout` has a size above zero (contract of `GlobalAlloc::alloc`).
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` was allocated here, so by `System`, with `layout` (contract of `dealloc`).
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `at` was allocated here, so by `System`, with `layout`; `size` is above zero (contract of `realloc`).
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn engine(name: &str, speculation: Speculation, cache: CacheSettings) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(2)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let settings =
        Settings { context: 256, sequences: 3, speculation, cache, ..Settings::default() };
    Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"))
}

/// Even tokens, and now and then a forced one.
#[derive(Default)]
struct Evens(usize);

impl Constraint for Evens {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        match self.0 % 5 {
            4 => mask[0] |= 1 << 8,
            _ => mask.fill(0x5555_5555),
        }
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        let allowed = if self.0 % 5 == 4 { token == 8 } else { token.is_multiple_of(2) };
        self.0 += usize::from(allowed);
        allowed
    }

    fn back(&mut self, count: usize) {
        self.0 -= count;
    }

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        tokens.extend(Some(8).filter(|_| self.0 % 5 == 4 && most > 0));
    }

    fn is_done(&mut self) -> bool {
        false
    }
}

/// One test alone in this file: another would allocate beside it.
#[test]
fn a_decode_step_allocates_nothing() {
    let penalties = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.1,
        logit_bias: vec![(3, 1.0)],
        seed: 1,
    };
    let optimistic = Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(2) };
    let chain = Speculation { text: true, ..Speculation::mtp(4) };
    let cached = CacheSettings { bytes: 1 << 30, interval: None };
    let none = CacheSettings::default();
    for (name, speculation, cache) in [
        ("llama", Speculation::OFF, none),
        ("llama", Speculation::text(4), none),
        ("qwen3_moe", Speculation::OFF, none),
        ("qwen3_fp8", Speculation::OFF, none),
        ("qwen3_5", Speculation::OFF, none),
        ("qwen3_5", Speculation::mtp(4), none),
        ("qwen3_5", optimistic, none),
        ("qwen3_next", chain, none),
        ("mlx_qwen3_5_moe_4bit", Speculation::OFF, none),
        // Between two restore points.
        ("llama", Speculation::text(4), cached),
        ("qwen3_5", Speculation::mtp(4), cached),
    ] {
        let mut engine = engine(name, speculation, cache);
        let prompt = Golden::open(name).tokens("input_ids");
        for (sampling, depth) in
            [(Sampling::default(), Depth::Fixed(2)), (penalties.clone(), Depth::Auto)]
        {
            let request = Request { sampling, depth, ..Request::greedy(prompt.clone(), 180) };
            engine.submit(request).expect("accepted");
        }
        let constraint: Box<dyn Constraint> = Box::new(Evens::default());
        let request =
            Request { constraint: Some(constraint), ..Request::greedy(prompt.clone(), 180) };
        engine.submit(request).expect("accepted");
        let mut events: Vec<Event> = Vec::with_capacity(1024);
        for _ in 0..15 {
            engine.step(&mut events);
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..30 {
            engine.step(&mut events);
        }
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert!(!engine.is_idle(), "{name}: all still answer");
        assert_eq!(made, 0, "{name}, {speculation:?}: allocations in 30 steps of three sequences");
    }
}
