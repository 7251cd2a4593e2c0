//! Speculation changes nothing but speed: the cube, forced acceptance, sampling, endings.

use crate::common::{Device, answers, engine, finish, golden_runner, prompt, retained};
use forerun_base::{DType, Token};
use forerun_engine::{
    Depth, DraftPlan, DraftTokens, DraftVocabulary, Engine, EngineError, Event, FinishReason,
    Follow, ModelRunner, Receipt, Request, Runner, SampledTokens, Sampling, Scheduler, Settings,
    Speculation, SpeculationMode, StateCopies, StateShape, StateStore, StepPlan,
};
use forerun_model::Blueprint;
use forerun_testkit::Golden;

/// Short convolutions, doubled write strengths, several streams, hybrid dense, hybrid with experts, hybrid packed
/// without a head and with one, attention only, and windows with shared keys, with experts, with a separate
/// drafter.
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
    "mlx_qwen3_5_4bit",
    "gguf_qwen3_5_wide_q4_k",
    "llama",
    "gemma4_e",
    "gemma4_moe",
    "gemma4_dense + gemma4_assistant",
];

fn settings(prefill_chunk: usize, speculation: Speculation) -> Settings {
    Settings { context: 192, prefill_chunk, speculation, kv: DType::F16, ..Settings::default() }
}

/// A prompt that repeats itself, so that the text drafter has something to find.
fn looped(name: &str) -> Vec<Token> {
    let part = prompt(name, 9);
    [&part[..], &part, &part].concat()
}

/// Greedy, each filter, each penalty, and all together.
fn samplings() -> Vec<Sampling> {
    let base = Sampling { temperature: 0.9, seed: 11, ..Sampling::default() };
    vec![
        Sampling::default(),
        base.clone(),
        Sampling { top_k: 12, ..base.clone() },
        Sampling { top_p: 0.8, ..base.clone() },
        Sampling { min_p: 0.1, ..base.clone() },
        Sampling { repetition_penalty: 1.4, temperature: 0.0, ..base.clone() },
        Sampling { presence_penalty: 0.7, ..base.clone() },
        Sampling { frequency_penalty: 0.4, ..base.clone() },
        Sampling { logit_bias: vec![(3, 4.0), (200, -5.0)], ..base.clone() },
        Sampling {
            top_k: 50,
            top_p: 0.95,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            logit_bias: vec![(7, 1.0)],
            ..base
        },
    ]
}

fn requests(name: &str, depth: Depth) -> Vec<Request> {
    let request = |(i, sampling): (usize, Sampling)| {
        let prompt = if i % 2 == 0 { prompt(name, 5 + 7 * i) } else { looped(name) };
        Request { sampling, depth, ..Request::greedy(prompt, 20 + i) }
    };
    samplings().into_iter().enumerate().map(request).collect()
}

/// Each request alone, one after the other.
fn alone(name: &str, device: Device, settings: &Settings, depth: Depth) -> Vec<Vec<Token>> {
    let mut engine = engine(name, device, settings);
    let one = |request| {
        engine.submit(request).expect("accepted");
        finish(&mut engine).remove(0).0
    };
    requests(name, depth).into_iter().map(one).collect()
}

/// All requests in one engine; some join late, and strangers come and go.
fn together(name: &str, device: Device, settings: &Settings, depth: Depth) -> Vec<Vec<Token>> {
    let mut engine = engine(name, device, &Settings { sequences: 4, ..*settings });
    let mut events = Vec::new();
    let mut ours = Vec::new();
    for (i, request) in requests(name, depth).into_iter().enumerate() {
        ours.push(engine.submit(request).expect("accepted"));
        let stranger = engine.submit(Request::greedy(prompt(name, 3 + i), 30)).expect("accepted");
        (0..2 * i).for_each(|_| engine.step(&mut events));
        engine.cancel(stranger, &mut events);
    }
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let tokens = |id| {
        let own = |event: &Event| match event {
            Event::Token { seq, token, .. } if *seq == id => Some(*token),
            _ => None,
        };
        events.iter().filter_map(own).collect()
    };
    assert_eq!(engine.states().free().0, 4, "every lease came back");
    ours.into_iter().map(tokens).collect()
}

