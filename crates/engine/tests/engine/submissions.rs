//! How often the host and the device meet: writes, waits and what is in flight, counted by a device that watches.

use crate::common::{EVERYTHING_CUT, babble, finish, prompt};
use forerun_backend_cpu::tuned;
use forerun_engine::{
    Depth, Engine, Event, FinishReason, ModelRunner, Request, Settings, Speculation,
    SubmissionBudget,
};
use forerun_model::{Blueprint, Model};
use forerun_testkit::tiny::{Family, Gemma, Tiny};
use forerun_testkit::{Budget, Golden, Recorder, RecorderStats, RecorderWatch};
use std::time::Duration;

pub(crate) fn engine(name: &str, settings: &Settings) -> (Engine<ModelRunner>, RecorderWatch) {
    on(name, settings, Recorder::new(Box::new(tuned(Some(1)))))
}

pub(crate) fn on(
    name: &str,
    settings: &Settings,
    mut recorder: Recorder,
) -> (Engine<ModelRunner>, RecorderWatch) {
    let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
    let watch = recorder.watch();
    let model = Model::load(&blueprint, &mut recorder, &mut |_| {}).expect("a model");
    let runner = ModelRunner::new(Box::new(recorder), model, settings).expect("memory");
    watch.seal();
    (Engine::new(runner), watch)
}

/// What one step of the engine does to the device.
fn step(engine: &mut Engine<ModelRunner>, watch: &RecorderWatch) -> RecorderStats {
    let before = watch.stats();
    engine.step(&mut Vec::new());
    let after = watch.stats();
    RecorderStats {
        waits: after.waits - before.waits,
        writes: after.writes - before.writes,
        ..after
    }
}

pub(crate) fn settings(speculation: Speculation) -> Settings {
    // Work, not time: a busy machine must not cut what is counted here.
    let submission_budget = SubmissionBudget::Work(Budget::UNLIMITED);
    let (context, sequences, prefill_chunk) = (256, 2, 16);
    let settings = Settings { context, sequences, prefill_chunk, ..Settings::default() };
    Settings { speculation, submission_budget, ..settings }
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
            let RecorderStats { waits, writes, .. } = step(&mut engine, &watch);
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
            let RecorderStats { waits, writes, .. } = step(&mut engine, &watch);
            assert_eq!((waits, writes), (1, 1), "{name}");
        }
    }
}

#[test]
fn a_chunk_in_the_middle_of_a_prompt_is_not_waited_for_and_two_are_in_flight() {
    let settings = Settings { prefill_chunk: 4, ..settings(Speculation::OFF) };
    let (mut engine, watch) = engine("qwen3_5", &settings);
    engine.submit(Request::greedy(prompt("qwen3_5", 24), 2)).expect("accepted");
    let steps: Vec<RecorderStats> = (0..6).map(|_| step(&mut engine, &watch)).collect();
    let waits: Vec<u64> = steps.iter().map(|stats| stats.waits).collect();
    // From the third chunk on, the oldest one is waited for first.
    assert_eq!(waits[..2], [0, 0], "{waits:?}");
    assert!(waits[2..5].iter().all(|&waits| waits <= 1), "{waits:?}");
    assert!(steps[1..5].iter().all(|stats| stats.writes == 1));
    assert_eq!(watch.stats().most_in_flight, 2);
}

