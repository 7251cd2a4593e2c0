//! Granite 4: factors, layers, steps, experts or none.

use crate::{assert_refusals, case, read, with};
use forerun_model::{MixerSpec, MlpSpec};
use serde_json::{Value, json};

/// As the hybrid with experts of 7B is published, with fewer layers.
fn granite() -> Value {
    json!({
        "model_type": "granitemoehybrid", "vocab_size": 100_352, "hidden_size": 1536,
        "num_hidden_layers": 6, "num_attention_heads": 12, "num_key_value_heads": 4,
        "intermediate_size": 512, "shared_intermediate_size": 1024, "hidden_act": "silu",
        "num_local_experts": 64, "num_experts_per_tok": 6, "rms_norm_eps": 1e-5,
        "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention"],
        "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false,
        "position_embedding_type": "nope", "tie_word_embeddings": true,
        "embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 6,
        "attention_multiplier": 0.0078125, "max_position_embeddings": 131_072
    })
}

#[test]
fn factors_go_where_nothing_has_to_be_computed_for_them() {
    let spec = read(&granite());
    let residual = 0.22f32;
    assert_eq!(spec.eps, 1e-5 / (residual * residual), "the norm of a stream divided by it");
    assert_eq!(spec.embed_scale, 12.0 / residual);
    assert_eq!(spec.logit_scale, 1.0 / 6.0);
    let attention = spec.layers[5].mixer.attention().expect("attends");
    assert_eq!((attention.scale, attention.head_dim), (0.007_812_5, 128));
    assert_eq!(spec.ropes[0].rotated_dims(), 0);
    let MixerSpec::Scan(scan) = &spec.layers[0].mixer else { panic!("scans") };
    assert_eq!((scan.eps, scan.norms, scan.taps), (1e-5, 1, 4), "its own norm keeps its eps");
    assert_eq!((scan.shape.heads, scan.shape.width, scan.shape.state), (48, 64, 128));
    assert_eq!(scan.limits, [0.0, f32::INFINITY]);
    assert!(spec.is_recurrent() && spec.tied);
}

#[test]
fn steps_are_limited_as_either_spelling_says() {
    let limits = |value: Value| {
        let spec = read(&with(granite(), "time_step_limit", value));
        let MixerSpec::Scan(scan) = &spec.layers[0].mixer else { panic!("scans") };
        scan.limits
    };
    assert_eq!(limits(json!([0.0, {"__float__": "Infinity"}])), [0.0, f32::INFINITY]);
    // A bare `Infinity` in a file is read as null.
    assert_eq!(limits(json!([0.0, null])), [0.0, f32::INFINITY]);
    assert_eq!(limits(json!([0.125, 0.5])), [0.125, 0.5]);
}

#[test]
fn without_experts_the_shared_mlp_is_all() {
    let spec = read(&with(granite(), "num_local_experts", json!(0)));
    assert_eq!(spec.layers[0].mlp, MlpSpec::Dense(1024));
    let MlpSpec::Moe(moe) = &read(&granite()).layers[0].mlp else { panic!("experts") };
    assert_eq!((moe.experts, moe.top_k, moe.ffn), (64, 6, 512));
    assert_eq!(moe.shared.map(|shared| (shared.width, shared.gated)), Some((1024, false)));
    let roped = read(&with(granite(), "position_embedding_type", json!("rope")));
    assert_eq!(roped.ropes[0].rotated_dims(), 128);
}

#[test]
fn what_is_not_done_is_refused_by_key() {
    let changed = |key: &str, value: Value| with(granite(), key, value);
    assert_refusals(vec![
        case(changed("hidden_act", json!("gelu")), "hidden_act"),
        case(changed("position_embedding_type", json!("alibi")), "position_embedding_type"),
        case(changed("layer_types", json!(["mamba"])), "layer_types"),
        case(changed("layer_types", json!(vec!["ring"; 6])), "layer_types"),
        case(changed("mamba_n_heads", json!(47)), "mamba_n_heads"),
        case(changed("mamba_n_groups", json!(5)), "mamba_n_groups"),
        case(changed("mamba_d_conv", json!(1)), "mamba_d_conv"),
        case(changed("residual_multiplier", json!(0.0)), "residual_multiplier"),
        case(changed("logits_scaling", json!(0.0)), "logits_scaling"),
        case(changed("time_step_limit", json!([0.5, 0.25])), "time_step_limit"),
        case(changed("time_step_limit", json!([0.5])), "time_step_limit"),
        case(changed("time_step_limit", json!([null, null])), "time_step_limit"),
        case(changed("num_experts_per_tok", json!(65)), "num_experts_per_tok"),
    ]);
}
