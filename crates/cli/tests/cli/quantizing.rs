//! `forerun quantize`.

use crate::program::{bundled, copy_of, forerun, json, list, stderr, stdout};
use forerun_testkit::Golden;
use forerun_weights::Checkpoint;
use forerun_weights::safetensors::parse_header;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

pub(crate) fn golden(name: &str) -> String {
    Golden::open(name).checkpoint().display().to_string()
}

/// A new model in a folder that did not exist.
pub(crate) fn quantized(source: &str, options: &[&str]) -> (TempDir, String, Value) {
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("new").display().to_string();
    let report = json(&[&["quantize", source, &target], options].concat());
    (parent, target, report)
}

/// Logits of a model on token ids, by `forerun score`.
pub(crate) fn logits(model: &str, ids: &str) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.safetensors").display().to_string();
    json(&["score", model, "--ids", ids, "--kv", "f32", "--logits", &file]);
    let bytes = std::fs::read(&file).unwrap();
    let header = parse_header(&bytes, bytes.len() as u64).unwrap();
    let (words, _) = bytes[header.tensors["logits"].range.clone()].as_chunks::<4>();
    words.iter().map(|w| f32::from_le_bytes(*w)).collect()
}

pub(crate) fn config(model: &str) -> Value {
    let bytes = std::fs::read(Path::new(model).join("config.json")).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

pub(crate) fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = entry.path();
        if path.is_dir() {
            let inside = files(path.to_str().unwrap());
            found.extend(inside.into_iter().map(|(file, b)| (format!("{name}/{file}"), b)));
        } else {
            found.insert(name, std::fs::read(path).unwrap());
        }
    }
    found
}

fn refused(words: &[&str], code: i32, names: &[&str]) {
    let output = forerun(words);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    for name in names {
        assert!(said.contains(name), "{words:?} should name `{name}`: {said}");
    }
}

#[test]
fn eight_bits_stay_close_to_the_source_in_every_family() {
    // Mean differences, twice what was measured. These models are random, so single logits move
    // by units when a router changes its mind; a wrong name, norm or axis moves all of them.
    let cases = [
        ("llama", 0.12),
        ("qwen3", 0.17),
        ("qwen3_fp8", 0.12),
        ("qwen3_moe", 0.14),
        ("qwen3_next", 0.62),
        ("qwen3_5", 0.38),
        ("qwen3_5_moe", 0.6),
        ("mlx_qwen3_5_4bit", 0.35),
        ("mlx_qwen3_next_6bit", 0.8),
        ("mlx_qwen3_moe_mxfp4", 0.13),
        ("gemma4_dense", 0.15),
        ("gemma4_e", 0.14),
        ("gemma4_moe", 0.75),
        ("gguf_gemma4_dense_f16", 0.13),
        ("gguf_gemma4_e_q8_0", 0.14),
        ("gguf_gemma4_moe_q4_0", 0.43),
        ("gguf_llama_q8_0", 0.11),
        ("gguf_qwen3_q4_0", 0.21),
        ("gguf_qwen3_5_bf16", 0.39),
        ("gguf_qwen3_5_q8_0", 0.32),
        ("gguf_qwen3_5_moe_mxfp4", 0.7),
        ("gguf_qwen3_5_wide_q3_k", 0.17),
        ("gguf_qwen3_5_wide_q4_k", 0.18),
        ("gguf_qwen3_next_q8_0", 0.71),
    ];
    for (name, limit) in cases {
        let source = golden(name);
        let (_folder, target, report) = quantized(&source, &["--bits", "8", "--group", "32"]);
        let plain = ["gguf_gemma4_dense_f16", "gguf_qwen3_5_bf16"].contains(&name);
        let packed = ["mlx", "fp8", "gguf"].iter().any(|part| name.contains(part)) && !plain;
        assert_eq!(report["repacked"], packed, "{name}");
        assert_eq!(report["no_tokenizer"], Value::Null, "{name}");
        let ids = list(&Golden::open(name).tokens("input_ids"));
        let (before, after) = (logits(&source, &ids), logits(&target, &ids));
        assert_eq!(before.len(), after.len(), "{name}");
        let sum: f32 = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).sum();
        let mean = sum / before.len() as f32;
        assert!(mean <= limit, "{name}: {mean}");
    }
}

