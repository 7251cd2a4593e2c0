//! Configs: what they mean, and what they must not do.

mod deepseek;
mod gemma;
mod gemma3n;
mod granite;
mod hyper;
mod lfm2;
mod nemotron_h;
mod olmo_hybrid;
mod rope;

use forerun_model::{MixerSpec, MlpSpec, ModelSpec, published_with_mtp, spec_from_config};
use serde_json::{Value, json};

pub(crate) fn qwen3_5() -> Value {
    json!({
        "model_type": "qwen3_5",
        "text_config": {
            "vocab_size": 400, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"}
        }
    })
}

pub(crate) fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 400, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_theta": 5e5, "rms_norm_eps": 1e-5
    })
}

pub(crate) fn read(config: &Value) -> ModelSpec {
    spec_from_config(config, true).unwrap_or_else(|e| panic!("{e}: {config}"))
}

pub(crate) fn refused(config: &Value) -> String {
    spec_from_config(config, true).expect_err("refused").to_string()
}

/// The config with one key of its text part set.
pub(crate) fn with(mut config: Value, key: &str, value: Value) -> Value {
    let part = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => &mut config,
    };
    part[key] = value;
    config
}

/// A config and a part of what is said about it.
pub(crate) struct Case {
    config: Value,
    expected: &'static str,
}

pub(crate) fn case(config: Value, expected: &'static str) -> Case {
    Case { config, expected }
}

pub(crate) fn assert_refusals(cases: Vec<Case>) {
    for Case { config, expected } in cases {
        let error = refused(&config);
        assert!(error.contains(expected), "expected `{expected}`, got `{error}`");
    }
}

#[test]
fn every_fourth_layer_attends_when_no_types_are_listed() {
    let spec = read(&qwen3_5());
    let attends = |i: usize| matches!(spec.layers[i].mixer, MixerSpec::Attention(_));
    assert_eq!((0..8).filter(|&i| attends(i)).collect::<Vec<_>>(), [3, 7]);
    assert_eq!(spec.ropes[0].rotary, 8);
    assert!(spec.drafter.is_some());
}

#[test]
fn old_and_new_rope_spellings_mean_the_same() {
    let new = json!({"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let mut old = new.clone();
    old.as_object_mut().unwrap().remove("rope_theta");
    let a = read(&with(llama(), "rope_scaling", old));
    let mut config = with(llama(), "rope_parameters", new);
    config.as_object_mut().unwrap().remove("rope_theta");
    assert_eq!(a.ropes, read(&config).ropes);
    assert_ne!(a.ropes, read(&llama()).ropes);
}

#[test]
fn dense_layers_of_a_sparse_model_stay_dense() {
    let config = json!({
        "model_type": "qwen3_moe", "vocab_size": 400, "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 32, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [1],
    });
    let spec = read(&config);
    let sparse = |i: usize| matches!(spec.layers[i].mlp, MlpSpec::Moe(_));
    assert_eq!((0..4).map(sparse).collect::<Vec<_>>(), [true, false, true, true]);
}

#[test]
fn refusals_name_the_key_and_the_value() {
    assert_refusals(vec![
        case(json!({}), "`model_type` is missing"),
        case(json!({"model_type": "mamba9"}), "model_type `mamba9` is not supported"),
        case(
            with(llama(), "hidden_act", json!("gelu")),
            "`hidden_act` = \"gelu\" is not supported",
        ),
        case(with(llama(), "use_sliding_window", json!(true)), "`use_sliding_window` = true"),
        case(with(llama(), "mlp_bias", json!(true)), "`mlp_bias` = true"),
        case(
            with(llama(), "layer_types", json!(["full_attention", "sliding_attention"])),
            "`layer_types` = [\"full_attention\",\"sliding_attention\"] is not supported",
        ),
        case(with(llama(), "hidden_size", json!(-3)), "`hidden_size` is -3"),
        case(with(llama(), "hidden_size", json!("64")), "`hidden_size` is \"64\""),
        case(
            with(llama(), "num_hidden_layers", json!(1_000_000)),
            "`num_hidden_layers` is 1000000",
        ),
        case(with(llama(), "vocab_size", json!(1u64 << 60)), "`vocab_size` is 1152921504606846976"),
        case(with(llama(), "num_key_value_heads", json!(3)), "`num_key_value_heads` is 3"),
        case(
            with(llama(), "rope_scaling", json!({"rope_type": "su"})),
            "`rope_scaling.rope_type` = \"su\" is not supported",
        ),
        case(
            with(qwen3_5(), "layer_types", json!(["full_attention"])),
            "`text_config.layer_types` has 1 entries for 8 layers",
        ),
        case(
            with(qwen3_5(), "mtp_use_dedicated_embeddings", json!(true)),
            "`text_config.mtp_use_dedicated_embeddings` = true is not supported",
        ),
        case(with(qwen3_5(), "head_dim", json!(0)), "`text_config.head_dim` is 0"),
        case(
            with(qwen3_5(), "linear_num_value_heads", json!(3)),
            "`text_config.linear_num_value_heads` is not a multiple",
        ),
    ]);
}

#[test]
fn mutated_configs_give_a_network_or_an_error() {
    let nasty = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1u64 << 62),
        json!(1e308),
        json!(0.3),
        json!(""),
        json!("x"),
        json!([]),
        json!([null, 3, "x"]),
        json!({}),
        json!({"rope_type": 5}),
    ];
    for config in [
        qwen3_5(),
        llama(),
        with(qwen3_5(), "model_type", json!("qwen3_5_moe")),
        gemma::gemma3(),
        gemma::gemma4_e(),
        gemma::gemma4_moe(),
    ] {
        let part = config.get("text_config").unwrap_or(&config);
        let keys: Vec<String> = part.as_object().unwrap().keys().cloned().collect();
        for key in keys {
            for value in &nasty {
                let _ = spec_from_config(&with(config.clone(), &key, value.clone()), true);
            }
        }
    }
}

#[test]
fn configs_tell_who_can_have_a_head() {
    let cases = [
        (json!({ "model_type": "qwen3_next" }), true),
        (json!({ "model_type": "qwen3_5_moe" }), true),
        (json!({ "model_type": "qwen3_5", "text_config": { "mtp_num_hidden_layers": 0 } }), false),
        (json!({ "model_type": "x", "text_config": { "mtp_num_hidden_layers": 1 } }), true),
        (json!({ "model_type": "x", "mtp_num_hidden_layers": 1 }), true),
        (json!({ "model_type": "qwen3" }), false),
        (json!(null), false),
    ];
    for (config, expected) in cases {
        assert_eq!(published_with_mtp(&config), expected, "{config}");
    }
}
