//! Who is read when: short before long, nobody never, and what an engine tells of it.

use crate::common::{Device, answers, babble, finish, runner};
use crate::schedule::{CountingRunner, engine, limits, reason_of};
use forerun_base::{SeqId, Token};
use forerun_engine::{
    Engine, Event, FinishReason, Receipt, Request, Sampling, Settings, Speculation, Stats,
};
use forerun_model::Limits;
use forerun_testkit::Golden;
use proptest::prelude::*;
use std::time::Duration;

/// No step ever makes it in this time.
const NO_TIME: Duration = Duration::from_nanos(1);

fn long_limits(sequences: usize, rows: usize) -> Limits {
    Limits { context: 4096, ..limits(sequences, rows, 4) }
}

fn submit(
    engine: &mut Engine<CountingRunner>,
    prompt: usize,
    tokens: usize,
    priority: i32,
) -> SeqId {
    let request = Request { priority, ..Request::greedy(vec![1; prompt], tokens) };
    engine.submit(request).expect("fits")
}

fn spoke(events: &[Event], id: SeqId) -> bool {
    events.iter().any(|event| matches!(event, Event::Token { seq, .. } if *seq == id))
}

/// Steps until a sequence ended.
fn steps_to_end(engine: &mut Engine<CountingRunner>, id: SeqId) -> usize {
    let mut events = Vec::new();
    (1..10_000)
        .find(|_| {
            engine.step(&mut events);
            reason_of(&events, id).is_some()
        })
        .expect("everyone ends")
}

#[test]
fn a_short_request_speaks_in_its_first_step_while_long_prompts_are_read() {
    for budget in [Duration::ZERO, NO_TIME] {
        for long in 1..5 {
            let mut engine = engine(long_limits(8, 128), None);
            engine.set_step_budget(budget);
            let mut events = Vec::new();
            submit(&mut engine, 5, 500, 0);
            engine.step(&mut events);
            for _ in 0..long {
                submit(&mut engine, 3000, 5, 0);
            }
            (0..6).for_each(|_| engine.step(&mut events));
            let short = submit(&mut engine, 20, 5, 0);
            engine.step(&mut events);
            assert!(spoke(&events, short), "{long} long prompts, {budget:?}");
        }
    }
}

#[test]
fn of_equal_prompts_the_first_is_answered_while_the_last_is_read() {
    let mut engine = engine(long_limits(4, 100), None);
    let ids: Vec<SeqId> = (0..4).map(|_| submit(&mut engine, 300, 50, 0)).collect();
    let mut events = Vec::new();
    let mut first_words = Vec::new();
    for step in 0..20 {
        events.clear();
        engine.step(&mut events);
        let begun = ids.iter().filter(|&&id| spoke(&events, id)).count();
        if begun > first_words.len() {
            first_words.push(step);
        }
    }
    assert_eq!(first_words, [2, 6, 9, 12], "not all at the end");
}

#[test]
fn a_long_prompt_is_read_under_an_unending_stream_of_short_ones() {
    for (rows, budget) in [(64, Duration::ZERO), (3, Duration::ZERO), (64, NO_TIME)] {
        let mut engine = engine(long_limits(4, rows), None);
        engine.set_step_budget(budget);
        let long = submit(&mut engine, 1000, 1, 0);
        let mut events = Vec::new();
        let mut steps = 0;
        while reason_of(&events, long).is_none() {
            submit(&mut engine, rows, 1, -1);
            engine.step(&mut events);
            steps += 1;
            assert!(steps <= 4 * 1000 / rows.min(32) + 8, "{rows} rows, {budget:?}");
        }
    }
}

