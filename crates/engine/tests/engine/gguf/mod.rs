//! GGUF files of other shapes: the same numbers as the published checkpoints they were made from.

mod convert;
mod families;
mod gemma3n;
mod hostile;

use crate::common::{Device, babble, built, runner, score};
use families::converted;
use forerun_base::DType;
use forerun_engine::{Depth, Engine, Event, ModelRunner, Request, Settings, Speculation};
use forerun_model::Blueprint;
use forerun_testkit::tiny::{Family, Gemma, GgufFile, GgufValue, Tiny, TinyExperts, TinyLinear};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use serde_json::Value;
use std::path::Path;

fn usual(family: Family) -> Tiny {
    Tiny {
        seed: 3,
        hidden: 52,
        layers: 4,
        heads: 6,
        kv_heads: 2,
        head_dim: 24,
        ffn: 70,
        dense_layers: Vec::new(),
        // Three value heads to a key head, of widths that nothing divides.
        linear: TinyLinear {
            key_heads: 2,
            value_heads: 6,
            key_dim: 11,
            value_dim: 13,
            taps: 3,
            interval: 2,
        },
        experts: TinyExperts { count: 5, top_k: 2, ffn: 26, shared_ffn: 18 },
        vocabulary: 103,
        dtype: DType::F32,
        ..Tiny::new(family)
    }
}

fn shapes() -> Vec<(&'static str, Tiny)> {
    let gemma = |own: Gemma| Tiny {
        head_dim: 16,
        gemma: Gemma { window: 9, cap: Some(20.0), whole_head_dim: 24, ..own },
        ..usual(Family::Gemma4)
    };
    let e = Gemma {
        whole: vec![1, 3],
        sharing: 2,
        double_wide: true,
        per_layer: 10,
        ..Gemma::default()
    };
    let moe =
        Gemma { whole: vec![0, 3], keys_as_values: Some(3), experts: true, ..Gemma::default() };
    let gemma3 = Gemma {
        window: 9,
        whole: vec![2],
        query_scalar: 24.0,
        rope_factor: Some(8.0),
        ..Gemma::default()
    };
    // Three heads to a group, and channels that expand the stream twice.
    let linear = TinyLinear { value_dim: 14, ..usual(Family::Granite).linear };
    let granite = Tiny { hidden: 42, linear, conv_bias: true, ..usual(Family::Granite) };
    vec![
        ("llama", usual(Family::Llama)),
        ("qwen3", Tiny { tied: true, ..usual(Family::Qwen3) }),
        ("qwen3moe", Tiny { dense_layers: vec![1], ..usual(Family::Qwen3Moe) }),
        ("qwen3next", usual(Family::Qwen3Next)),
        ("qwen3next without a head", Tiny { mtp: false, ..usual(Family::Qwen3Next) }),
        ("qwen35", usual(Family::Qwen35)),
        ("qwen35moe", usual(Family::Qwen35Moe)),
        ("lfm2", Tiny { tied: true, ..usual(Family::Lfm2) }),
        ("granite", granite.clone()),
        ("lfm2moe", Tiny { tied: true, dense_layers: vec![0], ..usual(Family::Lfm2Moe) }),
        ("nemotron_h_moe", Tiny { layers: 6, conv_bias: true, ..usual(Family::NemotronH) }),
        ("lfm2 with biases", Tiny { conv_bias: true, ..usual(Family::Lfm2) }),
        ("gemma3", Tiny { gemma: gemma3, ..usual(Family::Gemma3) }),
        ("gemma4 E", gemma(e)),
        ("gemma4 MoE", gemma(moe)),
    ]
}

/// The published folder and the same as a GGUF file.
fn both(tiny: &Tiny, change: impl Fn(&Path, GgufFile) -> GgufFile) -> [tempfile::TempDir; 2] {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [published, gguf] = folders.each_ref().map(tempfile::TempDir::path);
    tiny.write(published);
    change(published, converted(tiny, published)).write(&gguf.join("model.gguf"));
    folders
}

fn settings() -> Settings {
    let speculation = Speculation::mtp(3);
    let (context, prefill_chunk, kv) = (96, 16, DType::F32);
    Settings { context, prefill_chunk, speculation, kv, ..Settings::default() }
}