/// Compares with a model that MLX wrote. `other` are ends of the modules that it stores otherwise:
/// with another group, narrowed, or in the default mode.
fn compare_with_mlx(packed: &str, plain: &str, options: &[&str], other: &[&str]) {
    let (_folder, target, _) = quantized(&golden(plain), options);
    let theirs = Checkpoint::open(Golden::open(packed).checkpoint()).unwrap();
    let ours = Checkpoint::open(Path::new(&target)).unwrap();
    let is_other = |name: &str| {
        let module = name.rsplit_once('.').unwrap().0;
        other.iter().any(|end| module.ends_with(end))
    };
    for name in theirs.names().filter(|name| !is_other(name)) {
        let (a, b) = (theirs.tensor(name).unwrap(), ours.tensor(name).unwrap());
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{packed}: {name}");
        assert_eq!(*a.bytes, *b.bytes, "{packed}: {name}");
    }
    let known = |name: &str| theirs.contains(name) || name.starts_with("mtp.") || is_other(name);
    assert_eq!(ours.names().find(|name| !known(name)), None, "{packed}");
}

#[test]
fn files_hold_the_bytes_that_mlx_would_write() {
    let mixed: Vec<&str> = ["*=4", "*.layers.3.*=8", "*lm_head=8", "*in_proj_a=full"]
        .into_iter()
        .flat_map(|keep| ["--keep", keep])
        .chain(["--bits", "4", "--group", "64"])
        .collect();
    compare_with_mlx("mlx_qwen3_5_4bit", "qwen3_5", &mixed, &["linear_attn.norm"]);
    let gates = ["mlp.gate", "shared_expert_gate", "linear_attn.norm"];
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        ("mlx_gemma4_e_4bit", "gemma4_e", "4", &[]),
        ("mlx_gemma4_moe_8bit", "gemma4_moe", "8", &["router.proj"]),
        ("mlx_qwen3_5_moe_4bit", "qwen3_5_moe", "4", &gates),
        ("mlx_qwen3_next_6bit", "qwen3_next", "6", &gates[..2]),
        ("mlx_llama_5bit", "llama", "5", &[]),
        ("mlx_qwen3_3bit", "qwen3", "3", &[]),
    ];
    for (packed, plain, bits, other) in cases {
        let keep = format!("*={bits}");
        let options = ["--bits", bits, "--group", "32", "--keep", &keep];
        compare_with_mlx(packed, plain, &options, other);
    }
    for (packed, plain, mode, other) in [
        ("mlx_qwen3_moe_mxfp4", "qwen3_moe", "mxfp4", &["lm_head"][..]),
        ("mlx_qwen3_mxfp8", "qwen3", "mxfp8", &[]),
        ("mlx_llama_nvfp4", "llama", "nvfp4", &["lm_head"]),
    ] {
        compare_with_mlx(packed, plain, &["--mode", mode], other);
    }
}

#[test]
fn the_mtp_head_drafts_as_well_as_before() {
    let accepted = |model: &str| {
        let options = ["--temperature", "0", "--ignore-eos", "--max-tokens", "96", "--draft", "2"];
        let words = [&["run", model, "--raw", "Once upon a time"], &options[..]].concat();
        let speculation = json(&words)["speculation"].clone();
        let made = speculation["drafted"].as_f64().unwrap();
        speculation["accepted"].as_f64().unwrap() / made
    };
    let before = accepted(&bundled());
    assert!(before > 0.4, "{before}");
    for bits in ["8", "4"] {
        let (_folder, target, _) = quantized(&bundled(), &["--bits", bits]);
        let after = accepted(&target);
        assert!(after > before - 0.15, "{bits} bits: {before} before, {after} after");
    }
}

