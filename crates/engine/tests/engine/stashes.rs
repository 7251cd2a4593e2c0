//! What publishing and restoring cost the device: counted, never waited for piece by piece, and nothing is left behind.

use crate::common::{EVERYTHING_CUT, babble, finish};
use crate::submissions::{on, settings};
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{
    CacheSettings, CacheUse, Depth, DiskSettings, Engine, Event, FinishReason, ModelRunner,
    Request, Settings, Speculation, StateCopies, SubmissionBudget,
};
use forerun_testkit::{Budget, Recorder, RecorderStats, RecorderWatch};

const CHUNK: usize = 256;
/// Whole chunks, so that publishing there cuts no step.
const LONG: usize = 8192;

fn cached(cache: CacheSettings, speculation: Speculation) -> Settings {
    Settings { context: LONG + 64, prefill_chunk: CHUNK, cache, ..settings(speculation) }
}

/// A cache that publishes at marks and at the end.
const CACHE: CacheSettings = CacheSettings { bytes: 1 << 30, interval: Some(1 << 20) };

fn recorded(settings: &Settings) -> (Engine<ModelRunner>, RecorderWatch) {
    on("qwen3_5", settings, Recorder::new(Box::new(tuned(Some(2)))))
}

/// What a request came to: its tokens, what it found, and what the device counted.
struct Asked {
    tokens: Vec<Token>,
    cached: usize,
    counts: RecorderStats,
}

fn ask(engine: &mut Engine<ModelRunner>, watch: &RecorderWatch, request: Request) -> Asked {
    let before = watch.stats();
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let after = watch.stats();
    let (mut tokens, mut cached) = (Vec::new(), 0);
    for event in events {
        match event {
            Event::Started { cached: report, .. } => cached = report.cached_tokens,
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
        }
    }
    let counts = RecorderStats {
        waits: after.waits - before.waits,
        reads: after.reads - before.reads,
        stashes: after.stashes - before.stashes,
        unstashes: after.unstashes - before.unstashes,
        stash_reads: after.stash_reads - before.stash_reads,
        ..after
    };
    Asked { tokens, cached, counts }
}

fn request(prompt: &[Token], depth: usize, cache: CacheUse) -> Request {
    Request { depth: Depth::Fixed(depth), cache, ..Request::greedy(prompt.to_vec(), 6) }
}

/// A hybrid with an MTP head: 128 blocks and a state go out, and come back.
#[test]
fn publishing_and_restoring_8k_tokens_of_a_hybrid_is_at_most_two_waits_each() {
    for depth in [0, 3] {
        let speculation = if depth > 0 { Speculation::mtp(depth) } else { Speculation::OFF };
        let text = babble(LONG + 9, 373);
        let marks = CacheUse { marks: vec![LONG as u32], ..CacheUse::default() };
        let (mut cold, seen) = recorded(&cached(CacheSettings::default(), speculation));
        let expected = ask(&mut cold, &seen, request(&text, depth, CacheUse::OFF));
        let rest = ask(&mut cold, &seen, request(&text[LONG..], depth, CacheUse::OFF));

        let (mut engine, watch) = recorded(&cached(CACHE, speculation));
        let first = ask(&mut engine, &watch, request(&text, depth, marks));
        assert_eq!(first.tokens, expected.tokens, "depth {depth}");
        let published = engine.cache_stats();
        assert_eq!(published.memory.states, 2, "at the mark and at the end");
        assert!(first.counts.stashes >= 128, "{} stashes", first.counts.stashes);
        let waits = first.counts.waits - expected.counts.waits;
        assert!(waits <= 2 * 2, "depth {depth}: {waits} waits for two publications");
        assert_eq!(first.counts.reads, expected.counts.reads, "depth {depth}");

        let cache_use = CacheUse { write: false, ..CacheUse::default() };
        let again = ask(&mut engine, &watch, request(&text, depth, cache_use));
        assert_eq!(again.tokens, expected.tokens, "depth {depth}");
        assert_eq!(again.cached, LONG, "depth {depth}");
        assert!(again.counts.unstashes >= 128, "{} copied back", again.counts.unstashes);
        let waits = again.counts.waits.saturating_sub(rest.counts.waits);
        // What is said after them differs, so drafts may take another round.
        let rounds = if depth > 0 { 2 * 6 } else { 0 };
        assert!(waits <= 2 + rounds, "depth {depth}: {waits} waits to restore");
        assert_eq!(watch.stats().stash_reads, 0, "nobody asked for the bytes");
        no_leak(engine, &watch);
    }
}