#[test]
fn leases_go_by_priority_and_one_in_four_by_arrival() {
    let mut engine = engine(limits(1, 32, 0), None);
    let ids: Vec<SeqId> =
        [5, 5, 0, -3, 0, 7, -3, 5].map(|priority| submit(&mut engine, 4, 1, priority)).to_vec();
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let ended = events.iter().filter_map(|event| match event {
        Event::Finished { seq, .. } => ids.iter().position(|id| id == seq),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [3, 6, 2, 0, 4, 1, 7, 5]);
}

#[test]
fn whoever_waits_is_admitted_under_an_unending_stream_of_better_priorities() {
    let mut engine = engine(limits(2, 32, 0), None);
    let humble = submit(&mut engine, 10, 3, i32::MAX);
    let mut events = Vec::new();
    for steps in 0.. {
        for _ in 0..2 {
            submit(&mut engine, 10, 2, i32::MIN);
        }
        engine.step(&mut events);
        assert!(steps < 40, "one lease in four is enough");
        if reason_of(&events, humble).is_some() {
            break;
        }
    }
}

#[test]
fn a_better_priority_is_read_first() {
    let read = |priorities: [i32; 2]| {
        let mut engine = engine(long_limits(2, 64), None);
        let [first, _] = priorities.map(|priority| submit(&mut engine, 640, 1, priority));
        steps_to_end(&mut engine, first)
    };
    assert_eq!(read([0, 0]), 10, "of equals the first is not held up");
    assert!(read([0, -1]) > 12, "three rows in four go to the better one");
}

#[test]
fn a_step_without_time_holds_few_prompt_rows_and_one_without_a_budget_all() {
    for (budget, most) in [(NO_TIME, 64), (Duration::ZERO, 512)] {
        let mut engine = engine(long_limits(2, 512), None);
        engine.set_step_budget(budget);
        submit(&mut engine, 2000, 1, 0);
        let mut events = Vec::new();
        let mut steps = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
            steps.push(engine.stats().step_rows);
        }
        assert_eq!(steps[0], most, "{budget:?}");
        let later = if budget.is_zero() { 512 } else { 32 };
        assert!(steps[1..].iter().all(|&rows| rows <= later), "{budget:?}: {steps:?}");
        assert_eq!(steps.iter().sum::<usize>(), 2000);
    }
}

#[test]
fn drafts_leave_rows_to_prompts() {
    let mut engine = engine(limits(2, 6, 5), None);
    let mut events = Vec::new();
    submit(&mut engine, 2, 150, 0);
    (0..8).for_each(|_| engine.step(&mut events));
    assert!(engine.stats().speculation.drafted > 0, "there are drafts that could be in the way");
    let second = submit(&mut engine, 40, 1, 0);
    let steps = steps_to_end(&mut engine, second);
    assert!(steps <= 14, "three rows in six, at least: {steps} steps");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Under any load that goes on for ever, a request of any priority and length ends, and the
    /// steps it takes are bounded by the work before it.
    #[test]
    fn nobody_starves(
        sequences in 1usize..5,
        rows in 4usize..100,
        crowd in prop::collection::vec((1usize..100, 1usize..20, -3i32..4), 1..8),
        prompt in 1usize..150,
        priority in -3i32..4,
        budget in prop_oneof![Just(Duration::ZERO), Just(NO_TIME)],
    ) {
        let mut engine = engine(limits(sequences, rows, 3), None);
        engine.set_step_budget(budget);
        let mut crowd = crowd.into_iter().cycle();
        let mut join = |engine: &mut Engine<CountingRunner>| {
            let (prompt, tokens, priority) = crowd.next().expect("a cycle");
            submit(engine, prompt, tokens, priority)
        };
        for _ in 0..2 * sequences {
            join(&mut engine);
        }
        let watched = submit(&mut engine, prompt, 5, priority);
        let mut events = Vec::new();
        // It is the oldest that waits after four times as many leases as were requested before it. Each is held for a
        // prompt, read with a fourth of the rows at the least, and for an answer.
        let each = 4 * 150usize.div_ceil(rows.min(32) / 4) + 4 * 25;
        let most = (4 * (2 * sequences + 1) + sequences) * each;
        let mut steps = 0;
        while reason_of(&events, watched).is_none() {
            if engine.stats().waiting < 2 * sequences {
                join(&mut engine);
            }
            engine.step(&mut events);
            steps += 1;
            prop_assert!(steps < most, "{} steps", steps);
        }
    }
}