#[test]
fn the_mtp_head_is_kept_with_its_norms_as_factors() {
    for name in ["qwen3_5", "qwen3_5_moe", "qwen3_next"] {
        let (_folder, target, _) = quantized(&golden(name), &["--bits", "4", "--group", "32"]);
        let report = json(&["inspect", &target]);
        assert_eq!(report["mtp"]["present"], true, "{name}");
        let file = report["mtp"]["file"].as_str().unwrap();
        assert!(Path::new(file).ends_with("mtp/weights.safetensors"), "{name}: {file}");
        let all = files(&target);
        let manifest: Value = serde_json::from_slice(&all["mtp/manifest.json"]).unwrap();
        assert_eq!(manifest["rmsnorm_weight_format"], "mlx_gamma", "{name}");
        let index: Value = serde_json::from_slice(&all["model.safetensors.index.json"]).unwrap();
        let listed = index["weight_map"].as_object().unwrap();
        assert!(!listed.is_empty() && !listed.keys().any(|n| n.contains("mtp.")), "{name}");
        let trunk = &all["model.safetensors"];
        let trunk = parse_header(trunk, trunk.len() as u64).unwrap();
        assert!(trunk.tensors.keys().all(|n| listed.contains_key(n)), "{name}");
        let before = Checkpoint::open(Golden::open(name).checkpoint()).unwrap();
        let after = Checkpoint::open(Path::new(&target)).unwrap();
        let norms: Vec<&str> =
            before.names().filter(|n| n.starts_with("mtp.") && n.contains("norm")).collect();
        assert_eq!(norms.len(), 7, "{name}: {norms:?}");
        for norm in norms {
            let shape = before.tensor(norm).unwrap().shape;
            let old = before.values(norm, &shape).unwrap();
            let new = after.values(norm, &shape).unwrap();
            for (old, new) in old.iter().zip(new) {
                assert!((old + 1.0 - new).abs() < 0.005, "{name}: {norm}: {old} and {new}");
            }
        }
        let (mut old, mut new) = (vec![0.0; 128], vec![0.0; 128]);
        before.matrix("mtp.fc", [64, 128]).unwrap().decode_row(7, &mut old);
        after.matrix("mtp.fc", [64, 128]).unwrap().decode_row(7, &mut new);
        let close = old.iter().zip(&new).all(|(a, b)| (a - b).abs() < 0.005);
        assert!(close, "{name}: {old:?} and {new:?}");
    }
}

#[test]
fn the_config_names_every_module_that_differs() {
    let options = ["--bits", "4", "--group", "32", "--keep", "*.layers.1.mlp.*=full"];
    let (_folder, target, report) = quantized(&golden("qwen3_5_moe"), &options);
    let config = config(&target);
    assert_eq!(config["quantization"], config["quantization_config"]);
    assert_eq!(config["quantization"], report["quantization"]);
    let q = &config["quantization"];
    let affine = |bits: u32| serde_json::json!({"group_size": 32, "bits": bits, "mode": "affine"});
    let layer = "language_model.model.layers.0";
    assert_eq!((&q["bits"], &q["group_size"]), (&4.into(), &32.into()));
    assert_eq!(q[&format!("{layer}.mlp.gate")], affine(8));
    assert_eq!(q[&format!("{layer}.linear_attn.in_proj_a")], affine(8));
    assert_eq!(q[&format!("{layer}.linear_attn.out_proj")], affine(5));
    assert_eq!(q["language_model.lm_head"], affine(6));
    assert_eq!(q["mtp.fc"], affine(8));
    assert_eq!(q["mtp.layers.0.mlp.switch_mlp.up_proj"], affine(8));
    assert_eq!(q["language_model.model.layers.1.mlp.switch_mlp.up_proj"], false);
    // 48 columns do not divide into groups of 32.
    assert_eq!(q[&format!("{layer}.mlp.shared_expert.down_proj")], false);
    assert!(q.get(format!("{layer}.mlp.switch_mlp.up_proj")).is_none());
    let unquantized = report["unquantized"].as_array().unwrap();
    assert!(unquantized.iter().any(|m| m["modules"].as_str().unwrap().contains("shared_expert")));
    assert!(report["bytes_after"].as_u64() < report["bytes_before"].as_u64());
    assert!(report["dropped"].as_u64().unwrap() > 0, "vision tensors are left out");
}

