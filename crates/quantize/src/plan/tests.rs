//! Plans of small checkpoints.

use super::*;
use forerun_model::MlxForm;
use forerun_testkit::tiny::{StoredTensor, safetensors};
use serde_json::{Value, json};

/// A checkpoint of BF16 zeros with these names and shapes.
fn checkpoint(config: &Value, tensors: &[(&str, &[usize])]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let stored: Vec<StoredTensor> = tensors
        .iter()
        .map(|(name, shape)| StoredTensor {
            name: (*name).to_owned(),
            dtype: DType::BF16,
            shape: shape.to_vec(),
            bytes: vec![0; 2 * shape.iter().product::<usize>()],
        })
        .collect();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors(&stored)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn storage(trunk: &'static str) -> StorageForm {
    StorageForm {
        trunk,
        head: None,
        mtp: None,
        tied: true,
        norm_offset: 0.0,
        mtp_norm_offset: 0.0,
        sharing_layers: Vec::new(),
        mlx: MlxForm::default(),
    }
}

fn targets(plan: &CheckpointPlan) -> Vec<&str> {
    plan.jobs.iter().map(|job| job.target.as_str()).collect()
}

#[test]
fn gemma_gets_its_own_names_and_loses_keys_that_layers_borrow() {
    let config = json!({
        "model_type": "gemma4",
        "text_config": {"num_hidden_layers": 2},
    });
    let tensors: &[(&str, &[usize])] = &[
        ("model.language_model.embed_tokens.weight", &[8, 32]),
        ("model.language_model.layers.0.experts.gate_up_proj", &[2, 12, 32]),
        ("model.language_model.layers.0.experts.down_proj", &[2, 32, 6]),
        ("model.language_model.layers.0.layer_scalar", &[1]),
        ("model.language_model.layers.0.router.proj.weight", &[2, 32]),
        ("model.language_model.layers.0.self_attn.k_proj.weight", &[4, 32]),
        ("model.language_model.layers.1.self_attn.k_norm.weight", &[4]),
        ("model.language_model.layers.1.self_attn.k_proj.weight", &[4, 32]),
        ("model.language_model.layers.1.self_attn.q_proj.weight", &[4, 32]),
        ("model.vision_tower.patch.weight", &[4, 4]),
    ];
    let (_folder, checkpoint) = checkpoint(&config, tensors);
    let mlx = MlxForm { nested: true, ..MlxForm::default() };
    let storage = StorageForm { sharing_layers: vec![1], mlx, ..storage("model.language_model") };
    let plan = plan(&checkpoint, &storage).unwrap();
    let layer = "language_model.model.layers";
    let expected = [
        "language_model.model.embed_tokens".to_owned(),
        format!("{layer}.0.experts.switch_glu.down_proj"),
        format!("{layer}.0.experts.switch_glu.gate_proj"),
        format!("{layer}.0.experts.switch_glu.up_proj"),
        format!("{layer}.0.layer_scalar"),
        format!("{layer}.0.router.proj"),
        format!("{layer}.0.self_attn.k_proj"),
        format!("{layer}.1.self_attn.q_proj"),
    ];
    assert_eq!(targets(&plan), expected);
    assert_eq!(plan.dropped, 3);
    let JobSource::Matrix { shape, parts } = &plan.jobs[3].source else { panic!("a matrix") };
    assert_eq!(*shape, [2, 6, 32]);
    assert_eq!(parts[0].rows, [6..12, 18..24], "the second half of each expert is up");
}

#[test]
fn experts_must_be_complete_and_alike() {
    let config = json!({"model_type": "qwen3_moe"});
    let embedding = ("model.embed_tokens.weight", &[8, 32][..]);
    let name = |expert: usize| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
    let cases: [(usize, &[usize], &str); 2] =
        [(2, &[4, 32], "expert 1 is missing"), (1, &[5, 32], "others have [4, 32]")];
    for (second, shape, words) in cases {
        let (first, second) = (name(0), name(second));
        let tensors = [embedding, (&first, &[4, 32][..]), (&second, shape)];
        let (_folder, checkpoint) = checkpoint(&config, &tensors);
        let error = plan(&checkpoint, &storage("model")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_family_whose_form_is_not_written_is_refused_by_name() {
    let config = json!({"model_type": "nemotron_h"});
    let (_folder, checkpoint) = checkpoint(&config, &[("backbone.embeddings.weight", &[8, 32])]);
    let mlx = MlxForm { read_only: Some("nemotron_h"), ..MlxForm::default() };
    let error = plan(&checkpoint, &StorageForm { mlx, ..storage("backbone") }).unwrap_err();
    assert!(error.to_string().contains("nemotron_h"), "{error}");
}

#[test]
fn an_empty_axis_is_refused() {
    let config = json!({"model_type": "qwen3_5_moe"});
    let tensors: &[(&str, &[usize])] = &[
        ("model.embed_tokens.weight", &[8, 32]),
        ("model.layers.0.mlp.experts.gate_up_proj", &[1 << 40, 0, 32]),
    ];
    let (_folder, checkpoint) = checkpoint(&config, tensors);
    let error = plan(&checkpoint, &storage("model")).unwrap_err().to_string();
    assert!(error.contains("gate_up_proj") && error.contains("holds nothing"), "{error}");
}

#[test]
fn rates_become_logarithms_and_nothing_becomes_infinite() {
    let rate = -(0.7f32.exp());
    let log = Change::LogOfNegative.apply(rate).unwrap();
    assert!((log - 0.7).abs() < 1e-6, "{log}");
    for wrong in [0.0, -0.0, 1.0, f32::NAN, f32::NEG_INFINITY] {
        assert_eq!(Change::LogOfNegative.apply(wrong), None, "{wrong}");
    }
    assert_eq!(Change::Add(-1.0).apply(1.25), Some(0.25));
    assert_eq!(Change::add(0.0), Change::Keep);
}
