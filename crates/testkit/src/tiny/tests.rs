//! Tiny checkpoints against the golden ones.

use super::*;
use crate::Golden;
use forerun_weights::Checkpoint;
use serde_json::Value;

fn written(tiny: &Tiny) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    tiny.write(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

/// Name, type and shape of every tensor the text model uses.
fn facts(checkpoint: &Checkpoint) -> Vec<(String, DType, Vec<usize>)> {
    checkpoint
        .names()
        .filter(|name| !name.contains("visual"))
        .map(|name| {
            let tensor = checkpoint.tensor(name).unwrap();
            (name.to_owned(), tensor.dtype, tensor.shape)
        })
        .collect()
}

/// The golden checkpoints and the shapes they were made with.
fn golden_shapes() -> Vec<(&'static str, Tiny)> {
    let usual = Tiny::new;
    let gemma = |own: Gemma| Tiny {
        experts: TinyExperts { count: 8, ..usual(Family::Gemma4).experts },
        gemma: Gemma { cap: Some(30.0), ..own },
        ..usual(Family::Gemma4)
    };
    let keys = Gemma { keys_as_values: Some(1), ..Gemma::default() };
    let e = Gemma {
        whole: vec![3, 5],
        sharing: 2,
        double_wide: true,
        per_layer: 32,
        ..Gemma::default()
    };
    let sparse = usual(Family::Qwen3Moe);
    vec![
        ("llama", Tiny { ffn: 160, ..usual(Family::Llama) }),
        ("qwen3", Tiny { ffn: 160, tied: true, ..usual(Family::Qwen3) }),
        (
            "qwen3_moe",
            Tiny { ffn: 160, experts: TinyExperts { count: 8, ..sparse.experts }, ..sparse },
        ),
        ("qwen3_next", Tiny { ffn: 160, ..usual(Family::Qwen3Next) }),
        ("lfm2", usual(Family::Lfm2)),
        (
            "lfm2_moe",
            Tiny { experts: TinyExperts { count: 8, ..sparse.experts }, ..usual(Family::Lfm2Moe) },
        ),
        ("qwen3_5", usual(Family::Qwen35)),
        ("qwen3_5_moe", usual(Family::Qwen35Moe)),
        ("gemma4_dense", gemma(keys.clone())),
        ("gemma4_e", gemma(e)),
        ("gemma4_moe", gemma(Gemma { whole: vec![2, 5], experts: true, ..keys })),
    ]
}

fn golden(name: &str) -> Checkpoint {
    Checkpoint::open(Golden::open(name).checkpoint()).unwrap()
}

/// Every key of ours is there and says the same.
fn assert_keys(name: &str, ours: &Value, theirs: &Value) {
    for (key, value) in ours.as_object().unwrap() {
        if key == "text_config" {
            assert_keys(name, value, &theirs[key]);
        } else {
            assert_eq!(Some(value), theirs.get(key), "{name} {key}");
        }
    }
}

#[test]
fn names_types_and_shapes_are_those_of_the_golden_checkpoints() {
    for (name, shape) in golden_shapes() {
        let (_folder, tiny) = written(&shape);
        assert_eq!(facts(&tiny), facts(&golden(name)), "{name}");
    }
}

#[test]
fn config_keys_are_those_of_the_golden_checkpoints() {
    for (name, shape) in golden_shapes() {
        assert_keys(name, &shape.config(), golden(name).config());
    }
}

#[test]
fn a_drafter_is_stored_as_the_golden_one() {
    let name = "gemma4_assistant";
    let shapes = golden_shapes();
    let (_, target) = shapes.iter().find(|(name, _)| *name == "gemma4_dense").unwrap();
    let (folder, drafter) = (tempfile::tempdir().unwrap(), TinyAssistant::default());
    drafter.write(target, folder.path());
    assert_eq!(facts(&Checkpoint::open(folder.path()).unwrap()), facts(&golden(name)));
    assert_keys(name, &drafter.config(target), golden(name).config());
}

#[test]
fn shards_hold_the_same_values_as_one_file() {
    let one = Tiny { mtp: false, layers: 4, ..Tiny::new(Family::Qwen35) };
    let three = Tiny { shards: 3, ..one.clone() };
    let ((_a, one), (_b, three)) = (written(&one), written(&three));
    assert_eq!(three.files().len(), 3);
    assert_eq!(facts(&one), facts(&three));
    for name in one.names() {
        assert_eq!(*one.tensor(name).unwrap().bytes, *three.tensor(name).unwrap().bytes);
    }
}

#[test]
fn another_seed_gives_other_values() {
    let first = Tiny::new(Family::Qwen3);
    let second = Tiny { seed: 1, ..first.clone() };
    let ((_a, first), (_b, second)) = (written(&first), written(&second));
    let name = "model.layers.0.self_attn.q_proj.weight";
    assert_ne!(*first.tensor(name).unwrap().bytes, *second.tensor(name).unwrap().bytes);
}

#[test]
fn switches_change_what_is_stored() {
    let tiny = Tiny { tied: true, mtp: false, ..Tiny::new(Family::Qwen3Next) };
    let (_folder, checkpoint) = written(&tiny);
    assert!(!checkpoint.contains("lm_head.weight"));
    assert!(checkpoint.names().all(|name| !name.starts_with("mtp.")));
}