/// A model in many small files whose writing stops at the fifth: the name is taken. 14 are numbered,
/// and the MTP head has one of its own.
fn stopped(folder: &Path, source: &str, words: &[&str]) -> String {
    let target = folder.join("new");
    std::fs::create_dir_all(target.join("model-00005-of-00014.safetensors/in the way")).unwrap();
    let target = target.display().to_string();
    let all = [&["quantize", source, &target, "--force"], words].concat();
    refused(&all, 1, &["model-00005-of-00014.safetensors"]);
    std::fs::remove_dir_all(Path::new(&target).join("model-00005-of-00014.safetensors")).unwrap();
    target
}

const MANY: [&str; 6] = ["--bits", "4", "--group", "32", "--shard-bytes", "24000"];

#[test]
fn an_interrupted_run_goes_on_and_ends_with_the_same_bytes() {
    let source = golden("qwen3_5");
    let (_folder, whole, report) = quantized(&source, &MANY);
    assert_eq!(report["files"], 15, "the name that is taken below counts on it");
    let parent = tempfile::tempdir().unwrap();
    let target = stopped(parent.path(), &source, &MANY);
    assert!(Checkpoint::open(Path::new(&target)).is_err(), "half a model is none");
    let other = ["quantize", &source, &target, "--bits", "3", "--group", "32"];
    refused(&other, 1, &["other settings", "--force"]);
    let report = json(&[&["quantize", &source, &target], &MANY[..]].concat());
    assert_eq!(report["resumed_files"], 4);
    let (expected, found) = (files(&whole), files(&target));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&expected), names(&found));
    assert_eq!(expected, found);
}

#[test]
fn a_damaged_file_of_an_earlier_run_is_written_again() {
    let source = golden("qwen3_5");
    let parent = tempfile::tempdir().unwrap();
    let target = stopped(parent.path(), &source, &MANY);
    let first = Path::new(&target).join("model-00001-of-00014.safetensors");
    let length = std::fs::metadata(&first).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&first).unwrap().set_len(length / 2).unwrap();
    let report = json(&[&["quantize", &source, &target], &MANY[..]].concat());
    assert_eq!(report["resumed_files"], 3);
    json(&["score", &target, "--ids", "1,2,3"]);
}

#[test]
fn a_folder_with_something_in_it_is_touched_only_by_force() {
    let (source, parent) = (golden("llama"), tempfile::tempdir().unwrap());
    let target = parent.path().display().to_string();
    let words = ["quantize", &source, &target, "--bits", "4", "--group", "32"];
    std::fs::write(parent.path().join("notes.txt"), "mine").unwrap();
    refused(&words, 1, &["not empty", "--force"]);
    let forced = [&words[..], &["--force"]].concat();
    json(&forced);
    let before = files(&target);
    assert_eq!(before["notes.txt"], b"mine");
    refused(&words, 1, &["not empty"]);
    // Everything of the old model goes, also what the new one does not have.
    std::fs::write(parent.path().join("chat_template.jinja"), "old").unwrap();
    std::fs::write(parent.path().join("model-mtp.safetensors"), "old").unwrap();
    let mtp = parent.path().join("mtp");
    std::fs::create_dir(&mtp).unwrap();
    for name in ["weights.safetensors", "weights.safetensors.partial", "manifest.json"] {
        std::fs::write(mtp.join(name), "old").unwrap();
    }
    json(&forced);
    assert_eq!(files(&target), before);
    assert!(!mtp.exists(), "an empty folder is left behind");
    // Files of someone else stay, and so does their folder.
    std::fs::create_dir(&mtp).unwrap();
    std::fs::write(mtp.join("notes.txt"), "mine").unwrap();
    json(&forced);
    assert_eq!(files(&target)["mtp/notes.txt"], b"mine");
}

