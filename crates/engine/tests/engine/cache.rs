//! The prefix cache over real models: a hit is a cold run that began later, bit by bit.

use crate::common::{Device, babble, engine, finish};
use forerun_base::{DType, SeqId, Token};
use forerun_engine::{
    CacheReport, CacheSettings, CacheUse, Depth, Engine, Event, MissReason, ModelRunner, Receipt,
    Request, Sampling, Settings, Speculation,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Short convolutions, doubled write strengths, several streams, hybrid with a head (dense, experts in both
/// layouts), hybrid without, attention only, windows with shared keys, with experts, with a separate drafter.
const MODELS: [&str; 18] = [
    "qwen4_exp",
    "deepseek_v4",
    "lfm2",
    "olmo_hybrid",
    "gemma3n",
    "glm4_moe",
    "deepseek_v3",
    "kimi_linear",
    "granitemoehybrid",
    "nemotron_h",
    "qwen3_5",
    "qwen3_next",
    "qwen3_5_moe",
    "mlx_qwen3_5_4bit",
    "llama",
    "gemma4_e",
    "gemma4_moe",
    "gemma4_dense + gemma4_assistant",
];

const CACHE: CacheSettings = CacheSettings { bytes: 256 << 20, interval: Some(48) };

fn settings(prefill_chunk: usize, cache: CacheSettings) -> Settings {
    let speculation = Speculation { text: true, ..Speculation::mtp(6) };
    Settings {
        context: 512,
        prefill_chunk,
        speculation,
        kv: DType::F16,
        cache,
        ..Settings::default()
    }
}

fn cold() -> Settings {
    settings(64, CacheSettings::default())
}

/// What one request came to.
#[derive(Debug, PartialEq)]
struct RequestOutcome {
    tokens: Vec<Token>,
    /// The bits of the logits that each token was chosen from, by position.
    logits: BTreeMap<u32, Vec<u32>>,
    receipt: Receipt,
}

/// Runs one request to its end.
fn run(engine: &mut Engine<ModelRunner>, request: Request) -> (RequestOutcome, CacheReport) {
    let seen: Arc<Mutex<BTreeMap<u32, Vec<u32>>>> = Arc::default();
    let tap = Arc::clone(&seen);
    engine.runner().set_tap(Some(Box::new(move |_: SeqId, position, row: &[f32]| {
        let bits = row.iter().map(|x| x.to_bits()).collect();
        tap.lock().expect("no tap failed").insert(position, bits);
    })));
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    engine.runner().set_tap(None);
    let logits = std::mem::take(&mut *seen.lock().expect("no tap failed"));
    let mut outcome = RequestOutcome { tokens: Vec::new(), logits, receipt: Receipt::default() };
    let mut report = None;
    for event in events {
        match event {
            Event::Started { cached, .. } => report = Some(*cached),
            Event::Token { token, .. } => outcome.tokens.push(token),
            Event::Finished { receipt, .. } => outcome.receipt = *receipt,
        }
    }
    (outcome, report.expect("every request starts"))
}

fn samplings(i: usize) -> Sampling {
    let base = Sampling { temperature: 0.9, seed: 5, ..Sampling::default() };
    match i {
        0 => Sampling::default(),
        1 => base,
        _ => Sampling {
            repetition_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.3,
            ..base
        },
    }
}

/// Where the next prompt of a conversation comes from.
#[derive(Clone, Debug)]
enum NextPrompt {
    /// Everything so far and so many tokens more.
    Grow(usize),
    /// One token changed, so many from the end.
    Edit(usize),
    /// Cut, so many from the end.
    Cut(usize),
    /// The same again.
    Again,
}

fn turns() -> impl Strategy<Value = Vec<NextPrompt>> {
    let turn = prop_oneof![
        3 => (1usize..70).prop_map(NextPrompt::Grow),
        1 => (1usize..150).prop_map(NextPrompt::Edit),
        1 => (1usize..150).prop_map(NextPrompt::Cut),
        1 => Just(NextPrompt::Again),
    ];
    prop::collection::vec(turn, 2..6)
}

impl NextPrompt {
    fn apply(&self, text: &mut Vec<Token>, answer: &[Token]) {
        match *self {
            Self::Grow(more) => {
                text.extend_from_slice(answer);
                let start = text.len();
                text.extend(babble(start + more, 373).split_off(start));
            }
            Self::Edit(back) => {
                let at = text.len().saturating_sub(back).min(text.len() - 1);
                text[at] = (text[at] + 1) % 373;
            }
            Self::Cut(back) => text.truncate(text.len().saturating_sub(back).max(1)),
            Self::Again => {}
        }
        text.truncate(420);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Conversations that grow, are edited, cut and repeated give the same tokens, the same bits of logits and the
    /// same receipt from the cache as cold.
    #[test]
    fn cached_equals_cold(
        model in 0..MODELS.len(),
        device in prop_oneof![3 => Just(Device::Tuned), 1 => Just(Device::Plain), 1 => Just(Device::Recorded)],
        chunk in prop_oneof![Just(5usize), Just(37), Just(64), Just(128)],
        first in 1usize..200,
        turns in turns(),
        sampling in 0usize..3,
        depth in prop_oneof![Just(Depth::Fixed(0)), Just(Depth::Fixed(3))],
        interval in prop_oneof![Just(1usize), Just(16), Just(48), Just(100)],
        marks in prop::collection::vec(1u32..400, 0..4),
        kv in prop_oneof![Just(DType::F16), Just(DType::I8)],
    ) {
        let name = MODELS[model];
        let cache = CacheSettings { interval: Some(interval), ..CACHE };
        let settings = |cache| Settings { kv, ..settings(chunk, cache) };
        let mut warm = engine(name, device, &settings(cache));
        let mut reference = engine(name, device, &settings(CacheSettings::default()));
        let mut marks = marks;
        marks.sort_unstable();
        let mut text = babble(first, 373);
        let request = |text: &[Token]| Request {
            sampling: samplings(sampling),
            depth,
            cache: CacheUse { marks: marks.clone(), ..CacheUse::default() },
            ..Request::greedy(text.to_vec(), 12)
        };
        let mut answer = Vec::new();
        for turn in [NextPrompt::Again].iter().chain(&turns) {
            turn.apply(&mut text, &answer);
            let (ours, report) = run(&mut warm, request(&text));
            let (theirs, _) = run(&mut reference, request(&text));
            prop_assert_eq!(&ours.tokens, &theirs.tokens, "{} {:?} {:?} {:?}", name, device, turn, report);
            prop_assert!(ours.logits == theirs.logits, "{} {:?} {:?}: logits", name, device, turn);
            prop_assert_eq!(&ours.receipt, &theirs.receipt, "{} {:?}: drafts", name, turn);
            prop_assert!(report.cached_tokens < text.len());
            answer = ours.tokens;
        }
        let stats = warm.cache_stats();
        prop_assert!(stats.memory.bytes <= stats.memory.limit && stats.failed_copies == 0);
    }

    /// Several conversations at once, some with the same beginning, some cancelled, in a cache that is far too
    /// small: everyone says what they say alone without a cache, and the bytes never pass the limit.
    #[test]
    fn interleaved_conversations_equal_cold_ones(
        model in 0..MODELS.len(),
        lengths in prop::collection::vec((1usize..180, 0usize..3, 0usize..12, any::<bool>()), 3..8),
        // From nothing fits to everything fits.
        bytes in prop_oneof![Just(1u64), Just(200_000), Just(1 << 20), Just(64 << 20)],
        depth in prop_oneof![Just(Depth::Fixed(0)), Just(Depth::Fixed(2)), Just(Depth::Auto)],
    ) {
        let name = MODELS[model];
        let cache = CacheSettings { bytes, interval: Some(32) };
        let mut warm = engine(name, Device::Tuned, &Settings { sequences: 3, ..settings(48, cache) });
        let mut reference = engine(name, Device::Tuned, &cold());
        let mut events = Vec::new();
        let mut asked = Vec::new();
        for (i, &(len, kind, gap, cancel)) in lengths.iter().enumerate() {
            let mut prompt = babble(len, 373);
            // Half of them go another way somewhere.
            if i % 2 == 1 {
                prompt[len / 2] = 3;
            }
            let request = || Request { sampling: samplings(kind), depth, ..Request::greedy(prompt.clone(), 9) };
            let seq = warm.submit(request()).expect("accepted");
            for _ in 0..gap {
                warm.step(&mut events);
                prop_assert!(warm.cache_stats().memory.bytes <= bytes);
            }
            if cancel {
                warm.cancel(seq, &mut events);
            } else {
                asked.push((seq, run(&mut reference, request()).0.tokens));
            }
        }
        while !warm.is_idle() {
            warm.step(&mut events);
            prop_assert!(warm.cache_stats().memory.bytes <= bytes);
        }
        for (id, expected) in asked {
            let own = |event: &Event| match event {
                Event::Token { seq, token, .. } if *seq == id => Some(*token),
                _ => None,
            };
            let found: Vec<Token> = events.iter().filter_map(own).collect();
            prop_assert_eq!(found, expected, "{} {:?}", name, id);
        }
        prop_assert_eq!(warm.states().free().0, 3, "every lease came back");
        warm.clear_cache();
        let memory = warm.cache_stats().memory;
        prop_assert_eq!((memory.bytes, memory.blocks, memory.states), (0, 0, 0));
    }
}

#[test]
fn a_growing_conversation_is_read_once() {
    for name in MODELS {
        for (depth, device) in
            [(Depth::Fixed(0), Device::Tuned), (Depth::Fixed(4), Device::Recorded)]
        {
            let mut engine = engine(name, device, &settings(64, CACHE));
            let mut text = babble(150, 373);
            let (mut sent, mut reused) = (0, 0);
            for turn in 0..7 {
                let known = text.len();
                if turn > 0 {
                    NextPrompt::Grow(25).apply(&mut text, &[]);
                }
                let request = Request { depth, ..Request::greedy(text.clone(), 12) };
                let (outcome, report) = run(&mut engine, request);
                if turn > 0 {
                    sent += known;
                    reused += report.cached_tokens;
                }
                text.extend(outcome.tokens);
            }
            assert!(reused * 100 >= sent * 95, "{name}, {depth:?}: {reused} of {sent} were reused");
        }
    }
}

#[test]
fn drafts_go_on_after_a_hit_as_without() {
    for name in ["qwen3_5", "qwen3_next", "qwen3_5_moe", "gemma4_dense + gemma4_assistant"] {
        // The first request makes no drafts and still leaves what the head needs.
        let text = babble(200, 373);
        let plain = Request { depth: Depth::Fixed(0), ..Request::greedy(text.clone(), 30) };
        let mut warm = engine(name, Device::Tuned, &settings(64, CACHE));
        let (first, _) = run(&mut warm, plain);
        let longer = [&text[..], &first.tokens, &babble(40, 373)].concat();
        let deep = || Request { depth: Depth::Fixed(4), ..Request::greedy(longer.clone(), 40) };
        let (ours, report) = run(&mut warm, deep());
        let (theirs, _) = run(&mut engine(name, Device::Tuned, &cold()), deep());
        assert!(report.cached_tokens >= 225, "{name}: {report:?}");
        assert!(ours.receipt.drafted > 0, "{name}: {:?}", ours.receipt);
        assert_eq!(ours.receipt, theirs.receipt, "{name}");
    }
}

#[test]
fn the_same_prompt_at_once_is_read_once() {
    for name in MODELS {
        let mut engine =
            engine(name, Device::Tuned, &Settings { sequences: 4, ..settings(64, CACHE) });
        let prompt = babble(300, 373);
        for _ in 0..4 {
            engine.submit(Request::greedy(prompt.clone(), 5)).expect("accepted");
        }
        let answers = finish(&mut engine);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{name}");
        let stats = engine.cache_stats();
        assert_eq!(stats.query_tokens, 4 * 300, "{name}");
        // Nobody waits for less than a stop is worth.
        assert!(stats.hit_tokens >= 3 * (299 - 48), "{name}: {stats:?}");
    }
}

#[test]
fn a_cancelled_prompt_goes_on_where_it_was() {
    for name in MODELS {
        let mut engine = engine(name, Device::Tuned, &settings(64, CACHE));
        let prompt = babble(400, 373);
        let seq = engine.submit(Request::greedy(prompt.clone(), 5)).expect("accepted");
        let mut events = Vec::new();
        (0..4).for_each(|_| engine.step(&mut events));
        engine.cancel(seq, &mut events);
        let (_, report) = run(&mut engine, Request::greedy(prompt, 5));
        assert!(report.cached_tokens >= 180, "{name}: {report:?}");
    }
}

#[test]
fn a_miss_has_a_reason_and_a_place() {
    for name in ["qwen3_5", "llama"] {
        let mut engine = engine(name, Device::Tuned, &settings(64, CACHE));
        let text = babble(200, 373);
        let mut ask = |prompt: &[Token], cache: CacheUse| {
            run(&mut engine, Request { cache, ..Request::greedy(prompt.to_vec(), 3) }).1
        };
        let read = CacheUse::default;
        let miss = |report: CacheReport| report.miss.map(|miss| (miss.reason, miss.at));
        assert_eq!(miss(ask(&text, CacheUse::OFF)), Some((MissReason::Disabled, 0)), "{name}");
        assert_eq!(miss(ask(&text, read())), Some((MissReason::Empty, 0)), "{name}");
        assert_eq!(miss(ask(&text, read())), None, "{name}");
        let mut edited = text.clone();
        edited[120] = 372;
        let report = ask(&edited, CacheUse { write: false, ..read() });
        let found = report.miss.expect("a miss");
        assert_eq!((found.reason, found.at), (MissReason::Diverged, 120), "{name}");
        assert_eq!((found.expected, found.found), (Some(text[120]), Some(372)), "{name}");
        assert!(report.cached_tokens > 60 && report.cached_tokens <= 120, "{name}: {report:?}");
        let mut other = text.clone();
        other[0] = 372;
        assert_eq!(miss(ask(&other, read())), Some((MissReason::NoCommonPrefix, 0)), "{name}");
        let short = miss(ask(&text[..90], CacheUse { write: false, ..read() }));
        let expected = (name == "qwen3_5").then_some((MissReason::NoState, 90));
        assert_eq!(short, expected, "{name}: tokens are known, a state is not");
        let stats = engine.cache_stats();
        assert_eq!(stats.misses(MissReason::Diverged), 1, "{name}");
        assert_eq!(stats.misses(MissReason::Disabled), 1, "{name}");
    }
}

#[test]
fn marks_are_restore_points() {
    let mut engine =
        engine("qwen3_5", Device::Tuned, &settings(512, CacheSettings { interval: None, ..CACHE }));
    let text = babble(300, 373);
    let marks = CacheUse { marks: vec![140, 290], ..CacheUse::default() };
    run(&mut engine, Request { cache: marks, ..Request::greedy(text.clone(), 3) });
    for (changed, cached) in [(299, 290), (290, 290), (289, 140), (139, 0)] {
        let mut edited = text.clone();
        edited[changed] = 372;
        let cache = CacheUse { write: false, ..CacheUse::default() };
        let (_, report) = run(&mut engine, Request { cache, ..Request::greedy(edited, 3) });
        assert_eq!(report.cached_tokens, cached, "changed at {changed}");
    }
}

#[test]
fn a_parked_sequence_publishes_what_it_says() {
    for name in MODELS {
        let mut engine =
            engine(name, Device::Tuned, &Settings { sequences: 2, ..settings(64, CACHE) });
        let text = babble(150, 373);
        let seq = engine.submit(crate::common::retained(text.clone(), 8)).expect("accepted");
        let first = finish(&mut engine).remove(0).0;
        let more = babble(90, 373);
        engine.resume(seq, Request::greedy(more.clone(), 8)).expect("resumed");
        let second = finish(&mut engine).remove(0).0;
        let whole = [&text[..], &first, &more, &second].concat();
        let (_, report) = run(&mut engine, Request::greedy([&whole[..], &[1, 2]].concat(), 4));
        assert!(report.cached_tokens + 10 >= whole.len(), "{name}: {report:?}");
    }
}

#[test]
fn what_was_evicted_is_missed_as_such() {
    for name in ["qwen3_5", "llama"] {
        let text = |first: Token| [&[first][..], &babble(199, 373)].concat();
        let mut probe = engine(name, Device::Tuned, &settings(64, CACHE));
        run(&mut probe, Request::greedy(text(1), 3));
        // Room for one of them and a half.
        let bytes = probe.cache_stats().memory.bytes * 3 / 2;
        let mut engine =
            engine(name, Device::Tuned, &settings(64, CacheSettings { bytes, ..CACHE }));
        for first in 1..4 {
            run(&mut engine, Request::greedy(text(first), 3));
        }
        let (_, report) = run(&mut engine, Request::greedy(text(1), 3));
        let reason = report.miss.map(|miss| miss.reason);
        assert_eq!(reason, Some(MissReason::Evicted), "{name}: {report:?}");
        assert!(engine.cache_stats().memory.evictions > 0, "{name}");
        let (_, report) = run(&mut engine, Request::greedy(text(9), 3));
        assert_ne!(report.miss.map(|miss| miss.reason), Some(MissReason::Evicted), "{name}");
    }
}

#[test]
fn what_is_to_be_kept_outlives_what_came_later() {
    for name in ["qwen3_5", "llama"] {
        let text = |first: Token| [&[first][..], &babble(199, 373)].concat();
        let mut probe = engine(name, Device::Tuned, &settings(64, CACHE));
        run(&mut probe, Request::greedy(text(1), 3));
        let bytes = probe.cache_stats().memory.bytes * 5 / 2;
        let mut engine =
            engine(name, Device::Tuned, &settings(64, CacheSettings { bytes, ..CACHE }));
        let cache = CacheUse { keep: true, ..CacheUse::default() };
        run(&mut engine, Request { cache, ..Request::greedy(text(1), 3) });
        for first in 2..7 {
            run(&mut engine, Request::greedy(text(first), 3));
        }
        assert_eq!(run(&mut engine, Request::greedy(text(1), 3)).1.cached_tokens, 199, "{name}");
        assert!(run(&mut engine, Request::greedy(text(2), 3)).1.cached_tokens < 199, "{name}");
    }
}