#[test]
fn the_numbers_add_up() {
    let mut engine = engine(limits(2, 16, 4), None);
    let (leases, blocks) = engine.states().size();
    let idle = Stats { free_leases: 2, leases, free_blocks: blocks, blocks, ..Stats::default() };
    assert_eq!(engine.stats(), idle);
    let mut events = Vec::new();
    let prompts = [30, 7, 50];
    for prompt in prompts {
        submit(&mut engine, prompt, 40, 0);
    }
    assert_eq!((engine.stats().running, engine.stats().waiting), (0, 3), "nothing before a step");
    let mut rows = 0;
    while !engine.is_idle() {
        engine.step(&mut events);
        let stats = engine.stats();
        rows += stats.step_rows;
        assert_eq!(stats.running + stats.free_leases, 2);
    }
    let mut receipts = Receipt::default();
    for event in &events {
        if let Event::Finished { receipt, .. } = event {
            receipts.add(receipt);
        }
    }
    let stats = engine.stats();
    assert!(receipts.drafted > 0, "there was something to count");
    assert_eq!(stats.speculation, receipts);
    assert_eq!(stats.prompt_tokens as usize, prompts.iter().sum::<usize>());
    assert_eq!(stats.generated_tokens, 3 * 40);
    // The last token of an answer is never read.
    let read = stats.prompt_tokens + stats.generated_tokens - 3;
    assert_eq!(rows as u64, read + receipts.drafted - receipts.accepted);
    assert_eq!(stats.steps as usize, engine.runner().steps);
    assert!(stats.submissions > stats.steps, "draft passes count");
    assert!(stats.busy >= stats.submission_time);
    assert_eq!((stats.free_leases, stats.free_blocks), (leases, blocks));
}

/// Requests of very different lengths.
fn mixed(i: usize) -> Request {
    let sampling = match i % 2 {
        0 => Sampling::default(),
        _ => Sampling { temperature: 0.9, seed: i as u64, ..Sampling::default() },
    };
    let len = [300, 9, 140, 40][i % 4];
    Request { sampling, priority: i as i32 % 3, ..Request::greedy(babble(len, 379), 24) }
}

fn real(sequences: usize, step_budget: Duration) -> Engine<forerun_engine::ModelRunner> {
    let speculation = Speculation { text: true, ..Speculation::mtp(4) };
    let settings =
        Settings { context: 512, sequences, speculation, step_budget, ..Settings::default() };
    Engine::new(runner(Golden::open("qwen3_5").checkpoint(), Device::Tuned, &settings))
}

#[test]
fn time_priority_and_batching_do_not_change_a_text() {
    let alone: Vec<Vec<Token>> = (0..4)
        .map(|i| {
            let mut engine = real(1, Duration::ZERO);
            engine.submit(mixed(i)).expect("accepted");
            finish(&mut engine).remove(0).0
        })
        .collect();
    for budget in [Duration::ZERO, NO_TIME, Settings::SHARED_STEP] {
        let mut engine = real(3, budget);
        for i in 0..4 {
            engine.submit(mixed(i)).expect("accepted");
        }
        let together: Vec<Vec<Token>> = finish(&mut engine).into_iter().map(|a| a.0).collect();
        assert_eq!(alone, together, "{budget:?}");
    }
}

#[test]
fn a_cancel_during_a_long_prompt_frees_everything_before_the_next_step() {
    let mut engine = real(2, NO_TIME);
    let idle = engine.states().free();
    let mut events = Vec::new();
    let kept = engine.submit(mixed(1)).expect("accepted");
    let long = engine.submit(mixed(0)).expect("accepted");
    let waiting = engine.submit(mixed(2)).expect("accepted");
    (0..3).for_each(|_| engine.step(&mut events));
    assert!(!spoke(&events, long), "its prompt is still being read");
    let before = engine.states().free();
    engine.cancel(long, &mut events);
    let after = engine.states().free();
    assert_eq!((after.0, engine.stats().running), (before.0 + 1, 1));
    assert_eq!(after.1 - before.1, (300 + 24usize).div_ceil(forerun_model::KV_BLOCK));
    engine.step(&mut events);
    assert_eq!(engine.stats().running, 2, "whoever waited has the place");
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    assert_eq!(engine.states().free(), idle);
    assert_eq!(reason_of(&events, long), Some(FinishReason::Cancelled));
    // The others say what they say alone.
    let said = answers(&events);
    for (id, at, i) in [(kept, 0, 1), (waiting, 2, 2)] {
        let mut alone = real(1, Duration::ZERO);
        alone.submit(mixed(i)).expect("accepted");
        assert_eq!(said[at], finish(&mut alone).remove(0), "{id:?}");
    }
}
