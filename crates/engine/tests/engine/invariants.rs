//! The promises, bit by bit: chunking, batching, commit, seeds.

use crate::common::{ByHand, Device, engine, finish, golden_runner, prompt, remembered, score};
use forerun_base::{DType, Token};
use forerun_engine::{Request, Sampling, Settings, Speculation};
use forerun_testkit::tolerance::assert_same_bits;
use proptest::prelude::*;
use std::time::Duration;

/// One of each kind of network: short convolutions, doubled write strengths, several streams, hybrid dense, hybrid
/// with experts (both layouts), packed (both formats), attention only, and windows with per-layer inputs and shared
/// keys, with experts, with a separate drafter.
const MODELS: [&str; 21] = [
    "qwen4_exp",
    "deepseek_v4",
    "lfm2",
    "olmo_hybrid",
    "gemma3n",
    "glm4_moe",
    "deepseek_v3",
    "kimi_linear",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
    "qwen3_5",
    "qwen3_next",
    "qwen3_5_moe",
    "mlx_qwen3_5_4bit",
    "gguf_qwen3_5_wide_q4_k",
    "llama",
    "qwen3_moe",
    "gemma4_e",
    "gemma4_moe",
    "gemma4_dense + gemma4_assistant",
];

fn settings(prefill_chunk: usize, kv: DType) -> Settings {
    let speculation = Speculation::mtp(8);
    Settings { context: 256, prefill_chunk, speculation, kv, ..Settings::default() }
}

/// f16, or codes whose scales a key or value must not share with its neighbours.
fn kv() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F16), Just(DType::I8)]
}

