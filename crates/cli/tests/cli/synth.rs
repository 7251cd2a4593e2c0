//! `forerun synth`: random weights in published shapes.

use crate::program::{bundled, forerun, golden, json, list, stderr, stdout, token_ids};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Small enough to be drawn and run in a moment.
const SMALL: [&str; 6] = ["--layers", "4", "--narrow", "16", "--vocabulary", "8192"];

fn drawn(words: &[&str]) -> (tempfile::TempDir, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("drawn").display().to_string();
    let report = json(&[&["synth", &target], &SMALL[..], words].concat());
    (folder, target, report)
}

fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let file = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    entries.map(file).collect()
}

#[test]
fn a_drawn_folder_is_a_model_that_other_commands_take() {
    for dtype in ["bf16", "fp8", "4bit"] {
        let (_folder, model, report) = drawn(&["--like", "qwen3.5-9b", "--dtype", dtype]);
        assert_eq!((&report["random"], &report["dtype"]), (&true.into(), &dtype.into()));
        assert!(Path::new(&model).join("tokenizer.json").is_file());
        let inspected = json(&["inspect", &model]);
        let stored: u64 = files(&model)
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .map(|(_, bytes)| bytes.len() as u64)
            .sum();
        assert!(stored >= report["bytes"].as_u64().unwrap(), "{inspected}");
        let options = &["--max-tokens", "6", "--temperature", "0"][..];
        for prompt in [&["--ids", "5,6,7,8"][..], &["--prompt", "Once upon a time", "--raw"]] {
            let answer = json(&[&["run", &model], prompt, options].concat());
            let ids = token_ids(&answer);
            assert!(!ids.is_empty() && ids.iter().all(|&id| id < 8192), "{answer}");
        }
        let plain = json(&[&["run", &model, "--ids", "5,6,7", "--draft", "0"], options].concat());
        let drafts = json(&[&["run", &model, "--ids", "5,6,7", "--draft", "3"], options].concat());
        assert_eq!(token_ids(&plain), token_ids(&drafts), "{dtype}");
    }
}

#[test]
fn what_is_drawn_depends_on_the_seed_alone() {
    let like = ["--like", "qwen3.6-35b-a3b", "--dtype", "4bit"];
    let small = ["--layers", "2", "--vocabulary", "512", "--narrow", "8"];
    let draw = |seed: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().display().to_string();
        json(&[&["synth", &target], &small[..], &like[..], seed].concat());
        files(&target)
    };
    let [first, again, other] = [&[][..], &["--seed", "0"], &["--seed", "1"]].map(draw);
    assert!(first == again, "the same command writes the same bytes");
    let weights = first.keys().find(|name| name.ends_with("safetensors")).unwrap();
    assert!(first[weights] != other[weights]);
}

#[test]
fn a_folder_of_its_own_text_can_be_given() {
    let tokenizer = golden("qwen3_5");
    let (_folder, model, _) = drawn(&["--like", "qwen3.5-9b"]);
    let usual = std::fs::read(Path::new(&bundled()).join("tokenizer.json")).unwrap();
    assert!(std::fs::read(Path::new(&model).join("tokenizer.json")).unwrap() == usual);
    let (_folder, model, _) = drawn(&["--like", "qwen3.5-9b", "--tokenizer", &tokenizer]);
    let given = std::fs::read(Path::new(&tokenizer).join("tokenizer.json")).unwrap();
    assert!(std::fs::read(Path::new(&model).join("tokenizer.json")).unwrap() == given);
}

#[test]
fn fields_that_are_not_certain_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out").display().to_string();
    let words = ["synth", &target, "--like", "qwen3.6-35b-a3b", "--narrow", "8"];
    let words = [&words[..], &["--layers", "1", "--vocabulary", "64"]].concat();
    let page = stdout(&forerun(&words));
    assert!(page.contains("random bf16 weights") && page.contains("means nothing"), "{page}");
    assert!(page.contains("assumed, not certain: shared_expert_intermediate_size"), "{page}");
    let refused = forerun(&words);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("is not empty"), "{}", stderr(&refused));
}

#[test]
fn shapes_that_cannot_be_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out").display().to_string();
    for (options, code, word) in [
        (&["--like", "qwen9"][..], 2, "qwen3.6-27b"),
        (&["--like", "qwen3.5-9b", "--layers", "33"], 1, "--layers 33"),
        (&["--like", "qwen3.5-9b", "--narrow", "7"], 1, "--narrow 7"),
        (&["--like", "qwen3.5-9b", "--dtype", "int3"], 2, "bf16, fp8 or 4bit"),
    ] {
        let refused = forerun(&[&["synth", &target], options].concat());
        assert_eq!(refused.status.code(), Some(code), "{options:?}");
        assert!(stderr(&refused).contains(word), "{}", stderr(&refused));
        assert!(!Path::new(&target).exists());
    }
}

#[test]
fn a_bench_without_a_file_runs_the_model_of_the_folder() {
    let (_folder, model, _) = drawn(&["--like", "qwen3.5-9b", "--dtype", "4bit"]);
    let ids = list(&[5, 6, 7, 8]);
    let how = ["--ids", &ids, "--tokens", "6", "--reps", "1", "--read", "9", "--arms", "plain"];
    let stored = json(&[&["bench", &model], &how[..]].concat());
    let shape = [&["synth:qwen3.5-9b", "--dtype", "4bit"], &SMALL[..]].concat();
    let without = json(&[&["bench"], &shape[..], &how].concat());
    assert_eq!(stored["cells"][0]["token_ids"], without["cells"][0]["token_ids"]);
    let name = without["model"].as_str().unwrap();
    assert!(name.starts_with("synth:qwen3.5-9b, random 4bit weights"), "{name}");
}
