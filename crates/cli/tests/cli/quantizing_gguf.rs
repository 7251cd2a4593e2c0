//! `forerun quantize` from GGUF files.

use crate::program::{forerun, json, list, stderr, stdout};
use crate::quantizing::{config, files, golden, logits, quantized};
use forerun_base::DType;
use forerun_testkit::tiny::{GgufFile, GgufValue, StoredTensor, safetensors};
use forerun_weights::Checkpoint;
use serde_json::{Value, json as object};
use std::path::Path;
use tempfile::TempDir;

const EIGHT: [&str; 4] = ["--bits", "8", "--group", "32"];

#[test]
fn a_gguf_file_of_the_published_numbers_becomes_the_same_model() {
    let (_a, published, _) = quantized(&golden("qwen3_5"), &EIGHT);
    let (_b, from_gguf, _) = quantized(&golden("gguf_qwen3_5_bf16"), &EIGHT);
    let open = |folder: &str| Checkpoint::open(Path::new(folder)).unwrap();
    let (expected, found) = (open(&published), open(&from_gguf));
    let names: Vec<&str> = expected.names().collect();
    assert_eq!(names, found.names().collect::<Vec<_>>());
    assert!(names.iter().any(|name| name.starts_with("mtp.layers.0.")));
    for name in names {
        let (a, b) = (expected.tensor(name).unwrap(), found.tensor(name).unwrap());
        assert_eq!(a.shape, b.shape, "{name}");
        if a.dtype == b.dtype && !name.ends_with("A_log") {
            assert_eq!(*a.bytes, *b.bytes, "{name}");
            continue;
        }
        // GGUF files keep vectors in F32 and rates as −exp(A_log).
        let [a, b] = [&expected, &found].map(|c| c.values(name, &a.shape).unwrap());
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() <= 0.005 * a.abs().max(1.0), "{name}: {a} and {b}");
        }
    }
}

#[test]
fn the_mtp_head_of_a_gguf_file_is_kept() {
    for name in ["gguf_qwen3_5_q8_0", "gguf_qwen3_5_moe_mxfp4", "gguf_qwen3_next_q8_0"] {
        let (_folder, target, _) = quantized(&golden(name), &EIGHT);
        let report = json(&["inspect", &target]);
        let file = report["mtp"]["file"].as_str().unwrap();
        assert!(Path::new(file).ends_with("mtp/weights.safetensors"), "{name}: {file}");
        let words = ["run", &target, "--raw", "Once", "--draft", "2", "--max-tokens", "8"];
        let answer = json(&[&words[..], &["--temperature", "0", "--ignore-eos"]].concat());
        assert!(answer["speculation"]["drafted"].as_u64().unwrap() > 0, "{name}");
    }
}

#[test]
fn text_becomes_the_same_tokens() {
    let text = "Once upon a time 1234 <|im_end|>\n\n  naïve 你好 e\u{301} I'LL<think>";
    let goldens = ["gguf_llama_q8_0", "gguf_qwen3_5_q8_0", "gguf_gemma4_dense_f16"];
    for name in goldens {
        let source = golden(name);
        let (_folder, target, _) = quantized(&source, &EIGHT);
        let tokens = |model: &str| json(&["tokenize", model, text])["token_ids"].clone();
        assert_eq!(tokens(&source), tokens(&target), "{name}");
        let ids = list(&serde_json::from_value::<Vec<u32>>(tokens(&source)).unwrap());
        let decoded = |model: &str| json(&["tokenize", model, "--decode", &ids])["text"].clone();
        assert_eq!(decoded(&source), decoded(&target), "{name}");
    }
}

#[test]
fn a_text_is_checked_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt").display().to_string();
    std::fs::write(&text, "Once upon a time there was a little fox.").unwrap();
    let options = [&EIGHT[..], &["--check", &text]].concat();
    let (_folder, _, report) = quantized(&golden("gguf_llama_q8_0"), &options);
    let (before, after) = (&report["check"]["before"], &report["check"]["after"]);
    let (before, after) = (before.as_f64().unwrap(), after.as_f64().unwrap());
    assert!((after / before - 1.0).abs() < 0.1, "{before} and {after}");
}

/// Published names and GGUF names of a tiny Gemma 3, shapes, and whether it is a norm.
fn gemma_3_tensors() -> Vec<(String, String, Vec<usize>, bool)> {
    let block = [
        ("input_layernorm", "attn_norm", &[64][..]),
        ("self_attn.q_proj", "attn_q", &[64, 64]),
        ("self_attn.k_proj", "attn_k", &[32, 64]),
        ("self_attn.v_proj", "attn_v", &[32, 64]),
        ("self_attn.o_proj", "attn_output", &[64, 64]),
        ("self_attn.q_norm", "attn_q_norm", &[32]),
        ("self_attn.k_norm", "attn_k_norm", &[32]),
        ("post_attention_layernorm", "post_attention_norm", &[64]),
        ("pre_feedforward_layernorm", "ffn_norm", &[64]),
        ("mlp.gate_proj", "ffn_gate", &[96, 64]),
        ("mlp.up_proj", "ffn_up", &[96, 64]),
        ("mlp.down_proj", "ffn_down", &[64, 96]),
        ("post_feedforward_layernorm", "post_ffw_norm", &[64]),
    ];
    let outside = [("embed_tokens", "token_embd", &[40, 64][..]), ("norm", "output_norm", &[64])];
    let named = |prefix: (String, String), (ours, theirs, shape): (&str, &str, &[usize])| {
        let name = format!("model.{}{ours}.weight", prefix.0);
        (name, format!("{}{theirs}.weight", prefix.1), shape.to_vec(), shape.len() == 1)
    };
    let layers = (0..2).flat_map(|i| {
        block.map(|entry| named((format!("layers.{i}."), format!("blk.{i}.")), entry))
    });
    layers.chain(outside.map(|entry| named(Default::default(), entry))).collect()
}