fn device() -> impl Strategy<Value = Device> {
    prop_oneof![3 => Just(Device::Tuned), 1 => Just(Device::Plain), 1 => Just(Device::Recorded)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any way of cutting a text into spans gives the same bits of logits.
    #[test]
    fn any_chunking_gives_the_same_bits(
        model in 0..MODELS.len(),
        device in device(),
        kv in kv(),
        cuts in prop::collection::vec(1usize..30, 1..20),
    ) {
        let name = MODELS[model];
        let tokens = prompt(name, 60);
        let whole = score(&mut engine(name, device, &settings(64, kv)), &tokens);
        let mut by_hand = ByHand::new(golden_runner(name, device, &settings(64, kv)));
        let mut logits = Vec::new();
        let mut at = 0;
        for cut in cuts.into_iter().cycle() {
            let end = (at + cut).min(tokens.len());
            logits.extend(by_hand.feed(&tokens[at..end], 0, end - at));
            at = end;
            if at == tokens.len() {
                break;
            }
        }
        assert_same_bits(&format!("{name} on {device:?}"), &whole, &logits);
    }

    /// Keeping `keep` tokens of a span with drafts leaves the state that feeding them one by one leaves,
    /// and the logits that follow are the same bits, whatever the drafts behind were.
    #[test]
    fn commit_equals_feeding_the_kept_tokens(
        model in 0..MODELS.len(),
        device in device(),
        kv in kv(),
        confirmed in 0usize..4,
        drafts in 1usize..8,
        keep in 0usize..8,
        again in 0usize..8,
    ) {
        let name = MODELS[model];
        let tokens = prompt(name, 60);
        let open = || ByHand::new(golden_runner(name, device, &settings(64, kv)));
        let (mut spans, mut singles) = (open(), open());
        let mut at = 20;
        spans.feed(&tokens[..at], 0, at);
        for &token in &tokens[..at] {
            singles.feed(&[token], 0, 1);
        }
        // Twice in a row, so that a fold of pending rows meets new drafts.
        for keep in [keep, again] {
            let keep = confirmed + keep.min(drafts);
            let span = &tokens[at..at + confirmed + drafts];
            let logits = spans.feed(span, drafts, keep);
            let mut expected = Vec::new();
            for &token in &span[..keep] {
                expected.extend(singles.feed(&[token], 0, 1));
            }
            assert_same_bits(&format!("{name} logits"), &expected, &logits[..expected.len()]);
            at += keep;
        }
        spans.fold();
        for layer in 0..spans.runner.model().spec.layers.len() {
            let ours = remembered(&mut spans.runner, &spans.states, spans.lease, layer);
            let theirs = remembered(&mut singles.runner, &singles.states, singles.lease, layer);
            for ((part, ours), (_, theirs)) in ours.parts.iter().zip(&theirs.parts) {
                assert_same_bits(&format!("{name} layer {layer} {part}"), theirs, ours);
            }
        }
    }

    /// A request's text does not depend on who shares the batch, in which order, on the chunk, or on the time a
    /// step may take.
    #[test]
    fn alone_equals_in_a_batch(
        model in 0..MODELS.len(),
        device in device(),
        kv in kv(),
        lengths in prop::collection::vec(1usize..40, 2..5),
        chunk in prop_oneof![Just(1usize), Just(3), Just(64)],
        late in 0usize..6,
        priorities in prop::collection::vec(-1i32..2, 5),
        budget in prop_oneof![Just(Duration::ZERO), Just(Duration::from_nanos(1))],
    ) {
        let name = MODELS[model];
        let requests: Vec<Request> = lengths.iter().enumerate().map(|(i, &n)| request(name, n, i)).collect();
        let again: Vec<Request> = lengths.iter().enumerate().map(|(i, &n)| request(name, n, i)).collect();
        let alone: Vec<Vec<Token>> = requests.into_iter().map(|request| {
            let mut engine = engine(name, device, &settings(64, kv));
            engine.submit(request).expect("accepted");
            finish(&mut engine).remove(0).0
        }).collect();
        let shared = Settings { sequences: 3, step_budget: budget, ..settings(chunk, kv) };
        let mut engine = engine(name, device, &shared);
        let mut events = Vec::new();
        for (request, priority) in again.into_iter().zip(priorities) {
            let request = Request { priority, ..request };
            // The later ones join while the earlier ones are under way.
            (0..late).for_each(|_| engine.step(&mut events));
            engine.submit(request).expect("accepted");
        }
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        let together: Vec<Vec<Token>> =
            crate::common::answers(&events).into_iter().map(|(tokens, _)| tokens).collect();
        prop_assert_eq!(alone, together, "{} on {:?}", name, device);
        prop_assert_eq!(engine.states().free().0, 3, "every lease came back");
    }
}

/// Requests that sample in different ways.
fn request(name: &str, len: usize, i: usize) -> Request {
    let kinds = [
        Sampling::default(),
        Sampling { temperature: 0.8, top_p: 0.9, seed: 7, ..Sampling::default() },
        Sampling { temperature: 1.2, top_k: 20, min_p: 0.02, seed: 8, ..Sampling::default() },
        Sampling {
            temperature: 0.7,
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: 0.2,
            logit_bias: vec![(5, 2.0), (9, -3.0)],
            seed: 9,
            ..Sampling::default()
        },
    ];
    let sampling = kinds[i % kinds.len()].clone();
    Request { sampling, ..Request::greedy(prompt(name, len), 12) }
}

#[test]
fn seeded_text_is_a_function_of_the_seed() {
    for device in Device::ALL {
        let text = |seed: u64| {
            let mut engine = engine("qwen3_5", device, &settings(16, DType::F16));
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let request = Request { sampling, ..Request::greedy(prompt("qwen3_5", 10), 24) };
            engine.submit(request).expect("accepted");
            finish(&mut engine).remove(0).0
        };
        assert_eq!(text(1), text(1), "{device:?}");
        assert_ne!(text(1), text(2), "{device:?}");
    }
}

#[test]
fn a_continued_sequence_equals_a_cold_one() {
    for name in MODELS {
        let tokens = prompt(name, 50);
        let mut warm = engine(name, Device::Tuned, &settings(16, DType::F16));
        let seq = warm.submit(crate::common::retained(tokens[..20].to_vec(), 6)).expect("accepted");
        let first = finish(&mut warm).remove(0).0;
        warm.resume(seq, Request::greedy(tokens[20..40].to_vec(), 8)).expect("resumed");
        let continued = finish(&mut warm).remove(0).0;
        let whole = [&tokens[..20], &first, &tokens[20..40]].concat();
        let mut cold = engine(name, Device::Tuned, &settings(64, DType::F16));
        cold.submit(Request::greedy(whole, 8)).expect("accepted");
        assert_eq!(continued, finish(&mut cold).remove(0).0, "{name}");
        assert_eq!(warm.states().free().0, 1, "{name}: the lease came back");
    }
}
