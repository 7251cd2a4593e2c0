//! LFM2: both spellings of its config.

use crate::{assert_refusals, case, read, with};
use forerun_model::{MixerSpec, MlpSpec, ModelSpec};
use serde_json::{Value, json};

/// As the 1.2B model is published.
fn lfm2() -> Value {
    json!({
        "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0, "max_position_embeddings": 128_000,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_bias": false,
        "block_ff_dim": 12288, "block_auto_adjust_ff_dim": true,
        "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "block_use_swiglu": true,
        "tie_embedding": true
    })
}

fn attending(spec: &ModelSpec) -> Vec<usize> {
    let attends = |i: &usize| spec.layers[*i].mixer.attention().is_some();
    (0..spec.layers.len()).filter(attends).collect()
}

fn width(spec: &ModelSpec) -> usize {
    let MlpSpec::Dense(width) = spec.layers[0].mlp else { panic!("no experts") };
    width
}

#[test]
fn the_published_config_means_what_its_tensors_say() {
    let spec = read(&lfm2());
    assert_eq!(attending(&spec), [2, 5, 8, 10, 12, 14]);
    assert_eq!(width(&spec), 8192);
    assert!(spec.tied && spec.is_recurrent());
    assert_eq!((spec.eps, spec.max_positions), (1e-5, 128_000));
    let attention = spec.layers[2].mixer.attention().expect("attends");
    assert_eq!((attention.head_dim, attention.kv_heads, attention.qk_norm), (64, 8, true));
    let MixerSpec::ShortConv(conv) = &spec.layers[0].mixer else { panic!("convolves") };
    assert_eq!((conv.channels, conv.taps, conv.bias), (2048, 3, false));
}

#[test]
fn layer_types_go_before_indices_and_without_either_all_layers_attend() {
    let types: Vec<&str> =
        (0..16).map(|i| if i == 7 { "full_attention" } else { "conv" }).collect();
    assert_eq!(attending(&read(&with(lfm2(), "layer_types", json!(types)))), [7]);
    let neither = with(lfm2(), "full_attn_idxs", Value::Null);
    assert_eq!(attending(&read(&neither)).len(), 16);
}

#[test]
fn the_width_of_the_mlp_is_adjusted_as_published() {
    let adjusted = |key: &str, value: Value| width(&read(&with(lfm2(), key, value)));
    // Two thirds of 10000 are 6666: rounded up, scaled and rounded up, or left alone.
    assert_eq!(adjusted("block_ff_dim", json!(10_000)), 6912);
    let odd = with(lfm2(), "block_ff_dim", json!(10_000));
    assert_eq!(width(&read(&with(odd.clone(), "block_ffn_dim_multiplier", json!(1.5)))), 10_240);
    assert_eq!(width(&read(&with(odd, "block_ffn_dim_multiplier", Value::Null))), 6666);
    assert_eq!(adjusted("block_multiple_of", json!(1000)), 9000);
    assert_eq!(adjusted("block_auto_adjust_ff_dim", json!(false)), 12_288);
    let newer = with(with(lfm2(), "block_ff_dim", Value::Null), "intermediate_size", json!(3000));
    assert_eq!(width(&read(&newer)), 2048);
}

#[test]
fn either_spelling_of_tied_embeddings_counts() {
    assert!(!read(&with(lfm2(), "tie_embedding", json!(false))).tied);
    let newer = with(lfm2(), "tie_embedding", Value::Null);
    assert!(read(&newer).tied);
    assert!(!read(&with(newer, "tie_word_embeddings", json!(false))).tied);
}

#[test]
fn what_the_network_cannot_be_is_refused() {
    let kinds = |name: &str| json!(vec![name; 16]);
    assert_refusals(vec![
        case(with(lfm2(), "conv_L_cache", json!(1)), "conv_L_cache"),
        case(with(lfm2(), "full_attn_idxs", json!([2, 16])), "full_attn_idxs"),
        case(with(lfm2(), "full_attn_idxs", json!([-1])), "full_attn_idxs"),
        case(with(lfm2(), "full_attn_idxs", json!("2")), "full_attn_idxs"),
        case(with(lfm2(), "layer_types", kinds("mamba")), "mamba"),
        case(with(lfm2(), "layer_types", json!(["conv"])), "layer_types"),
        case(with(lfm2(), "block_use_swiglu", json!(false)), "block_use_swiglu"),
        case(with(lfm2(), "block_ffn_dim_multiplier", json!(1e12)), "block_ff_dim"),
        case(with(lfm2(), "num_attention_heads", json!(7)), "num_"),
        case(with(lfm2(), "norm_eps", json!(0)), "norm_eps"),
    ]);
}

#[test]
fn lfm2_moe_has_experts_behind_its_dense_layers() {
    let config = json!({
        "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048,
        "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 7168,
        "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 32,
        "num_experts_per_tok": 4, "norm_topk_prob": true, "use_expert_bias": true,
        "routed_scaling_factor": 1.5, "conv_L_cache": 3, "norm_eps": 1e-5
    });
    let spec = read(&config);
    assert_eq!(width(&spec), 7168, "taken as it is");
    let MlpSpec::Moe(moe) = &spec.layers[2].mlp else { panic!("experts") };
    assert_eq!((moe.experts, moe.top_k, moe.ffn, moe.shared), (32, 4, 1792, None));
    assert_eq!((moe.router.bias, moe.router.scale), (true, 1.5));
    assert_eq!(moe.router.renormalise, Some(1e-6));
    let all = read(&with(config.clone(), "num_dense_layers", json!(0)));
    assert!(matches!(all.layers[0].mlp, MlpSpec::Moe(_)));
    let plain = read(&with(config, "use_expert_bias", json!(false)));
    assert!(matches!(&plain.layers[3].mlp, MlpSpec::Moe(moe) if !moe.router.bias));
}