/// Numbers that stay exact when one is added.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 255) as f32 / 512.0 - 0.25;
    (0..count).map(number).collect()
}

fn published_gemma_3(folder: &Path) -> String {
    let tensors: Vec<StoredTensor> = (0..)
        .zip(gemma_3_tensors())
        .map(|(seed, (name, _, shape, _))| {
            let values = numbers(seed, shape.iter().product());
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            StoredTensor { name, dtype: DType::F32, shape, bytes }
        })
        .collect();
    let config = object!({
        "model_type": "gemma3_text", "vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96,
        "query_pre_attn_scalar": 32, "sliding_window": 4, "max_position_embeddings": 128,
        "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), safetensors(&tensors)).unwrap();
    folder.display().to_string()
}

fn gguf_gemma_3(folder: &Path) -> String {
    let count = |key: &str, n: u32| (format!("gemma3.{key}"), GgufValue::U32(n));
    let number = |key: &str, x: f32| (format!("gemma3.{key}"), GgufValue::F32(x));
    let mut file = GgufFile::default().with("general.architecture", GgufValue::text("gemma3"));
    file.metadata.extend([
        count("block_count", 2),
        count("embedding_length", 64),
        count("attention.head_count", 2),
        count("attention.head_count_kv", 1),
        count("attention.key_length", 32),
        count("attention.value_length", 32),
        count("feed_forward_length", 96),
        count("context_length", 128),
        count("attention.sliding_window", 4),
        count("attention.sliding_window_pattern", 2),
        number("attention.layer_norm_rms_epsilon", 1e-6),
        number("rope.freq_base", 1e6),
    ]);
    // A vocabulary whose equal scores no tokenizer.json can tell.
    let mut tokens: Vec<String> =
        ["<unk>", "<s>", "</s>", "a", "b", "ab", "ba"].map(str::to_owned).into();
    tokens.extend((7..40).map(|n| format!("<unused{n}>")));
    let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let kinds: Vec<i32> = [2, 3, 3, 1, 1, 1, 1].into_iter().chain([5; 33]).collect();
    let mut file = file
        .with("tokenizer.ggml.model", GgufValue::text("llama"))
        .with("tokenizer.ggml.tokens", GgufValue::texts(&texts))
        .with("tokenizer.ggml.token_type", GgufValue::i32s(&kinds))
        .with("tokenizer.ggml.scores", GgufValue::f32s(&[-1.0; 40]));
    for (seed, (_, name, shape, is_norm)) in (0..).zip(gemma_3_tensors()) {
        let mut values = numbers(seed, shape.iter().product());
        values.iter_mut().filter(|_| is_norm).for_each(|v| *v += 1.0);
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        file = file.f32s(&name, &shape, &values);
    }
    let path = folder.join("model.gguf");
    file.write(&path);
    path.display().to_string()
}

#[test]
fn gemma_3_keeps_its_norms_from_either_kind_of_file() {
    let folders: [TempDir; 2] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let published = published_gemma_3(folders[0].path());
    let gguf = gguf_gemma_3(folders[1].path());
    let ids = "3,1,39,7,7,20,11,30,2,5";
    let before = logits(&published, ids);
    let mut written = Vec::new();
    for source in [&published, &gguf] {
        let (_folder, target, _) = quantized(source, &EIGHT);
        let after = logits(&target, ids);
        let sum: f32 = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).sum();
        let mean = sum / before.len() as f32;
        assert!(mean < 0.05, "{source}: {mean}");
        assert_eq!(config(&target)["model_type"], "gemma3_text");
        let checkpoint = Checkpoint::open(Path::new(&target)).unwrap();
        let norm = checkpoint.values("model.norm.weight", &[64]).unwrap();
        let seed = gemma_3_tensors().iter().position(|t| t.1 == "output_norm.weight").unwrap();
        assert_eq!(norm, numbers(seed, 64), "{source}");
        written.push(files(&target)["model.safetensors"].clone());
    }
    assert!(written[0] == written[1], "the same numbers give the same file");
}

#[test]
fn a_vocabulary_that_no_file_can_say_is_named_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let source = gguf_gemma_3(folder.path());
    let (_folder, target, report) = quantized(&source, &EIGHT);
    let why = report["no_tokenizer"].as_str().unwrap();
    assert!(why.contains("`ab` and `ba` have the same score"), "{why}");
    let names: Vec<String> = files(&target).into_keys().collect();
    assert!(!names.iter().any(|name| name.starts_with("tokenizer")), "{names:?}");
    let generation: Value =
        serde_json::from_slice(&files(&target)["generation_config.json"]).unwrap();
    assert_eq!(generation["eos_token_id"], object!([2]));
    let again = forerun(&[&["quantize", &source, &target, "--force"], &EIGHT[..]].concat());
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(stdout(&again).contains("no tokenizer.json was written"), "{}", stdout(&again));
}
