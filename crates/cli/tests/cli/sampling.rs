//! How tokens are chosen where nobody says: by the model's files, and in a chat by defaults.

use crate::program::{bundled, copy_of, forerun, json, stderr, token_ids};
use crate::serving::Serving;
use forerun_testkit::Golden;
use forerun_testkit::tiny::GgufValue;
use serde_json::{Value, json as object};
use std::path::Path;
use tempfile::TempDir;

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

/// A GGUF golden with further metadata, a chat template among it.
fn gguf_with(entries: &[(&str, GgufValue)]) -> TempDir {
    let mut bytes =
        std::fs::read(Golden::open("gguf_qwen3_5_q8_0").checkpoint().join("model.gguf")).unwrap();
    let mut more: Vec<(&str, GgufValue)> = entries.to_vec();
    more.push(("tokenizer.chat_template", GgufValue::text(TEMPLATE)));
    let mut added: Vec<u8> = more.iter().flat_map(|(key, value)| entry(key, value)).collect();
    // Tensors lie at multiples of 32 bytes.
    let pad = |len: usize| entry("test.pad", &GgufValue::text(&"x".repeat(len)));
    let missing = (64 - (added.len() + pad(0).len()) % 32) % 32;
    added.extend(pad(missing));
    let count = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + more.len() as u64 + 1;
    bytes[16..24].copy_from_slice(&count.to_le_bytes());
    bytes.splice(24..24, added);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.gguf"), bytes).unwrap();
    folder
}

fn entry(key: &str, value: &GgufValue) -> Vec<u8> {
    let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
    bytes.extend(key.bytes());
    bytes.extend(value.kind().to_le_bytes());
    match value {
        GgufValue::F32(x) => bytes.extend(x.to_le_bytes()),
        GgufValue::I32(n) => bytes.extend(n.to_le_bytes()),
        GgufValue::Text(text) => {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.bytes());
        }
        other => panic!("{other:?}"),
    }
    bytes
}

fn asked(model: &Path, options: &[&str]) -> Value {
    let model = model.display().to_string();
    json(&[&["run", &model, "hello", "--max-tokens", "24", "--ignore-eos"], options].concat())
}

/// Temperature, top-k, top-p, min-p and where they come from.
fn sampling(report: &Value) -> (Value, Value, Value, Value, Value) {
    let of = |name: &str| report["sampling"][name].clone();
    let source = report["sampling_source"].clone();
    (of("temperature"), of("top_k"), of("top_p"), of("min_p"), source)
}

fn expected(
    [temperature, top_k, top_p, min_p]: [f64; 4],
    source: &str,
) -> (Value, Value, Value, Value, Value) {
    (object!(temperature), object!(top_k as u64), object!(top_p), object!(min_p), source.into())
}

#[test]
fn a_gguf_without_settings_samples_in_chat_and_says_so() {
    let folder = gguf_with(&[]);
    let model = folder.path();
    assert_eq!(sampling(&asked(model, &[])), expected([0.8, 40.0, 0.95, 0.05], "default"));
    let line = |options: &[&str]| {
        let name = model.display().to_string();
        stderr(&forerun(&[&["run", &name, "hello", "--max-tokens", "3"], options].concat()))
    };
    let told = "sampling: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, default";
    assert!(line(&[]).contains(told), "{}", line(&[]));
    for options in [&["--raw"][..], &["--temperature", "0"]] {
        assert!(!line(options).contains("sampling:"), "{options:?}: {}", line(options));
    }
    assert_eq!(sampling(&asked(model, &["--raw"])).0, 0.0);
    assert_eq!(asked(model, &["--raw"])["sampling_source"], "greedy");
    // Two greedy runs are one run; two sampled ones are not.
    let greedy = ["--temperature", "0"];
    assert_eq!(token_ids(&asked(model, &greedy)), token_ids(&asked(model, &greedy)));
    assert_ne!(token_ids(&asked(model, &[])), token_ids(&asked(model, &[])));
    let typed = asked(model, &["--top-k", "7"]);
    assert_eq!(sampling(&typed), expected([0.8, 7.0, 0.95, 0.05], "default"));
}

