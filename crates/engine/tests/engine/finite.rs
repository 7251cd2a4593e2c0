//! Weights that are no numbers, arithmetic that overflows, temperatures next to zero.

use crate::common::{Device, answers, built, engine, prompt};
use forerun_backend::op::gumbel;
use forerun_backend_cpu::tuned;
use forerun_base::{DType, Token};
use forerun_engine::{
    Depth, Engine, Event, FinishReason, Request, Sampling, Settings, Speculation,
};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;
use forerun_weights::safetensors::parse_header;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A copy of a golden checkpoint whose tensor of this name holds one number, in its own element type, from element
/// `from` on.
fn spoiled(golden: &str, tensor: &str, from: usize, number: f32) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut found = false;
    for entry in std::fs::read_dir(Golden::open(golden).checkpoint()).expect("a folder") {
        let path = entry.expect("an entry").path();
        let to = folder.path().join(path.file_name().expect("a name"));
        if path.extension().is_none_or(|e| e != "safetensors")
            || path.ends_with("golden.safetensors")
        {
            std::fs::copy(&path, to).expect("a copy");
            continue;
        }
        let mut bytes = std::fs::read(&path).expect("a file");
        let header = parse_header(&bytes, bytes.len() as u64).expect("a header");
        if let Some(info) = header.tensors.get(tensor) {
            let element = match info.dtype {
                DType::F32 => number.to_le_bytes().to_vec(),
                DType::BF16 => ((number.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
                other => panic!("{tensor} is {other}"),
            };
            let part = &mut bytes[info.range.clone()][from * element.len()..];
            part.chunks_exact_mut(element.len()).for_each(|e| e.copy_from_slice(&element));
            found = true;
        }
        std::fs::write(to, bytes).expect("a copy");
    }
    assert!(found, "{golden} has no {tensor}");
    folder
}

fn load_error(folder: &Path) -> String {
    let blueprint = Blueprint::open(folder).expect("headers are fine");
    let mut backend = tuned(Some(1));
    let loaded = Model::load(&blueprint, &mut backend, &mut |_| {});
    loaded.expect_err("weights are broken").to_string()
}

#[test]
fn a_weight_that_is_no_number_is_named_at_load() {
    let layer = "model.layers.1";
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (golden, module, part, from) in [
            ("llama", &*format!("{layer}.mlp.down_proj"), "weight", 1),
            ("llama", &format!("{layer}.input_layernorm"), "weight", 1),
            ("llama", "model.embed_tokens", "weight", 100),
            ("mlx_llama_5bit", &format!("{layer}.mlp.down_proj"), "scales", 1),
            ("mlx_llama_5bit", &format!("{layer}.mlp.down_proj"), "biases", 1),
        ] {
            let folder = spoiled(golden, &format!("{module}.{part}"), from, number);
            let error = load_error(folder.path());
            assert!(error.contains(module) && error.contains("NaN or an infinite"), "{error}");
        }
    }
}

#[test]
fn arithmetic_that_overflows_ends_the_answer_and_names_the_layer() {
    // The largest of its type is a number, and so passes at load.
    let largest = f32::from_bits(0x7f7f_0000);
    let folder =
        spoiled("qwen3_5", "model.language_model.layers.2.mlp.down_proj.weight", 0, largest);
    let blueprint = Blueprint::open(folder.path()).expect("a model");
    for (device, speculation) in
        [(Device::Tuned, Speculation::OFF), (Device::Recorded, Speculation::mtp(3))]
    {
        let settings = Settings {
            context: 64,
            speculation,
            kv: DType::F32,
            sequences: 2,
            ..Settings::default()
        };
        let mut engine = Engine::new(built(&blueprint, device, &settings));
        let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        let asked = prompt("qwen3_5", 6);
        engine.submit(Request::greedy(asked.clone(), 5)).expect("accepted");
        let logprobs = Some(2);
        let sampled = Request { sampling, logprobs, ..Request::greedy(asked, 5) };
        engine.submit(sampled).expect("accepted");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        for (tokens, reason) in answers(&events) {
            assert_eq!(tokens, [0_u32; 0]);
            let FinishReason::Failed(why) = reason else { panic!("{reason:?}") };
            assert!(why.contains("not finite from layer 2 on"), "{why}");
        }
    }
}

/// What f64 sampled tokens in a row, unless two sums are too close for f32 to tell apart.
fn reference(logits: &[f32], temperature: f32, seed: u64, position: u32) -> Option<Token> {
    let sum = |(t, &logit): (usize, &f32)| {
        let scaled = f64::from(logit) / f64::from(temperature);
        (t as Token, scaled + f64::from(gumbel(seed, position, t as Token)), scaled.abs())
    };
    let mut sums: Vec<(Token, f64, f64)> = logits.iter().enumerate().map(sum).collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    let close = 1e-6 * sums[0].2.max(sums[1].2).max(1.0);
    (sums[0].1 - sums[1].1 > close).then_some(sums[0].0)
}

#[test]
fn temperatures_of_every_size_choose_what_f64_chooses() {
    type Row = (u32, Vec<f32>);
    let settings = Settings { context: 64, kv: DType::F32, ..Settings::default() };
    let mut engine = engine("qwen3_5", Device::Tuned, &settings);
    let rows: Arc<Mutex<Vec<Row>>> = Arc::default();
    let seen = Arc::clone(&rows);
    engine.runner().set_tap(Some(Box::new(move |_, position, row| {
        seen.lock().expect("one thread").push((position, row.to_vec()));
    })));
    let temperatures =
        [1e-45, 1e-42, 1e-39, 1e-38, 1e-35, 1e-30, 1e-20, 1e-10, 1e-6, 1e-5, 1e-3, 0.1, 1.0, 1e3];
    let mut compared = 0;
    for (temperature, seed) in temperatures.into_iter().flat_map(|t| [(t, 1), (t, 2)]) {
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let request = Request {
            sampling,
            depth: Depth::Fixed(0),
            ..Request::greedy(prompt("qwen3_5", 8), 12)
        };
        engine.submit(request).expect("accepted");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        let token = |event: &Event| {
            if let Event::Token { token, .. } = event { Some(*token) } else { None }
        };
        let tokens: Vec<Token> = events.iter().filter_map(token).collect();
        let rows = std::mem::take(&mut *rows.lock().expect("one thread"));
        assert_eq!(rows.len(), tokens.len());
        for ((position, logits), token) in rows.into_iter().zip(tokens) {
            if let Some(expected) = reference(&logits, temperature, seed, position + 1) {
                assert_eq!(token, expected, "temperature {temperature:e}, position {position}");
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "only {compared} of 336 rows were clear");
}
