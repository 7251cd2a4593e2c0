//! What steps are priced by.

use crate::{CacheSettings, Engine, Event, ModelRunner, Request, Settings, Speculation};
use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;

/// Chunks in the middle of a prompt are reported late, and copies for the prefix cache wait for them: their time must
/// reach the prices all the same, or no later step is priced either.
#[test]
fn every_step_is_priced_though_the_cache_waits_for_it() {
    let golden = Golden::open("qwen3_5");
    let blueprint = Blueprint::open(golden.checkpoint()).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(1)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let settings = Settings {
        context: 512,
        sequences: 2,
        prefill_chunk: 16,
        speculation: Speculation::mtp(2),
        cache: CacheSettings { bytes: 1 << 24, interval: Some(64) },
        ..Settings::default()
    };
    let mut engine = Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"));
    let prompt: Vec<u32> = (0..400).map(|i| (i * 37 + i * i) % 300).collect();
    let mut events: Vec<Event> = Vec::new();
    for len in [300, 400] {
        let request = Request::greedy(prompt[..len].to_vec(), 4);
        engine.submit(request).expect("accepted");
        let mut late = 0;
        while !engine.is_idle() {
            engine.step(&mut events);
            late = late.max(engine.unpriced.steps);
        }
        assert!(late > 0, "chunks are reported late");
        assert_eq!(engine.unpriced.steps, 0, "{len} tokens: steps that were never priced");
    }
    let cached =
        |event: &Event| matches!(event, Event::Started { cached, .. } if cached.cached_tokens > 0);
    assert!(events.iter().any(cached), "the second prompt began in the cache");
}
