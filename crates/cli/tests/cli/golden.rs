//! The command line against reference implementations.

use crate::program::{bundled, json, list, repository, token_ids};
use forerun_testkit::tolerance::{assert_close, assert_same_bits};
use forerun_testkit::{GOLDENS, Golden};
use forerun_weights::safetensors::parse_header;
use std::path::Path;

/// The `logits` of a file written by `--logits`.
fn read_logits(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let header = parse_header(&bytes, bytes.len() as u64).unwrap();
    let info = &header.tensors["logits"];
    let (words, rest) = bytes[info.range.clone()].as_chunks::<4>();
    assert!(rest.is_empty());
    (info.shape.clone(), words.iter().map(|w| f32::from_le_bytes(*w)).collect())
}

#[test]
fn greedy_continuations_are_those_of_the_reference() {
    for name in GOLDENS {
        let golden = Golden::open(name);
        let folder = golden.checkpoint().display().to_string();
        let ids = list(&golden.tokens("input_ids"));
        let greedy = golden.tokens("greedy.ids");
        let options = ["--ignore-eos", "--temperature", "0", "--max-tokens", "32", "--kv", "f32"];
        let report = json(&[&["run", &folder, "--ids", &ids], &options[..]].concat());
        assert_eq!(token_ids(&report), greedy, "{name}");
        assert_eq!(report["finish_reason"], "length", "{name}");
    }
}

#[test]
fn logits_are_within_the_tolerance_of_the_reference_whatever_the_chunk() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["llama", "qwen3_moe", "qwen3_5", "mlx_qwen3_next_6bit"] {
        let golden = Golden::open(name);
        let model = golden.checkpoint().display().to_string();
        let expected = golden.logits();
        let ids = list(&expected.text);
        let vocabulary = golden.f32("logits").shape[1];
        let mut first: Option<Vec<f32>> = None;
        for chunk in ["512", "16", "7"] {
            let path = folder.path().join("logits.safetensors");
            let file = path.display().to_string();
            let options = ["--kv", "f32", "--prefill-chunk", chunk, "--logits", &file];
            json(&[&["score", &model, "--ids", &ids], &options[..]].concat());
            let (shape, logits) = read_logits(&path);
            assert_eq!(shape, [expected.text.len(), vocabulary], "{name}");
            assert_close(name, &expected.values, &expected.of(&logits), 2e-3);
            match &first {
                None => first = Some(logits),
                Some(first) => assert_same_bits(&format!("{name}, {chunk}"), first, &logits),
            }
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no partial file stays behind");
}

#[test]
fn log_probabilities_follow_from_the_reference_logits() {
    let golden = Golden::open("qwen3_5");
    let ids = golden.tokens("input_ids");
    let model = golden.checkpoint().display().to_string();
    let report = json(&["score", &model, "--ids", &list(&ids), "--kv", "f32"]);
    let logprobs = report["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), ids.len());
    assert!(logprobs[0].is_null(), "nothing comes before the first token");
    let logits = golden.f32("logits");
    assert_eq!(logits.rows(), ids.len(), "this golden keeps every row");
    let mut sum = 0.0;
    for (i, &id) in ids.iter().enumerate().skip(1) {
        let row = logits.row(i - 1);
        let total: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        let expected = f64::from(row[id as usize]) - total.ln();
        let found = logprobs[i].as_f64().unwrap();
        assert!((expected - found).abs() < 2e-3, "token {i}: {expected} and {found}");
        sum += found;
    }
    let perplexity = (-sum / (ids.len() - 1) as f64).exp();
    assert!((report["perplexity"].as_f64().unwrap() / perplexity - 1.0).abs() < 1e-9);
}

#[test]
fn the_bundled_model_tells_the_stories_of_the_reference() {
    let path = repository("crates/cli/tests/data/tales_28m_8bit_greedy.json");
    let stories: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for story in stories.as_array().unwrap() {
        let numbers =
            |key: &str| -> Vec<u32> { serde_json::from_value(story[key].clone()).unwrap() };
        let (ids, greedy) = (list(&numbers("ids")), numbers("greedy"));
        // One of them ends with an end token, which is part of the reference.
        let options = ["--temperature", "0", "--max-tokens", "96", "--kv", "f32"];
        let report = json(&[&["run", &bundled(), "--ids", &ids], &options[..]].concat());
        assert_eq!(token_ids(&report), greedy, "{}", story["prompt"]);
    }
}