/// What differs in steps of `chunk` rows: a step of one row holds no draft, one of three holds two.
fn speculations(chunk: usize) -> Vec<(Speculation, Depth)> {
    let both = Speculation { text: true, ..Speculation::mtp(8) };
    let depths: &[usize] = match chunk {
        0..=1 => return vec![(both, Depth::Auto)],
        2..=3 => &[1, 2],
        64 => &[1, 2, 3, 4, 5, 6, 7, 8],
        _ => &[4],
    };
    let fixed = |&depth: &usize| (Speculation::mtp(8), Depth::Fixed(depth));
    let mut all: Vec<_> = depths.iter().map(fixed).collect();
    all.push((Speculation::mtp(8), Depth::Auto));
    all.push((Speculation::text(8), Depth::Fixed(8)));
    all.push((both, Depth::Auto));
    all
}

#[test]
fn the_cube_gives_the_same_text_everywhere() {
    for name in MODELS {
        let device = Device::Tuned;
        let plain = alone(name, device, &settings(64, Speculation::OFF), Depth::Auto);
        for chunk in [1, 3, 64, 512] {
            let off = settings(chunk, Speculation::OFF);
            assert_eq!(plain, alone(name, device, &off, Depth::Auto), "{name}, chunk {chunk}");
            for (speculation, depth) in speculations(chunk) {
                let settings = settings(chunk, speculation);
                let what = format!("{name}, chunk {chunk}, {speculation:?}, {depth:?}");
                assert_eq!(plain, alone(name, device, &settings, depth), "alone: {what}");
                assert_eq!(plain, together(name, device, &settings, depth), "batch: {what}");
            }
        }
    }
}

#[test]
fn the_cube_holds_on_the_other_devices() {
    for device in [Device::Plain, Device::Recorded, Device::Cut] {
        let name = "qwen3_next";
        let plain = alone(name, device, &settings(64, Speculation::OFF), Depth::Auto);
        for (speculation, depth) in [
            (Speculation::mtp(8), Depth::Fixed(3)),
            (Speculation { text: true, ..Speculation::mtp(8) }, Depth::Auto),
        ] {
            let settings = settings(16, speculation);
            assert_eq!(plain, alone(name, device, &settings, depth), "{device:?} {depth:?}");
            assert_eq!(plain, together(name, device, &settings, depth), "{device:?} {depth:?}");
        }
    }
}

#[test]
fn any_draft_vocabulary_gives_the_same_text() {
    let assistant = "gemma4_dense_2 + gemma4_assistant_2";
    let models = ["qwen3_5", "qwen3_next", "gguf_qwen3_5_wide_q4_k", assistant];
    let devices = models.map(|name| (name, Device::Tuned)).into_iter();
    let others = [("qwen3_5", Device::Plain), ("qwen3_next", Device::Recorded)];
    for (name, device) in devices.chain(others) {
        let plain = alone(name, device, &settings(64, Speculation::OFF), Depth::Auto);
        for tokens in [1, 16, 100, 399] {
            let vocabulary = DraftVocabulary::First(tokens);
            let settings = settings(64, Speculation { vocabulary, ..Speculation::mtp(8) });
            let what = format!("{name} on {device:?}, first {tokens} tokens");
            assert_eq!(plain, alone(name, device, &settings, Depth::Fixed(3)), "alone: {what}");
            assert_eq!(plain, together(name, device, &settings, Depth::Auto), "batch: {what}");
        }
    }
}

/// Greedy drafts and how many were right, with the head choosing from `vocabulary`.
fn greedy_receipt(name: &str, vocabulary: DraftVocabulary) -> (Vec<Token>, Receipt) {
    let speculation = Speculation { vocabulary, ..Speculation::mtp(2) };
    let mut engine = engine(name, Device::Tuned, &settings(64, speculation));
    let request = Request { depth: Depth::Fixed(2), ..Request::greedy(prompt(name, 30), 60) };
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let receipt = events.iter().find_map(|event| match event {
        Event::Finished { receipt, .. } => Some(Receipt::clone(receipt)),
        _ => None,
    });
    (answers(&events).remove(0).0, receipt.expect("finished"))
}

