//! Whole models on the kernels: reference logits and text, and the same bits however a text is cut.

mod common;

use common::{on_a_gpu, on_the_cpu};
use forerun_backend_cuda::Cuda;
use forerun_base::DType;
use forerun_engine::{Engine, Event, ModelRunner, Request, Settings};
use forerun_model::{Blueprint, Model};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use forerun_testkit::{GOLDENS, Golden};

/// One of each kind of layer and weight, as many as the emulation has time for.
const GEMV: [&str; 4] = ["qwen3_5", "mlx_qwen3_5_moe_4bit", "gemma4_e", "gguf_qwen3_5_wide_q4_k"];

fn settings(prefill_chunk: usize, kv: DType) -> Settings {
    Settings { context: 256, prefill_chunk, kv, ..Settings::default() }
}

fn engine(name: &str, device: Cuda, settings: &Settings) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
    let mut device = Box::new(device);
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    Engine::new(ModelRunner::new(device, model, settings).expect("memory"))
}

fn score(engine: &mut Engine<ModelRunner>, tokens: &[u32]) -> Vec<f32> {
    let mut all = Vec::new();
    engine.score(tokens, &mut |row| all.extend_from_slice(row)).expect("scored");
    all
}

fn text(engine: &mut Engine<ModelRunner>, request: Request) -> Vec<u32> {
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let token = |event: &Event| match event {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

/// Logits and greedy text of the reference implementation.
fn matches(name: &str, device: fn() -> Cuda) {
    let golden = Golden::open(name);
    let (prompt, expected) = (golden.tokens("input_ids"), golden.logits());
    let mut engine = engine(name, device(), &settings(48, DType::F32));
    let logits = expected.of(&score(&mut engine, &expected.text));
    assert_close(name, &expected.values, &logits, 2e-3);
    let found = text(&mut engine, Request::greedy(prompt, 32));
    assert_eq!(found, golden.tokens("greedy.ids"), "{name}");
}

/// The bits of logits do not depend on the chunk in which a prompt is read.
fn cuts_change_nothing(name: &str, device: fn() -> Cuda) {
    let prompt = Golden::open(name).tokens("input_ids");
    let whole = score(&mut engine(name, device(), &settings(256, DType::F16)), &prompt);
    for chunk in [1, 3, 16] {
        let cut = score(&mut engine(name, device(), &settings(chunk, DType::F16)), &prompt);
        assert_same_bits(&format!("{name} in chunks of {chunk}"), &whole, &cut);
    }
}

/// Goldens with operations that the device lacks, and what it says of them.
const REFUSED: [(&str, &str); 6] = [
    ("deepseek_v3", "latent_attention"),
    ("kimi_linear", "kda_rule"),
    ("granitemoehybrid", "scan_gates"),
    ("nemotron_h", "scan_gates"),
    ("qwen4_exp", "group_norm"),
    ("deepseek_v4", "turn_tails"),
];

fn runs_here() -> impl Iterator<Item = &'static str> {
    GOLDENS.into_iter().filter(|name| REFUSED.iter().all(|(refused, _)| refused != name))
}

#[test]
fn a_model_with_operations_that_are_missing_is_refused_by_their_names() {
    for (name, op) in REFUSED {
        let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
        let mut device = on_the_cpu();
        let refused = Model::load(&blueprint, &mut device, &mut |_| {}).expect_err("refused");
        assert!(refused.to_string().contains(&format!("operation `{op}`")), "{name}: {refused}");
    }
}

#[test]
fn logits_and_greedy_text_are_those_of_the_reference() {
    GEMV.into_iter().for_each(|name| matches(name, on_the_cpu));
}

#[test]
#[ignore = "needs a GPU"]
fn logits_and_greedy_text_are_those_of_the_reference_on_a_gpu() {
    runs_here().for_each(|name| matches(name, on_a_gpu));
}

#[test]
fn bits_do_not_depend_on_how_a_prompt_is_cut() {
    GEMV[..2].iter().for_each(|name| cuts_change_nothing(name, on_the_cpu));
}

#[test]
#[ignore = "needs a GPU"]
fn bits_do_not_depend_on_how_a_prompt_is_cut_on_a_gpu() {
    runs_here().for_each(|name| cuts_change_nothing(name, on_a_gpu));
}