#[test]
fn a_chunk_that_the_head_takes_in_is_still_one_write_and_one_submission() {
    let settings = Settings { prefill_chunk: 4, ..settings(Speculation::mtp(3)) };
    let counts = |depth| {
        let (mut engine, watch) = engine("qwen3_5", &settings);
        let request = Request { depth, ..Request::greedy(prompt("qwen3_5", 24), 2) };
        engine.submit(request).expect("accepted");
        let of_step = |_| {
            let (calls, ops) = (watch.stats().submit_calls, watch.stats().ops);
            let RecorderStats { writes, .. } = step(&mut engine, &watch);
            let after = watch.stats();
            (writes, after.submit_calls - calls, after.ops - ops)
        };
        (0..5).map(of_step).collect::<Vec<_>>()
    };
    let (drafting, plain) = (counts(Depth::Auto), counts(Depth::Fixed(0)));
    for counts in [&drafting, &plain] {
        assert!(counts[1..].iter().all(|&(writes, submits, _)| (writes, submits) == (1, 1)));
    }
    let ops = |counts: &[(u64, u64, u64)]| counts.iter().map(|&(.., ops)| ops).sum::<u64>();
    assert!(ops(&drafting) > ops(&plain), "only who may draft has the head take rows in");
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

/// Two sequences with drafts, one of them with a long prompt.
fn answers(engine: &mut Engine<ModelRunner>, name: &str, depth: usize) -> String {
    for len in [24, 5] {
        let prompt = prompt(name, len);
        let request = Request { depth: Depth::Fixed(depth), ..Request::greedy(prompt, 24) };
        engine.submit(request).expect("accepted");
    }
    format!("{:?}", finish(engine))
}

#[test]
fn no_submission_outlives_a_watchdog_and_no_cut_changes_a_token() {
    let limit = Budget { bytes: 1 << 20, flops: 1 << 20 };
    for name in ["qwen3_5", "qwen3_5_moe", "llama", "gemma4_dense"] {
        for (depth, prefill_chunk) in [(0, 1), (0, 16), (3, 4), (8, 16)] {
            let speculation = Speculation { text: true, ..Speculation::mtp(8) };
            let whole = Settings { prefill_chunk, ..settings(speculation) };
            let expected = answers(&mut engine(name, &whole).0, name, depth);
            let cut = Settings { submission_budget: SubmissionBudget::Work(limit), ..whole };
            // Writes count as well.
            let patience = Budget { bytes: limit.bytes + (1 << 12), ..limit };
            let watchdog = Recorder::with_watchdog(Box::new(tuned(Some(1))), patience);
            let (mut bounded, watch) = on(name, &cut, watchdog);
            let found = answers(&mut bounded, name, depth);
            assert_eq!(found, expected, "{name}, depth {depth}, chunk {prefill_chunk}");
            assert!(watch.stats().most_in_flight <= 2);
            let all = Settings { submission_budget: EVERYTHING_CUT, ..whole };
            let found = answers(&mut engine(name, &all).0, name, depth);
            assert_eq!(found, expected, "{name}, depth {depth}, chunk {prefill_chunk}: all cut");
        }
    }
}

#[test]
fn rounds_over_thousands_of_tokens_stay_within_the_watchdog() {
    let limit = Budget { bytes: 1 << 20, flops: 1 << 20 };
    let patience = Budget { bytes: limit.bytes + (1 << 12), ..limit };
    let cut = SubmissionBudget::Work(limit);
    let (context, tokens) = (2600, 2400);
    let settings = Settings { context, submission_budget: cut, ..settings(Speculation::mtp(4)) };
    let watchdog = Recorder::with_watchdog(Box::new(tuned(Some(1))), patience);
    let (mut engine, watch) = on("qwen3_5", &settings, watchdog);
    let depth = Depth::Fixed(4);
    engine
        .submit(Request { depth, ..Request::greedy(prompt("qwen3_5", 24), tokens) })
        .expect("accepted");
    let (said, reason) = finish(&mut engine).remove(0);
    assert_eq!((said.len(), reason), (tokens, FinishReason::Length));
    assert!(watch.stats().most_in_flight <= 2);
}

#[test]
fn the_smallest_chunks_and_every_depth_stay_within_the_watchdog() {
    let limit = Budget { bytes: 1 << 20, flops: 1 << 20 };
    let patience = Budget { bytes: limit.bytes + (1 << 12), ..limit };
    let mut expected = None;
    for prefill_chunk in [1, 2, 9] {
        for depth in 0..=8 {
            let submission_budget = SubmissionBudget::Work(limit);
            let speculation = Speculation::mtp(8);
            let settings = Settings { prefill_chunk, submission_budget, ..settings(speculation) };
            let watchdog = Recorder::with_watchdog(Box::new(tuned(Some(1))), patience);
            let (mut engine, _) = on("qwen3_5", &settings, watchdog);
            let found = answers(&mut engine, "qwen3_5", depth);
            let expected = expected.get_or_insert_with(|| found.clone());
            assert_eq!(&found, expected, "chunk {prefill_chunk}, depth {depth}");
        }
    }
}

/// A model whose layers all have windows: a prompt of any length costs the same by the row.
#[test]
fn a_prompt_of_half_a_million_tokens_stays_within_the_watchdog() {
    let len = 512 << 10;
    let gemma = Gemma { window: 16, whole: Vec::new(), ..Gemma::default() };
    let tiny = Tiny { layers: 1, gemma, ..Tiny::new(Family::Gemma3) };
    let folder = tempfile::tempdir().expect("a folder");
    tiny.write(folder.path());
    let blueprint = Blueprint::open(folder.path()).expect("a model");
    let limit = Budget { bytes: 1 << 25, flops: 1 << 28 };
    let patience = Budget { bytes: limit.bytes + (1 << 20), ..limit };
    let mut recorder = Recorder::with_watchdog(Box::new(tuned(Some(2))), patience);
    let watch = recorder.watch();
    let model = Model::load(&blueprint, &mut recorder, &mut |_| {}).expect("a model");
    let settings = Settings {
        context: len + 64,
        prefill_chunk: 4096,
        submission_budget: SubmissionBudget::Work(limit),
        ..Settings::default()
    };
    let runner = ModelRunner::new(Box::new(recorder), model, &settings).expect("memory");
    watch.seal();
    let mut engine = Engine::new(runner);
    let prompt: Vec<u32> = (0..len as u32).map(|i| i * 37 % 379).collect();
    engine.submit(Request::greedy(prompt, 4)).expect("accepted");
    let (said, reason) = finish(&mut engine).remove(0);
    assert_eq!((said.len(), reason), (4, FinishReason::Length));
    assert!(watch.stats().most_in_flight <= 2);
}

/// Budgets below what one row costs of the model's largest products, and of attention over a long context.
#[test]
fn single_rows_are_cut_by_keys_and_by_channels_where_one_is_too_large() {
    let len = 1200;
    for (name, limit) in [
        // Four heads of 16: a row over 1200 keys takes 355 thousand flops, over a chunk of 256 76 thousand.
        ("llama", Budget { bytes: 1 << 16, flops: 100_000 }),
        // Four heads of 32, and a head of 400 tokens, which takes 51 thousand.
        ("qwen3_5", Budget { bytes: 1 << 17, flops: 160_000 }),
        ("gemma4_dense", Budget { bytes: 1 << 17, flops: 160_000 }),
    ] {
        let whole = Settings { context: 1300, ..settings(Speculation::mtp(3)) };
        let text = babble(len, 400);
        let answer = |engine: &mut Engine<ModelRunner>| {
            let request = Request { depth: Depth::Fixed(3), ..Request::greedy(text.clone(), 12) };
            engine.submit(request).expect("accepted");
            format!("{:?}", finish(engine))
        };
        let (mut uncut, watch) = engine(name, &whole);
        let expected = answer(&mut uncut);
        assert!(watch.stats().largest.flops > limit.flops, "{name}: there is something to cut");
        let cut = Settings { submission_budget: SubmissionBudget::Work(limit), ..whole };
        // What is written counts as well: the inputs of a step.
        let patience = Budget { bytes: limit.bytes + (1 << 14), ..limit };
        let watchdog = Recorder::with_watchdog(Box::new(tuned(Some(2))), patience);
        let (mut bounded, watch) = on(name, &cut, watchdog);
        assert_eq!(answer(&mut bounded), expected, "{name}");
        let stats = watch.stats();
        assert!(stats.oversized.is_empty() && stats.most_in_flight <= 2, "{name}: {stats:?}");
    }
}

#[test]
fn times_of_submissions_and_what_is_in_flight_are_told() {
    let (mut engine, watch) = engine("qwen3_5", &settings(Speculation::OFF));
    engine.submit(Request::greedy(prompt("qwen3_5", 24), 8)).expect("accepted");
    // The first chunk is not waited for.
    engine.step(&mut Vec::new());
    assert_eq!(engine.stats().in_flight, 1);
    finish(&mut engine);
    let stats = engine.stats();
    assert_eq!(stats.in_flight, 0);
    assert!(stats.submissions > 0 && stats.submissions <= watch.stats().submit_calls);
    let times = [0.5, 0.99].map(|share| stats.submission_times.quantile(share));
    assert!(times[0] > Duration::ZERO && times[0] <= times[1], "{times:?}");
    assert!(times[1] <= stats.submission_times.longest());
    assert!(stats.submission_times.longest() <= stats.submission_time);
}

#[test]
fn a_watchdog_kills_what_is_not_cut() {
    let limit = Budget { bytes: 1 << 20, flops: 1 << 20 };
    let watchdog = Recorder::with_watchdog(Box::new(tuned(Some(1))), limit);
    let (mut engine, _) = on("qwen3_5", &settings(Speculation::OFF), watchdog);
    engine.submit(Request::greedy(prompt("qwen3_5", 24), 4)).expect("accepted");
    let ended = format!("{:?}", finish(&mut engine));
    assert!(ended.contains("the watchdog killed a submission"), "{ended}");
}
