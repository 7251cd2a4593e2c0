//! How often the host and the device meet: writes, waits and what is in flight, counted by a device that watches.

use crate::common::prompt;
use forerun_backend_cpu::tuned;
use forerun_engine::{Depth, Engine, Event, ModelRunner, Request, Settings, Speculation};
use forerun_model::{Blueprint, Model};
use forerun_testkit::{Golden, Recorder, Stats, Watch};

fn engine(name: &str, settings: &Settings) -> (Engine<ModelRunner>, Watch) {
    let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
    let mut recorder = Recorder::new(Box::new(tuned(Some(1))));
    let watch = recorder.watch();
    let model = Model::load(&blueprint, &mut recorder, &mut |_| {}).expect("a model");
    let runner = ModelRunner::new(Box::new(recorder), model, settings).expect("memory");
    watch.seal();
    (Engine::new(runner), watch)
}

/// What one step of the engine does to the device.
fn step(engine: &mut Engine<ModelRunner>, watch: &Watch) -> Stats {
    let before = watch.stats();
    engine.step(&mut Vec::new());
    let after = watch.stats();
    Stats { waits: after.waits - before.waits, writes: after.writes - before.writes, ..after }
}

fn settings(speculation: Speculation) -> Settings {
    Settings { context: 256, sequences: 2, prefill_chunk: 16, speculation, ..Settings::default() }
}

#[test]
fn a_round_is_two_waits_and_two_writes_at_every_depth() {
    for depth in 1..=8 {
        let (mut engine, watch) = engine("qwen3_5", &settings(Speculation::mtp(8)));
        let mut count = 0;
        for first in [0, 3] {
            let prompt = prompt("qwen3_5", 12)[first..].to_vec();
            let request = Request { depth: Depth::Fixed(depth), ..Request::greedy(prompt, 120) };
            engine.submit(request).expect("accepted");
        }
        // The prompts and what admission writes.
        (0..3).for_each(|_| drop(step(&mut engine, &watch)));
        while count < 12 {
            let Stats { waits, writes, .. } = step(&mut engine, &watch);
            assert!(waits <= 2 && writes <= 2, "depth {depth}: {waits} waits, {writes} writes");
            count += 1;
        }
    }
}

#[test]
fn decoding_without_drafts_is_one_wait_and_one_write() {
    for name in ["llama", "qwen3_5", "gemma4_dense"] {
        let (mut engine, watch) = engine(name, &settings(Speculation::OFF));
        engine.submit(Request::greedy(prompt(name, 8), 40)).expect("accepted");
        step(&mut engine, &watch);
        for _ in 0..20 {
            let Stats { waits, writes, .. } = step(&mut engine, &watch);
            assert_eq!((waits, writes), (1, 1), "{name}");
        }
    }
}

#[test]
fn a_chunk_in_the_middle_of_a_prompt_is_not_waited_for_and_two_are_in_flight() {
    let settings = Settings { prefill_chunk: 4, ..settings(Speculation::OFF) };
    let (mut engine, watch) = engine("qwen3_5", &settings);
    engine.submit(Request::greedy(prompt("qwen3_5", 24), 2)).expect("accepted");
    let steps: Vec<Stats> = (0..6).map(|_| step(&mut engine, &watch)).collect();
    let waits: Vec<u64> = steps.iter().map(|stats| stats.waits).collect();
    // From the third chunk on, the oldest one is waited for first.
    assert_eq!(waits[..2], [0, 0], "{waits:?}");
    assert!(waits[2..5].iter().all(|&waits| waits <= 1), "{waits:?}");
    assert!(steps[1..5].iter().all(|stats| stats.writes == 1));
    assert_eq!(watch.stats().most_in_flight, 2);
}

#[test]
fn a_shape_that_comes_back_describes_no_operation_again() {
    let (mut engine, watch) = engine("qwen3_5", &settings(Speculation::mtp(3)));
    let request = Request { depth: Depth::Fixed(3), ..Request::greedy(prompt("qwen3_5", 12), 150) };
    engine.submit(request).expect("accepted");
    let mut events: Vec<Event> = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let built = engine.runner().programs_built();
    let steps = watch.stats().steps;
    assert!(built < 30 && steps > 60, "{built} programs in {steps} waits");
}