fn engine_of(path: &Path) -> Engine<ModelRunner> {
    Engine::new(runner(path, Device::Tuned, &settings()))
}

/// Tokens and receipt of an answer with drafts: both depend on every bit of a head.
fn told(mut engine: Engine<ModelRunner>, vocabulary: usize) -> Vec<Event> {
    let depth = Depth::Fixed(3);
    let request = Request { depth, ..Request::greedy(babble(20, vocabulary), 30) };
    engine.submit(request).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    events
}

/// Takes the scaling of ropes out of a config.
fn unscaled(folder: &Path) {
    let path = folder.join("config.json");
    let text = std::fs::read(&path).expect("a config");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["rope_scaling"] = Value::Null;
    std::fs::write(path, config.to_string()).expect("written");
}

#[test]
fn a_translated_file_gives_the_bits_of_the_published_form() {
    for (name, tiny) in shapes() {
        let folders = both(&tiny, |published, file| {
            // Stored factors cannot say Llama's rule to the bit; see below.
            if tiny.family == Family::Llama {
                unscaled(published);
            }
            file
        });
        let [published, gguf] = folders.each_ref().map(tempfile::TempDir::path);
        let tokens = babble(40, tiny.vocabulary);
        let expected = score(&mut engine_of(published), &tokens);
        assert_same_bits(name, &expected, &score(&mut engine_of(gguf), &tokens));
        let [ours, theirs] = [gguf, published].map(|path| told(engine_of(path), tiny.vocabulary));
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{name}");
        let drafted =
            matches!(ours.last(), Some(Event::Finished { receipt, .. }) if receipt.drafted > 0);
        assert_eq!(drafted, tiny.family.is_hybrid() && tiny.mtp, "{name} drafts");
    }
}

#[test]
fn a_file_of_the_head_alone_is_a_drafter() {
    for family in [Family::Qwen3Next, Family::Qwen35, Family::Qwen35Moe] {
        let tiny = usual(family);
        let whole = both(&tiny, |_, file| file);
        let (head, trunk) = (format!("blk.{}.", tiny.layers), usual(family));
        let lost = both(&Tiny { mtp: false, ..trunk }, |_, file| file);
        let alone = both(&tiny, |_, mut file| {
            file.tensors.retain(|tensor| tensor.name.starts_with(&head));
            // Without an embedding, the token list tells how many tokens there are.
            file.with("tokenizer.ggml.tokens", GgufValue::texts(&vec!["x"; tiny.vocabulary]))
        });
        let mut blueprint = Blueprint::open(lost[1].path()).expect("a model");
        assert!(blueprint.spec.drafter.is_none(), "{family:?} lost its head");
        blueprint.attach_drafter(alone[1].path()).expect("a fitting head");
        let ours =
            told(Engine::new(built(&blueprint, Device::Tuned, &settings())), tiny.vocabulary);
        let theirs = told(engine_of(whole[1].path()), tiny.vocabulary);
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"), "{family:?}");
    }
}

#[test]
fn stored_factors_stand_for_llamas_rule() {
    let tiny = usual(Family::Llama);
    // Factor 8 from a context of 64, between waves of 16 and of 64 positions.
    let factor = |i: usize| {
        let inv = 5e5f64.powf(-2.0 * i as f64 / tiny.head_dim as f64);
        let wave = 2.0 * std::f64::consts::PI / inv;
        let smooth = ((64.0 / wave - 1.0) / 3.0).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
    };
    let factors: Vec<f32> = (0..tiny.head_dim / 2).map(factor).collect();
    let tokens = babble(40, tiny.vocabulary);
    let with_factors =
        both(&tiny, |_, file| file.f32s("rope_freqs.weight", &[factors.len() as u64], &factors));
    let without = both(&tiny, |_, file| file);
    let logits = |path: &Path| score(&mut engine_of(path), &tokens);
    let expected = logits(with_factors[0].path());
    assert_close("factors", &expected, &logits(with_factors[1].path()), 1e-4);
    let plain = logits(without[1].path());
    let apart = forerun_testkit::tolerance::worst(&expected, &plain).expect("logits");
    assert!(apart.difference > 0.1, "the rule matters: {apart}");
}
