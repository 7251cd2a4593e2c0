//! GGUF files that cannot be run: the error names what is wrong.

use super::families::converted;
use super::{shapes, usual};
use forerun_backend_cpu::plain;
use forerun_model::{Blueprint, Model};
use forerun_testkit::tiny::{Family, GgufFile, GgufValue, Tiny};

fn file(tiny: &Tiny) -> GgufFile {
    let folder = tempfile::tempdir().expect("a folder");
    tiny.write(folder.path());
    converted(tiny, folder.path())
}

/// What is said about a file, when it is opened or when it is loaded.
fn outcome(file: &GgufFile) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let blueprint = Blueprint::open(&path).map_err(|e| e.to_string())?;
    Model::load(&blueprint, &mut plain(), &mut |_| {}).map(|_| ()).map_err(|e| e.to_string())
}

fn refused(file: &GgufFile) -> String {
    outcome(file).expect_err("refused")
}

/// The file with one key set.
fn set(file: &GgufFile, key: &str, value: GgufValue) -> GgufFile {
    let mut file = file.clone();
    file.metadata.retain(|(name, _)| name != key);
    file.with(key, value)
}

fn without(file: &GgufFile, key: &str) -> GgufFile {
    let mut file = file.clone();
    file.metadata.retain(|(name, _)| name != key);
    file
}

#[test]
fn unknown_architectures_are_named() {
    let llama = file(&usual(Family::Llama));
    let error = refused(&set(&llama, "general.architecture", GgufValue::text("mamba9")));
    assert!(error.contains("architecture `mamba9` is not supported"), "{error}");
    assert!(error.contains("qwen35moe"), "what is supported is listed: {error}");
    let error = refused(&without(&llama, "general.architecture"));
    assert!(error.contains("`general.architecture` is missing"), "{error}");
}

#[test]
fn unknown_tensors_are_named() {
    for (family, name) in [
        (Family::Llama, "blk.0.attn_sinks.weight"),
        (Family::Llama, "blk.4.attn_norm.weight"),
        (Family::Llama, "blk.0.ssm_a"),
        (Family::Qwen35, "blk.0.ssm_b.weight"),
        (Family::Qwen35, "blk.6.attn_norm.weight"),
        (Family::Gemma4, "altup_proj.weight"),
    ] {
        let error = refused(&file(&usual(family)).f32s(name, &[1], &[1.0]));
        assert!(error.contains(&format!("tensor `{name}` is not known")), "{error}");
    }
}

#[test]
fn missing_keys_are_named() {
    // What has a default, is read from tensors, or is only a hint.
    let spare = [
        "attention.key_length",
        "attention.layer_norm_epsilon",
        "attention.scale",
        "attention.value_length",
        "attention.head_count_kv",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "attention.shared_kv_layers",
        "attention.sliding_window_pattern",
        "embedding_length_per_layer_input",
        "embedding_scale",
        "expert_group_count",
        "expert_weights_norm",
        "expert_weights_scale",
        "expert_shared_feed_forward_length",
        "final_logit_softcapping",
        "full_attention_interval",
        "feed_forward_length",
        "leading_dense_block_count",
        "logit_scale",
        "nextn_predict_layers",
        "residual_scale",
        "rope.dimension_count",
        "rope.dimension_count_swa",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.type",
        "vocab_size",
    ];
    for (name, tiny) in shapes() {
        let file = file(&tiny);
        for (key, _) in file.metadata.iter().filter(|(key, _)| key != "general.architecture") {
            let (_, short) = key.split_once('.').expect("keys have a prefix");
            // Dense models have no experts, and Nemotron-H has a second name for this.
            let own = match short {
                "expert_count" => name.starts_with("gemma") || name.starts_with("granite"),
                "attention.layer_norm_rms_epsilon" => name.starts_with("nemotron"),
                _ => false,
            };
            if own || spare.contains(&short) {
                continue;
            }
            let error = refused(&without(&file, key));
            assert!(error.contains(&format!("`{key}`")), "{name} without {key}: {error}");
        }
    }
}

#[test]
fn missing_tensors_are_refused() {
    let tiny = usual(Family::Qwen35);
    let whole = file(&tiny);
    for i in 0..whole.tensors.len() {
        let mut part = whole.clone();
        let name = part.tensors.remove(i).name;
        // A head may be tied, and a head's norm may be the model's.
        if ["output.weight", "blk.4.nextn.shared_head_norm.weight"].contains(&name.as_str()) {
            continue;
        }
        assert!(outcome(&part).is_err(), "runs without {name}");
    }
}

#[test]
fn more_than_one_head_is_refused_by_name() {
    let error = refused(&set(
        &file(&usual(Family::Qwen35)),
        "qwen35.nextn_predict_layers",
        GgufValue::U32(2),
    ));
    assert!(error.contains("nextn_predict_layers"), "{error}");
}

/// Counts that only repeat what tensors say, and so are not looked at.
fn unused(tiny: &Tiny, key: &str) -> bool {
    let (_, short) = key.split_once('.').expect("keys have a prefix");
    let all_sparse = tiny.family.is_sparse() && tiny.dense_layers.is_empty();
    match short {
        "full_attention_interval" | "vocab_size" => true,
        "rope.dimension_count_swa" | "attention.value_length_swa" => true,
        "rope.dimension_count" => tiny.family == Family::Gemma4,
        "feed_forward_length" => all_sparse,
        _ => false,
    }
}

/// Every count of every architecture, absurdly large or zero: an error, or a file that runs without it.
#[test]
fn absurd_counts_are_refused() {
    for (name, tiny) in shapes() {
        let file = file(&tiny);
        for (key, value) in &file.metadata {
            if !matches!(value, GgufValue::U32(_)) {
                continue;
            }
            for absurd in [1 << 40, u64::MAX, 1 << 23, 0] {
                let found = outcome(&set(&file, key, GgufValue::U64(absurd)));
                if absurd >= 1 << 40 && !unused(&tiny, key) {
                    assert!(found.is_err(), "{name} runs with {key} = {absurd}");
                }
            }
        }
    }
}