#[test]
fn a_smaller_draft_vocabulary_costs_acceptance_and_nothing_else() {
    let name = "qwen3_5";
    let (text, all) = greedy_receipt(name, DraftVocabulary::All);
    // The vocabulary is smaller than what `auto` takes at least.
    assert_eq!(greedy_receipt(name, DraftVocabulary::Auto), (text.clone(), all.clone()));
    let (same, few) = greedy_receipt(name, DraftVocabulary::First(4));
    assert_eq!(text, same);
    assert!(text.iter().any(|&token| token >= 4), "the text needs other tokens: {text:?}");
    assert!(few.drafted > 0, "{few:?}");
    assert!(few.accepted < all.accepted, "{few:?} against {all:?}");
}

#[test]
fn a_draft_vocabulary_that_is_no_part_of_the_vocabulary_is_refused() {
    let refusal = |name: &str, tokens| {
        let vocabulary = DraftVocabulary::First(tokens);
        let settings = settings(64, Speculation { vocabulary, ..Speculation::mtp(2) });
        let (model, drafter) = name.split_once(" + ").unwrap_or((name, ""));
        let mut blueprint = Blueprint::open(Golden::open(model).checkpoint()).expect("a model");
        if !drafter.is_empty() {
            blueprint.attach_drafter(Golden::open(drafter).checkpoint()).expect("a drafter");
        }
        settings.limits(&blueprint.spec).expect_err("refused").to_string()
    };
    assert!(refusal("qwen3_5", 0).contains("draft vocabulary of 0 tokens"));
    assert!(refusal("qwen3_5", 1_000_000).contains("draft vocabulary of 1000000 tokens"));
    assert!(refusal("llama", usize::MAX).contains("choose auto, all or a number from 1 to"));
    let assistant = refusal("gemma4_dense + gemma4_assistant", 16);
    assert!(assistant.contains("drafts by clusters"), "{assistant}");
}

#[test]
fn auto_narrows_vocabularies_while_the_text_is_made_of_frequent_tokens() {
    let auto = |vocabulary, text: &[Token]| DraftVocabulary::Auto.tokens(vocabulary, text);
    for (vocabulary, frequent) in
        [(100, 100), (4096, 4096), (5000, 4096), (8192, 4096), (50_000, 25_000), (65_537, 32_768)]
    {
        assert_eq!(auto(vocabulary, &[1]), frequent);
        assert_eq!(auto(vocabulary, &[]), frequent);
    }
    assert_eq!(auto(8192, &[4096]), 8192);
    let mut text = vec![32_767; 300];
    assert_eq!(auto(250_000, &text), 32_768);
    text[60..76].fill(32_768);
    assert_eq!(auto(250_000, &text), 32_768, "one in sixteen of the latest 256 is rare");
    text[76] = 200_000;
    assert_eq!(auto(250_000, &text), 250_000);
    text.resize(300 + 256, 5);
    assert_eq!(auto(250_000, &text), 32_768, "what is long gone does not count");
}

/// A real model with a drafter that knows the text and errs where it is told to.
struct Scripted {
    inner: ModelRunner,
    truth: Vec<Token>,
    /// Position in the round of the first rejected draft, round by round.
    errs_at: Vec<usize>,
    round: usize,
}

impl Runner for Scripted {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        self.inner.run(plan, sampled)
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        _follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        drafts.reset(plan);
        let errs_at = self.errs_at[self.round % self.errs_at.len()];
        self.round += 1;
        for (i, entry) in plan.entries.iter().enumerate() {
            for k in 0..entry.depth {
                let position = entry.start as usize + entry.tokens.len() + 1 + k;
                let right = self.truth.get(position).copied().unwrap_or(0);
                drafts.push(i, if k == errs_at { (right + 1) % 400 } else { right });
            }
        }
        Ok(plan.deepest())
    }

    fn shape(&self) -> StateShape {
        self.inner.shape()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        self.inner.copies()
    }
}

