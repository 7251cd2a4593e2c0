//! Optimistic mode: drafts become text unchecked, and everything else stays exact.

use crate::common::{Device, engine, prompt, score};
use forerun_base::{DType, Token};
use forerun_engine::{Depth, Event, Request, Settings, Speculation, SpeculationMode};
use std::time::Duration;

fn settings(depth: usize) -> Settings {
    let speculation = Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(depth) };
    let kv = DType::F32;
    Settings {
        context: 128,
        prefill_chunk: 32,
        sequences: 2,
        speculation,
        kv,
        ..Settings::default()
    }
}

/// The answer in the pieces that steps decided: the trunk's own token, then the drafts that were taken.
fn rounds(name: &str, depth: usize, priced: bool) -> Vec<Vec<Token>> {
    let mut engine = engine(name, Device::Tuned, &settings(depth));
    if priced {
        engine.calibrate(Duration::ZERO).expect("steps of confirmed rows need no log");
    }
    assert_eq!(engine.runner().limits().log_rows, 0);
    let request = Request { depth: Depth::Fixed(depth), ..Request::greedy(prompt(name, 10), 30) };
    engine.submit(request).expect("accepted");
    let mut rounds = Vec::new();
    while !engine.is_idle() {
        let mut events = Vec::new();
        engine.step(&mut events);
        let token = |event: &Event| match event {
            Event::Token { token, .. } => Some(*token),
            _ => None,
        };
        rounds.push(events.iter().filter_map(token).collect());
    }
    rounds
}

#[test]
fn prices_are_taken_without_a_log_and_change_no_token() {
    for name in ["qwen3_5", "qwen3_5_odd", "qwen3_5_moe", "qwen3_next"] {
        for depth in 1..=8 {
            assert_eq!(rounds(name, depth, true), rounds(name, depth, false), "{name}, {depth}");
        }
    }
}

#[test]
fn every_round_begins_with_the_token_the_model_samples_after_the_text_so_far() {
    for (name, depth) in [("qwen3_5", 3), ("qwen3_next", 8), ("qwen3_5_odd", 1)] {
        let rounds = rounds(name, depth, false);
        let taken = rounds.iter().map(|round| round.len().saturating_sub(1)).sum::<usize>();
        assert!(taken >= 12, "{name}: {taken} drafts taken");
        let text = prompt(name, 10);
        let whole = [&text[..], &rounds.concat()].concat();
        let mut plain = engine(name, Device::Tuned, &settings(depth));
        let logits = score(&mut plain, &whole);
        let vocabulary = logits.len() / whole.len();
        let mut at = text.len();
        for round in rounds.iter().filter(|round| !round.is_empty()) {
            let row = &logits[(at - 1) * vocabulary..at * vocabulary];
            let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row[round[0] as usize], best, "{name}, depth {depth}, position {at}");
            at += round.len();
        }
    }
}
