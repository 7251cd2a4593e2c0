//! Five ways in which engines on Macs went wrong, each held to what should have happened.

use crate::adapter::open_device;
use crate::common::{answers, engine, prompt, settings, text};
use crate::stage::{contents, floats, integers, numbers};
use forerun_backend::op::{Attention, CacheLayout};
use forerun_backend::{Backend, Budget, View};
use forerun_engine::{Depth, Request, Settings, Speculation, SpeculationMode, SubmissionBudget};
use forerun_model::StateKind;
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use std::process::Command;

/// Tokens of the long answer.
const LONG: usize = 2000;

#[test]
fn mtp_rounds_over_a_long_answer_are_flushed_and_say_what_plain_decoding_says() {
    let context = LONG + 64;
    let request = |depth| Request { depth, ..Request::greedy(prompt(24), LONG) };
    let (mut plain, _) = engine(&settings(context, 32));
    let expected = text(&mut plain, request(Depth::Fixed(0)));
    // Less than a step of this model, so that each is several submissions.
    let budget = SubmissionBudget::Work(Budget { bytes: 200_000, flops: 2_000_000 });
    let speculation = Speculation::mtp(3);
    let bounded = Settings { submission_budget: budget, speculation, ..settings(context, 32) };
    let (mut drafting, _) = engine(&bounded);
    let mut most = 0;
    let found = answers(&mut drafting, vec![request(Depth::Fixed(3))], &mut |engine| {
        most = most.max(engine.stats().in_flight);
    });
    assert_eq!(found[0].0, expected);
    let stats = drafting.stats();
    assert!(stats.speculation.drafted as usize > LONG / 4, "{:?}", stats.speculation);
    assert!(stats.submissions > 2 * stats.steps, "{} in {} steps", stats.submissions, stats.steps);
    assert!(most <= 2, "{most} in flight");
}

/// Pages of this process that are in memory, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    4096 * pages.expect("a number")
}

#[test]
fn optimistic_drafts_keep_memory_flat_over_two_hundred_requests() {
    // Memory is the process's, so nothing else may run in it.
    let alone = "faults::optimistic_drafts_keep_memory_flat_over_two_hundred_requests";
    if !std::env::args().any(|argument| argument == alone) {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new(program).args(["--exact", alone, "--nocapture"]).output();
        let child = child.expect("a process");
        let said = String::from_utf8_lossy(&child.stdout);
        let why = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("1 passed"), "{said}{why}");
        return;
    }
    let speculation = Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(3) };
    let (mut engine, _) = engine(&Settings { speculation, ..settings(128, 32) });
    let mut run = |count: usize| {
        for i in 0..count {
            text(&mut engine, Request::greedy(prompt(10 + i % 7), 8));
        }
    };
    // Depths that are tried late have pipelines of their own, which the adapter compiles then.
    run(120);
    let before = resident();
    run(200);
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more after 200 requests");
}

#[test]
fn every_depth_and_small_chunk_says_the_same() {
    let (mut plain, _) = engine(&settings(96, 64));
    let expected = text(&mut plain, Request::greedy(prompt(19), 12));
    for chunk in 1..=4 {
        let speculation = Speculation { text: true, ..Speculation::mtp(8) };
        let (mut engine, _) = engine(&Settings { speculation, ..settings(96, chunk) });
        for depth in 0..=8 {
            let depth = Depth::Fixed(depth);
            let found = text(&mut engine, Request { depth, ..Request::greedy(prompt(19), 12) });
            assert_eq!(found, expected, "{depth:?}, chunk {chunk}");
        }
    }
}

const KEYS: usize = 66_000;
const HEADS: usize = 2;
const LAYOUT: CacheLayout =
    CacheLayout { blocks: 1040, kv_heads: 1, block: 64, head_dim: 16, ..CacheLayout::NONE };

/// Attention of one head at a position, in f64.
fn exact(q: &[f32], keys: &[f32], values: &[f32], position: usize, scale: f64) -> Vec<f32> {
    let (dim, block) = (LAYOUT.head_dim, LAYOUT.block);
    let key = |at: usize, i: usize| keys[(at / block * dim + i) * block + at % block];
    let score = |at: usize| {
        let sum: f64 = (0..dim).map(|i| f64::from(q[i]) * f64::from(key(at, i))).sum();
        sum * scale
    };
    let scores: Vec<f64> = (0..=position).map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mixed = |i: usize| {
        let parts = weights.iter().enumerate();
        parts.map(|(at, weight)| weight * f64::from(values[at * dim + i])).sum::<f64>() / sum
    };
    (0..dim).map(|i| mixed(i) as f32).collect()
}

#[test]
fn attention_over_66_000_keys_agrees_with_f64() {
    let mut device = open_device();
    let (dim, scale) = (LAYOUT.head_dim, 2.0_f32);
    let positions = [7u32, 1023, 1024, 40_000, KEYS as u32 - 1];
    let wide = HEADS * dim;
    let q = numbers(positions.len() * wide, 1);
    let (keys, values) = (numbers(LAYOUT.len(), 2), numbers(LAYOUT.len(), 3));
    let blocks: Vec<u32> = (0..LAYOUT.blocks as u32).collect();
    let op = Attention {
        q: floats(&mut device, &q),
        k_cache: floats(&mut device, &keys),
        v_cache: floats(&mut device, &values),
        layout: LAYOUT,
        positions: integers(&mut device, &positions),
        span_of: integers(&mut device, &[0; 5]),
        tables: integers(&mut device, &blocks),
        table_width: LAYOUT.blocks,
        heads: HEADS,
        scale,
        window: None,
        out: floats(&mut device, &vec![f32::NAN; positions.len() * wide]),
    };
    device.attention(op).expect("attention");
    let found = contents(&mut device, op.out);
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..HEADS {
            let at = row * wide + head * dim;
            let expected =
                exact(&q[at..at + dim], &keys, &values, position as usize, f64::from(scale));
            assert_close(&format!("position {position}"), &expected, &found[at..at + dim], 1e-4);
        }
    }
}

/// The recurrent state after a prompt was read in chunks of so many rows.
fn state_after(chunk: usize) -> Vec<f32> {
    let (mut engine, _) = engine(&settings(320, chunk));
    engine.score(&prompt(300), &mut |_| {}).expect("scored");
    let slots: Vec<View> = engine
        .runner()
        .states()
        .buffers()
        .filter(|buffer| buffer.kind == StateKind::Slot)
        .map(|buffer| buffer.view)
        .collect();
    assert!(!slots.is_empty(), "a hybrid has recurrent state");
    slots.into_iter().flat_map(|view| engine.runner().read(view).expect("read")).collect()
}

#[test]
fn recurrent_state_is_finite_and_has_the_same_bits_over_many_chunks() {
    let whole = state_after(300);
    assert!(whole.iter().all(|x| x.is_finite()) && whole.iter().any(|&x| x != 0.0));
    for chunk in [3, 16, 64] {
        assert_same_bits(&format!("chunks of {chunk}"), &whole, &state_after(chunk));
    }
}

#[test]
fn chunks_of_a_prompt_overlap_two_at_a_time() {
    let (mut engine, _) = engine(&settings(512, 16));
    let mut most = 0;
    let request = Request::greedy(prompt(400), 2);
    let found = answers(&mut engine, vec![request], &mut |engine| {
        most = most.max(engine.stats().in_flight);
    });
    assert!(!found[0].1.is_failure(), "{:?}", found[0].1);
    assert_eq!(most, 2);
}