fn scripted(name: &str, truth: Vec<Token>, errs_at: Vec<usize>) -> Engine<Scripted> {
    let settings = settings(64, Speculation::mtp(8));
    let inner = golden_runner(name, Device::Tuned, &settings);
    let (limits, vocabulary) = (*inner.limits(), inner.model().spec.vocabulary);
    let scheduler = Scheduler::new(limits, vocabulary, settings.speculation);
    let runner = Scripted { inner, truth, errs_at, round: 0 };
    Engine::with_parts(scheduler, StateStore::new(&limits), runner)
}

#[test]
fn every_pattern_of_acceptance_gives_the_same_text() {
    for name in ["qwen3_5", "qwen3_next", "gemma4_dense + gemma4_assistant"] {
        let start = prompt(name, 30);
        let mut plain = engine(name, Device::Tuned, &settings(64, Speculation::OFF));
        plain.submit(Request::greedy(start.clone(), 60)).expect("accepted");
        let text = finish(&mut plain).remove(0).0;
        let truth = [&start[..], &text].concat();
        let mut patterns: Vec<Vec<usize>> = (0..=8).map(|k| vec![k]).collect();
        patterns.push(vec![0, 8, 1, 7, 2, 6, 3, 5, 4]);
        for depth in [1, 3, 8] {
            for pattern in &patterns {
                let mut engine = scripted(name, truth.clone(), pattern.clone());
                let depth = Depth::Fixed(depth);
                engine
                    .submit(Request { depth, ..Request::greedy(start.clone(), 60) })
                    .expect("accepted");
                let mut events = Vec::new();
                while !engine.is_idle() {
                    engine.step(&mut events);
                }
                assert_eq!(answers(&events)[0].0, text, "{name} {depth:?} {pattern:?}");
                let Some(Event::Finished { receipt, .. }) = events.last() else { panic!("no end") };
                let wrong_from = pattern.iter().copied().max().unwrap_or(0);
                assert_eq!(receipt.accepted > 0, wrong_from > 0, "{name} {depth:?} {pattern:?}");
            }
        }
    }
}

#[test]
fn an_end_inside_an_accepted_run_leaves_what_plain_decoding_leaves() {
    for name in ["qwen3_5", "llama"] {
        let start = looped(name);
        let off = settings(64, Speculation::OFF);
        let mut plain = engine(name, Device::Tuned, &off);
        plain.submit(Request::greedy(start.clone(), 40)).expect("accepted");
        let text = finish(&mut plain).remove(0).0;
        let truth = [&start[..], &text].concat();
        for last in 0..12 {
            // Ends by token, by watch and by length, each at token number `last`.
            let first_of = |token: Token| text.iter().position(|&t| t == token) == Some(last);
            let mut ends: Vec<(Request, FinishReason)> =
                vec![(retained(start.clone(), last + 1), FinishReason::Length)];
            if first_of(text[last]) {
                let end_tokens = vec![text[last]];
                ends.push((
                    Request { end_tokens, ..retained(start.clone(), 40) },
                    FinishReason::EndToken,
                ));
            }
            let mut seen = 0;
            let watch = Box::new(move |_| {
                seen += 1;
                seen == last + 1
            });
            ends.push((
                Request { watch: Some(watch), ..retained(start.clone(), 40) },
                FinishReason::Watched,
            ));
            for (request, reason) in ends {
                let mut engine = scripted(name, truth.clone(), vec![8]);
                let seq =
                    engine.submit(Request { depth: Depth::Fixed(5), ..request }).expect("accepted");
                let mut events = Vec::new();
                while !engine.is_idle() {
                    engine.step(&mut events);
                }
                assert_eq!(answers(&events)[0], (text[..=last].to_vec(), reason), "{name} {last}");
                // The continuation equals that of a cold engine.
                let more = prompt(name, 7);
                engine.resume(seq, Request::greedy(more.clone(), 10)).expect("resumed");
                events.clear();
                while !engine.is_idle() {
                    engine.step(&mut events);
                }
                let whole = [&start[..], &text[..=last], &more].concat();
                let mut cold = crate::common::engine(name, Device::Tuned, &off);
                cold.submit(Request::greedy(whole, 10)).expect("accepted");
                assert_eq!(answers(&events)[0].0, finish(&mut cold).remove(0).0, "{name} {last}");
            }
        }
    }
}