#[test]
fn a_gguf_is_sampled_as_its_metadata_says() {
    let folder = gguf_with(&[
        ("general.sampling.temp", GgufValue::F32(0.6)),
        ("general.sampling.top_k", GgufValue::I32(20)),
        ("general.sampling.top_p", GgufValue::F32(0.9)),
        ("general.sampling.penalty_repeat", GgufValue::F32(1.25)),
        ("general.sampling.mirostat", GgufValue::I32(2)),
    ]);
    for options in [&[][..], &["--raw"]] {
        let report = asked(folder.path(), options);
        assert_eq!(sampling(&report), expected([0.6, 20.0, 0.9, 0.0], "model"), "{options:?}");
        assert_eq!(report["sampling"]["repetition_penalty"], 1.25);
    }
    let model = folder.path().display().to_string();
    let said = stderr(&forerun(&["run", &model, "hello", "--max-tokens", "2"]));
    assert!(said.contains("`general.sampling.mirostat` is not supported"), "{said}");
    // A copy in another format keeps them.
    let copy = tempfile::tempdir().unwrap();
    let target = copy.path().join("new");
    let name = target.display().to_string();
    json(&["quantize", &model, &name, "--bits", "8", "--group", "32"]);
    let copied = asked(&target, &[]);
    assert_eq!(sampling(&copied), expected([0.6, 20.0, 0.9, 0.0], "model"));
}

#[test]
fn settings_that_make_no_sense_are_named() {
    for (key, value) in [
        ("top_p", GgufValue::F32(1.5)),
        ("min_p", GgufValue::F32(-0.5)),
        ("temp", GgufValue::F32(f32::NAN)),
        ("penalty_repeat", GgufValue::F32(0.0)),
    ] {
        let folder = gguf_with(&[(&format!("general.sampling.{key}"), value)]);
        let model = folder.path().display().to_string();
        let output = forerun(&["run", &model, "hello"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{key}: {said}");
        assert!(said.contains("general.sampling.*"), "{key}: {said}");
    }
}

#[test]
fn a_folder_that_says_do_sample_false_stays_greedy_and_one_that_says_nothing_does_not() {
    let folder = copy_of("llama");
    let file = folder.path().join("generation_config.json");
    for (settings, numbers, source) in [
        (r#"{"eos_token_id": 381, "do_sample": false}"#, [0.0, 0.0, 1.0, 0.0], "greedy"),
        (r#"{"eos_token_id": 381}"#, [0.8, 40.0, 0.95, 0.05], "default"),
        (r#"{"eos_token_id": 381, "temperature": 0.5}"#, [0.5, 0.0, 1.0, 0.0], "model"),
        (r#"{"do_sample": true, "top_k": 9}"#, [1.0, 9.0, 1.0, 0.0], "model"),
    ] {
        std::fs::write(&file, settings).unwrap();
        let report = asked(folder.path(), &[]);
        assert_eq!(sampling(&report), expected(numbers, source), "{settings}");
    }
}

#[test]
fn a_server_samples_as_the_command_line_does() {
    let folder = gguf_with(&[]);
    let model = folder.path().display().to_string();
    let server = Serving::start(&[&model]);
    let chat = |more: Value| {
        let mut body = object!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24,
            "ignore_eos": true, "seed": 11});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"].clone()
    };
    let typed = ["--seed", "11"];
    assert_eq!(chat(object!({})), asked(folder.path(), &typed)["text"]);
    let greedy = asked(folder.path(), &[&typed[..], &["--temperature", "0"]].concat());
    assert_eq!(chat(object!({"temperature": 0})), greedy["text"]);
    assert_ne!(chat(object!({})), greedy["text"]);
    // Text as it stands is greedy for a model that does not ask to sample.
    let body = object!({"prompt": "hello", "max_tokens": 24, "ignore_eos": true, "seed": 11});
    let (_, answer) = server.post("/v1/completions", &body);
    assert_eq!(answer["choices"][0]["text"], asked(folder.path(), &["--raw"])["text"]);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn tiny_temperatures_are_greedy() {
    let words = ["run", &bundled(), "--raw", "Once upon a time", "--max-tokens", "24"];
    let at = |temperature: &str| {
        token_ids(&json(&[&words[..], &["--seed", "3", "--temperature", temperature]].concat()))
    };
    let greedy = at("0");
    for temperature in ["1e-45", "1e-39", "1e-38", "1e-20", "1e-6"] {
        assert_eq!(at(temperature), greedy, "{temperature}");
    }
}
