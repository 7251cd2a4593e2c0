//! Whole models on an adapter: reference logits and text, and the same bits however a text is cut, drafted or batched.

#[path = "common/device.rs"]
mod adapter;

use adapter::open_device;
use forerun_base::{DType, Token};
use forerun_engine::{Depth, Engine, Event, ModelRunner, Request, Sampling, Settings, Speculation};
use forerun_model::{Blueprint, Model};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use forerun_testkit::{GOLDENS, Golden};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// A hybrid with an MTP head, one with experts, and attention with windows.
const CUBE: [&str; 3] = ["qwen3_5", "mlx_qwen3_5_moe_4bit", "gemma4_e"];

/// Goldens with operations that the device lacks, and what it says of them.
const REFUSED: [(&str, &str); 7] = [
    ("gemma3n", "predict_streams"),
    ("deepseek_v3", "latent_attention"),
    ("kimi_linear", "kda_rule"),
    ("granitemoehybrid", "scan_gates"),
    ("nemotron_h", "scan_gates"),
    ("qwen4_exp", "group_norm"),
    ("deepseek_v4", "turn_tails"),
];

fn settings(prefill_chunk: usize, kv: DType) -> Settings {
    Settings { context: 256, prefill_chunk, kv, ..Settings::default() }
}

fn engine(name: &str, settings: &Settings) -> Engine<ModelRunner> {
    engine_of(Golden::open(name).checkpoint(), settings)
}

fn engine_of(checkpoint: &Path, settings: &Settings) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(checkpoint).expect("a model");
    let mut device = Box::new(open_device());
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    Engine::new(ModelRunner::new(device, model, settings).expect("memory"))
}

fn score(engine: &mut Engine<ModelRunner>, tokens: &[Token]) -> Vec<f32> {
    let mut all = Vec::new();
    engine.score(tokens, &mut |row| all.extend_from_slice(row)).expect("scored");
    all
}

/// The texts of requests that run together, in the order of the requests.
fn texts(engine: &mut Engine<ModelRunner>, requests: Vec<Request>) -> Vec<Vec<Token>> {
    let mut texts = BTreeMap::new();
    for request in requests {
        texts.insert(engine.submit(request).expect("accepted"), Vec::new());
    }
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    for event in events {
        if let Event::Token { seq, token, .. } = event {
            texts.get_mut(&seq).expect("a request's own").push(token);
        }
    }
    texts.into_values().collect()
}

#[test]
fn logits_and_greedy_text_are_those_of_the_reference() {
    for name in GOLDENS.into_iter().filter(|name| REFUSED.iter().all(|(no, _)| no != name)) {
        let golden = Golden::open(name);
        let (prompt, expected) = (golden.tokens("input_ids"), golden.logits());
        let mut engine = engine(name, &settings(48, DType::F32));
        let found = expected.of(&score(&mut engine, &expected.text));
        assert_close(name, &expected.values, &found, 2e-3);
        let found = texts(&mut engine, vec![Request::greedy(prompt, 32)]);
        assert_eq!(found, [golden.tokens("greedy.ids")], "{name}");
    }
}

#[test]
fn a_model_with_operations_that_are_missing_is_refused_by_their_names() {
    for (name, op) in REFUSED {
        let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
        let refused =
            Model::load(&blueprint, &mut open_device(), &mut |_| {}).expect_err("refused");
        assert!(refused.to_string().contains(&format!("operation `{op}`")), "{name}: {refused}");
    }
}

#[test]
fn bits_of_logits_do_not_depend_on_how_a_prompt_is_cut() {
    for name in CUBE {
        let prompt = Golden::open(name).tokens("input_ids");
        let whole = score(&mut engine(name, &settings(256, DType::F16)), &prompt);
        for chunk in [1, 3, 64] {
            let cut = score(&mut engine(name, &settings(chunk, DType::F16)), &prompt);
            assert_same_bits(&format!("{name} in chunks of {chunk}"), &whole, &cut);
        }
    }
}

/// Greedy and sampled requests on parts of a prompt.
fn requests(prompt: &[Token], depth: Depth) -> Vec<Request> {
    let hot = Sampling { temperature: 0.9, top_p: 0.9, seed: 11, ..Sampling::default() };
    let samplings = [Sampling::default(), hot.clone(), Sampling { top_k: 12, ..hot }];
    let ends = [prompt.len(), prompt.len() / 2, prompt.len() / 3];
    let one = |(sampling, end): (Sampling, usize)| Request {
        sampling,
        depth,
        ..Request::greedy(prompt[..end.max(1)].to_vec(), 16)
    };
    samplings.into_iter().zip(ends).map(one).collect()
}

#[test]
fn texts_do_not_depend_on_depth_chunk_or_batch() {
    for name in CUBE {
        let prompt = Golden::open(name).tokens("input_ids");
        let plain = settings(64, DType::F16);
        let mut alone = engine(name, &plain);
        let expected: Vec<Vec<Token>> = requests(&prompt, Depth::Fixed(0))
            .into_iter()
            .flat_map(|request| texts(&mut alone, vec![request]))
            .collect();
        for chunk in [1, 3, 64] {
            let speculation = Speculation { text: true, ..Speculation::mtp(8) };
            let settings = Settings { sequences: 3, speculation, ..settings(chunk, DType::F16) };
            let mut engine = engine(name, &settings);
            for depth in 0..=8 {
                let together = texts(&mut engine, requests(&prompt, Depth::Fixed(depth)));
                assert_eq!(together, expected, "{name}, depth {depth}, chunk {chunk}");
            }
        }
    }
}

/// What `verify` holds a model to, with few tokens: every arm would take minutes in software.
#[test]
fn the_bundled_model_says_the_same_in_chunks_with_drafts_and_in_a_batch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m");
    let prompt: Vec<Token> = (1..=40).map(|i| i * 197 % 8000 + 3).collect();
    let mut plain = engine_of(&folder, &settings(64, DType::F16));
    let alone = |engine: &mut Engine<ModelRunner>, depth| -> Vec<Vec<Token>> {
        let each = requests(&prompt, depth).into_iter();
        each.flat_map(|request| texts(engine, vec![request])).collect()
    };
    let expected = alone(&mut plain, Depth::Fixed(0));
    let started = Instant::now();
    assert_eq!(alone(&mut plain, Depth::Fixed(0)), expected, "plain again");
    let tokens: usize = expected.iter().map(Vec::len).sum();
    println!("bundled model: {:.1} tok/s", tokens as f64 / started.elapsed().as_secs_f64());
    let speculation = Speculation { text: true, ..Speculation::mtp(8) };
    let settings = Settings { sequences: 3, speculation, ..settings(3, DType::F16) };
    let mut drafting = engine_of(&folder, &settings);
    for depth in [3, 8] {
        let together = texts(&mut drafting, requests(&prompt, Depth::Fixed(depth)));
        assert_eq!(together, expected, "depth {depth}");
    }
}