#[test]
fn many_seeds_give_the_same_histogram_and_the_models_probabilities() {
    let name = "qwen3_5";
    let start = prompt(name, 12);
    let mut scorer = engine(name, Device::Tuned, &settings(64, Speculation::OFF));
    let logits = crate::common::score(&mut scorer, &start);
    let last = &logits[logits.len() - 400..];
    let count = |speculation: Speculation| {
        let mut engine = engine(name, Device::Tuned, &settings(64, speculation));
        let mut histogram = vec![[0u32; 3]; 400];
        for seed in 0..1500 {
            let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
            let depth = Depth::Fixed(2);
            engine
                .submit(Request { sampling, depth, ..Request::greedy(start.clone(), 3) })
                .expect("accepted");
            for (i, token) in finish(&mut engine).remove(0).0.into_iter().enumerate() {
                histogram[token as usize][i] += 1;
            }
        }
        histogram
    };
    let plain = count(Speculation::OFF);
    assert_eq!(plain, count(Speculation::mtp(2)), "exactly the same draws");
    // Chi-square of the first token against the model's own probabilities, rare tokens pooled.
    let total: f64 = last.iter().map(|&l| f64::from(l).exp()).sum();
    let (mut chi, mut classes, mut rare) = (0.0, 0, (0.0, 0.0));
    for (token, seen) in plain.iter().enumerate() {
        let expected = 1500.0 * f64::from(last[token]).exp() / total;
        if expected < 8.0 {
            rare = (rare.0 + expected, rare.1 + f64::from(seen[0]));
        } else {
            chi += (f64::from(seen[0]) - expected).powi(2) / expected;
            classes += 1;
        }
    }
    chi += (rare.1 - rare.0).powi(2) / rare.0.max(1.0);
    let freedom = f64::from(classes);
    // Beyond five standard deviations of the statistic chance is no explanation.
    assert!(chi < freedom + 5.0 * (2.0 * freedom).sqrt(), "chi-square {chi} at {freedom}");
}

#[test]
fn optimistic_mode_keeps_every_draft_and_needs_no_log() {
    let speculation = Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(3) };
    let settings = settings(64, speculation);
    let mut engine = engine("qwen3_5", Device::Tuned, &settings);
    assert_eq!(engine.runner().limits().log_rows, 0);
    assert_eq!(engine.runner().memory().get("draft log"), 0);
    let depth = Depth::Fixed(3);
    engine
        .submit(Request { depth, ..Request::greedy(prompt("qwen3_5", 20), 41) })
        .expect("accepted");
    let mut events = Vec::new();
    let mut steps = 0;
    while !engine.is_idle() {
        engine.step(&mut events);
        steps += 1;
    }
    let Some(Event::Finished { receipt, reason, .. }) = events.last() else { panic!("no end") };
    assert_eq!(*reason, FinishReason::Length);
    assert_eq!(answers(&events)[0].0.len(), 41);
    assert!(steps <= 12, "four tokens a step: {steps}");
    assert!(receipt.unchecked >= 28, "{receipt:?}");
    assert_eq!(receipt.drafted, 0, "nothing was checked");
    engine.submit(Request::greedy(prompt("qwen3_5", 20), 41)).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let Some(Event::Finished { receipt, .. }) = events.last() else { panic!("no end") };
    assert_eq!(receipt.unchecked, 20, "one a round unless more is requested: {receipt:?}");
}