/// Nothing that is put aside outlives its entry.
fn no_leak(mut engine: Engine<ModelRunner>, watch: &RecorderWatch) {
    let (held, memory) = (watch.stats(), engine.cache_stats().memory);
    assert!(held.stash_bytes <= memory.bytes, "{} of {}", held.stash_bytes, memory.bytes);
    assert_eq!(memory.bytes == 0, held.stashes_held == 0);
    engine.clear_cache();
    assert_eq!(watch.stats().stashes_held, 0);
    assert_eq!((watch.stats().stash_bytes, engine.cache_stats().memory.bytes), (0, 0));
}

#[test]
fn a_small_cache_never_has_more_put_aside_than_it_may() {
    let limit = 300_000;
    for budget in [SubmissionBudget::Work(Budget::UNLIMITED), EVERYTHING_CUT] {
        let cache = CacheSettings { bytes: limit, interval: Some(64) };
        let small =
            Settings { context: 512, prefill_chunk: 64, cache, ..settings(Speculation::OFF) };
        let (mut engine, watch) = recorded(&Settings { submission_budget: budget, ..small });
        for first in 0..6 {
            let mut text = babble(300, 373);
            text[first * 40] = 371;
            engine.submit(request(&text, 0, CacheUse::default())).expect("accepted");
        }
        finish(&mut engine);
        assert!(engine.cache_stats().memory.evictions > 0);
        let stats = watch.stats();
        assert!(stats.peak_stash_bytes <= limit && stats.peak_stash_bytes > limit / 2);
        assert!(stats.most_in_flight <= 2);
        no_leak(engine, &watch);
    }
}

#[test]
fn copies_that_the_device_refuses_leave_an_answer_and_a_consistent_cache() {
    let text = babble(300, 373);
    let cache = CacheSettings { bytes: 1 << 28, interval: Some(64) };
    let small = Settings { context: 512, prefill_chunk: 64, cache, ..settings(Speculation::OFF) };
    let (mut whole, watch) = recorded(&small);
    let expected = ask(&mut whole, &watch, request(&text, 0, CacheUse::default()));
    let held = watch.stats().stash_bytes;
    for share in 0..5 {
        let (mut engine, watch) = recorded(&small);
        engine.runner().limit(held * share / 5);
        for _ in 0..2 {
            let found = ask(&mut engine, &watch, request(&text, 0, CacheUse::default()));
            assert_eq!(found.tokens, expected.tokens, "{share} fifths");
            assert!(found.cached < 299, "{share} fifths");
        }
        assert!(engine.cache_stats().failed_copies > 0, "{share} fifths");
        assert!(watch.stats().peak_stash_bytes <= held * share / 5, "{share} fifths");
        no_leak(engine, &watch);
    }
}

#[test]
fn the_disk_reads_when_nothing_is_in_the_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CacheSettings { bytes: 1 << 28, interval: Some(64) };
    let small = Settings { context: 512, prefill_chunk: 64, cache, ..settings(Speculation::OFF) };
    let text = babble(200, 373);
    let (mut engine, watch) = recorded(&small);
    let without = ask(&mut engine, &watch, request(&text, 0, CacheUse::default()));
    let (mut engine, watch) = recorded(&small);
    let (folder, identity) = (folder.path().to_owned(), "a test".to_owned());
    engine.open_disk_cache(&DiskSettings { folder, bytes: 1 << 30, identity }).expect("a folder");
    let with = ask(&mut engine, &watch, request(&text, 0, CacheUse::default()));
    // What was published before is read once it is there; the end of the answer is waited for when nobody else is
    // there.
    assert!(with.counts.waits <= without.counts.waits + 1);
    assert!(with.counts.stash_reads > 0 && with.counts.reads == without.counts.reads);
    assert_eq!(with.tokens, without.tokens);
    engine.flush_cache();
    let disk = engine.cache_stats().disk.expect("a folder");
    let memory = engine.cache_stats().memory;
    assert_eq!((disk.tier.blocks, disk.tier.states), (memory.blocks, memory.states));
    assert_eq!(watch.stats().stash_reads, watch.stats().stashes, "each was read once");
    engine.clear_cache();
    let again = ask(&mut engine, &watch, request(&text, 0, CacheUse::default()));
    assert_eq!(again.cached, 199);
    no_leak(engine, &watch);
}