#[test]
fn the_source_is_never_written_to() {
    let copy = copy_of("llama");
    let source = copy.path().display().to_string();
    let before = files(&source);
    let dotted = copy.path().join(".").display().to_string();
    for target in [&source, &dotted] {
        let words = ["quantize", &source, target, "--bits", "4", "--group", "32", "--force"];
        refused(&words, 1, &["the source itself"]);
    }
    assert_eq!(files(&source), before);
}

#[test]
fn a_damaged_source_gives_an_error_and_no_model() {
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("new").display().to_string();
    let copy = copy_of("qwen3_5");
    let source = copy.path().display().to_string();
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let words = ["quantize", &source, &target, "--bits", "4"];
    refused(&words, 1, &["model.safetensors"]);
    assert!(Checkpoint::open(Path::new(&target)).is_err());
    // A number that is none, in the middle of the last weight by name.
    let header = parse_header(&bytes, bytes.len() as u64).unwrap();
    let name = "mtp.layers.0.self_attn.v_proj.weight";
    let mut spoiled = bytes.clone();
    let at = header.tensors[name].range.start;
    spoiled[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, &spoiled).unwrap();
    refused(&words, 1, &["mtp.layers.0.self_attn.v_proj", "not finite"]);
    assert!(Checkpoint::open(Path::new(&target)).is_err());
}

#[test]
fn wishes_that_cannot_be_met_are_named() {
    let (source, parent) = (golden("llama"), tempfile::tempdir().unwrap());
    let target = parent.path().join("new").display().to_string();
    let start = ["quantize", &source, &target];
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&[], 2, &["--bits"]),
        (&["--mode", "affine"], 1, &["--bits"]),
        (&["--bits", "7"], 2, &["--bits", "7"]),
        (&["--bits", "4", "--group", "16"], 2, &["--group"]),
        (&["--mode", "mxfp4", "--bits", "8"], 1, &["mxfp4", "4 bits"]),
        (&["--mode", "nvfp4", "--group", "64"], 1, &["nvfp4", "groups of 16"]),
        (&["--bits", "4", "--keep", "*.nothing=8"], 1, &["*.nothing=8", "no module matches"]),
        (&["--bits", "4", "--keep", "*=7"], 2, &["--keep", "7"]),
        (&["--bits", "4", "--check", "no-such-file"], 1, &["no-such-file"]),
        (&["--bits", "4", "--device", "cpu"], 2, &["--check"]),
    ];
    for &(options, code, names) in cases {
        refused(&[&start[..], options].concat(), code, names);
        assert!(!Path::new(&target).exists(), "{options:?}");
    }
}

#[test]
fn a_text_is_checked_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "Once upon a time there was a little dog. The dog was happy.").unwrap();
    let text = text.display().to_string();
    let (_folder, target, report) =
        quantized(&bundled(), &["--bits", "4", "--check", &text, "--device", "cpu"]);
    let check = &report["check"];
    for (model, key) in [(&bundled(), "before"), (&target, "after")] {
        let score = json(&["score", model, "--file", &text]);
        assert_eq!(score["perplexity"], check[key], "{key}");
        assert_eq!(score["tokens"], check["tokens"]);
    }
    assert_ne!(check["before"], check["after"]);
}

#[test]
fn people_are_told_what_came_out_and_how_to_run_it() {
    let parent = tempfile::tempdir().unwrap();
    let target = parent.path().join("new").display().to_string();
    let output = forerun(&["quantize", &bundled(), &target, "--bits", "4"]);
    let (page, said) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{said}");
    for words in ["bits per weight", "mtp.fc (1)", "forerun run", &target] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(said.contains("decoded and encoded anew"), "{said}");
}
