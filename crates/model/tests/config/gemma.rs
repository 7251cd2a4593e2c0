//! Gemma 3 and 4.

use crate::{assert_refusals, case, read, with};
use forerun_backend::op::Activation;
use forerun_model::{
    AttentionSpec, Frame, MixerSpec, MlpSpec, ModelSpec, RopeRule, RopeSpec, RouterSpec, Values,
};
use serde_json::{Value, json};

/// The 4B model as published: most keys are left to the library's defaults.
pub(crate) fn gemma3() -> Value {
    json!({
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
        }
    })
}

pub(crate) fn gemma4_e() -> Value {
    json!({
        "model_type": "gemma4", "image_token_id": 392, "audio_token_id": 396,
        "text_config": {
            "vocab_size": 400, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                "full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
            "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 380,
            "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                    "partial_rotary_factor": 0.25}
            }
        }
    })
}

pub(crate) fn gemma4_moe() -> Value {
    let mut config = gemma4_e();
    let text = &mut config["text_config"];
    for (key, value) in [
        ("num_kv_shared_layers", json!(0)),
        ("hidden_size_per_layer_input", json!(0)),
        ("attention_k_eq_v", json!(true)),
        ("num_global_key_value_heads", json!(1)),
        ("enable_moe_block", json!(true)),
        ("num_experts", json!(8)),
        ("top_k_experts", json!(3)),
        ("moe_intermediate_size", json!(24)),
    ] {
        text[key] = value;
    }
    config
}

fn attention(spec: &ModelSpec, layer: usize) -> &AttentionSpec {
    match &spec.layers[layer].mixer {
        MixerSpec::Attention(attention) => attention,
        _ => panic!("layer {layer} does not attend"),
    }
}

fn whole_layers(spec: &ModelSpec) -> Vec<usize> {
    (0..spec.layers.len()).filter(|&i| spec.layers[i].window().is_none()).collect()
}

#[test]
fn gemma3_takes_the_librarys_defaults() {
    let spec = read(&gemma3());
    assert_eq!((spec.vocabulary, spec.hidden, spec.max_positions), (262_208, 2560, 131_072));
    assert_eq!((spec.eps, spec.tied, spec.logit_cap), (1e-6, true, None));
    assert_eq!(spec.embed_scale, 2560f32.sqrt());
    assert_eq!(spec.activation, Activation::GeluTanh);
    assert_eq!(whole_layers(&spec), [5, 11, 17, 23, 29], "every sixth sees everything");
    let windowed = AttentionSpec {
        scale: 1.0 / 16.0,
        qk_norm: true,
        window: Some(1024),
        rope: 0,
        ..AttentionSpec::plain(8, 4, 256)
    };
    assert_eq!(*attention(&spec, 0), windowed);
    assert_eq!(*attention(&spec, 5), AttentionSpec { window: None, rope: 1, ..windowed });
    assert_eq!(spec.layers[0].mlp, MlpSpec::Dense(10240));
    assert_eq!(spec.layers[0].frame, Frame::Sandwich { scaled: false });
    // Only layers that see everything are stretched.
    let stretched = RopeSpec::new(256, 1e6).rescaled(&RopeRule::Linear { factor: 8.0 });
    assert_eq!(spec.ropes, [RopeSpec::new(256, 1e4), stretched]);
}

#[test]
fn gemma3_reads_what_is_said_instead() {
    let mut config = gemma3();
    for (key, value) in [
        ("query_pre_attn_scalar", json!(168)),
        ("sliding_window_pattern", json!(3)),
        ("rope_local_base_freq", json!(5e3)),
        ("rope_theta", json!(2e6)),
        ("head_dim", json!(128)),
        ("final_logit_softcapping", json!(25.0)),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(false)),
    ] {
        config = with(config, key, value);
    }
    let spec = read(&config);
    assert_eq!(whole_layers(&spec)[..3], [2, 5, 8]);
    assert_eq!((spec.logit_cap, spec.tied), (Some(25.0), false));
    let first = attention(&spec, 0);
    assert_eq!(
        (first.scale, first.head_dim, first.bias),
        ((1.0 / 168f64.sqrt()) as f32, 128, true)
    );
    let stretched = RopeSpec::new(128, 2e6).rescaled(&RopeRule::Linear { factor: 8.0 });
    assert_eq!(spec.ropes, [RopeSpec::new(128, 5e3), stretched]);
}

#[test]
fn gemma3_spells_ropes_in_two_ways() {
    let mut config = gemma3();
    let text = config["text_config"].as_object_mut().unwrap();
    text.remove("rope_scaling");
    let new = with(
        config,
        "rope_parameters",
        json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
        }),
    );
    assert_eq!(read(&new).ropes, read(&gemma3()).ropes);
    let other = with(new, "rope_parameters", json!({"full_attention": {"rope_theta": 5e5}}));
    assert_eq!(read(&other).ropes, [RopeSpec::new(256, 1e4), RopeSpec::new(256, 5e5)]);
}

#[test]
fn gemma4_layers_differ_by_kind_and_share_by_kind() {
    let spec = read(&gemma4_e());
    assert_eq!(whole_layers(&spec), [3, 5]);
    let windowed = AttentionSpec {
        scale: 1.0,
        qk_norm: true,
        window: Some(16),
        rope: 0,
        values: Values::Normed,
        ..AttentionSpec::plain(4, 2, 16)
    };
    let whole = AttentionSpec { head_dim: 32, window: None, rope: 1, ..windowed.clone() };
    assert_eq!(*attention(&spec, 2), windowed);
    assert_eq!(*attention(&spec, 3), whole);
    assert_eq!(*attention(&spec, 4), AttentionSpec { shares: Some(2), ..windowed });
    assert_eq!(*attention(&spec, 5), AttentionSpec { shares: Some(3), ..whole });
    let widths: Vec<MlpSpec> = spec.layers.iter().map(|layer| layer.mlp.clone()).collect();
    let (narrow, wide) = (MlpSpec::Dense(128), MlpSpec::Dense(256));
    assert_eq!(widths[2..], [narrow.clone(), narrow, wide.clone(), wide]);
    let per_layer = spec.per_layer.expect("per-layer inputs");
    assert_eq!((per_layer.width, per_layer.vocabulary), (32, 380));
    assert_eq!(spec.placeholders.tokens, [392, 396]);
    assert_eq!([392, 396, 391].map(|token| spec.placeholders.read_as(token)), [0, 0, 391]);
    assert_eq!(spec.logit_cap, Some(30.0));
}

#[test]
fn gemma4_makes_values_from_keys_only_where_it_sees_everything() {
    let spec = read(&gemma4_moe());
    assert_eq!((attention(&spec, 0).values, attention(&spec, 0).kv_heads), (Values::Normed, 2));
    assert_eq!((attention(&spec, 3).values, attention(&spec, 3).kv_heads), (Values::FromKeys, 1));
    let MlpSpec::Beside { dense: 128, moe } = &spec.layers[0].mlp else { panic!("no experts") };
    assert_eq!((moe.experts, moe.top_k, moe.ffn), (8, 3, 24));
    assert_eq!(moe.router, RouterSpec::softmax(true));
    assert_eq!(spec.per_layer, None);
    // Without values from keys the other number of heads does not count.
    let spec = read(&with(gemma4_moe(), "attention_k_eq_v", json!(false)));
    assert_eq!(attention(&spec, 3).kv_heads, 2);
}

#[test]
fn gemma4_sees_everything_in_every_sixth_layer_and_the_last() {
    let mut config = gemma4_e();
    let text = config["text_config"].as_object_mut().unwrap();
    for key in ["layer_types", "sliding_window", "head_dim", "global_head_dim", "rope_parameters"] {
        text.remove(key);
    }
    let spec =
        read(&with(with(config, "num_hidden_layers", json!(8)), "num_kv_shared_layers", json!(0)));
    assert_eq!(whole_layers(&spec), [5, 7]);
    assert_eq!((attention(&spec, 0).head_dim, attention(&spec, 5).head_dim), (256, 512));
    assert_eq!(attention(&spec, 0).window, Some(512));
    assert_eq!(spec.ropes, [RopeSpec::new(256, 1e4), RopeSpec::new(512, 1e6)]);
}

#[test]
fn the_last_layer_of_gemma4_sees_everything_whatever_layer_types_says() {
    let (windowed, whole) = ("sliding_attention", "full_attention");
    let types = json!([windowed, windowed, whole, windowed, windowed, windowed]);
    let config =
        with(with(gemma4_e(), "layer_types", types.clone()), "num_kv_shared_layers", json!(0));
    let spec = read(&config);
    assert_eq!(whole_layers(&spec), [2, 5]);
    assert_eq!((attention(&spec, 5).window, attention(&spec, 5).head_dim), (None, 32));
    // Gemma 3 takes its list as it stands.
    let text = gemma3()["text_config"].clone();
    let layers = text["num_hidden_layers"].as_u64().unwrap() as usize;
    let types = json!(vec![windowed; layers]);
    assert_eq!(whole_layers(&read(&with(gemma3(), "layer_types", types))), [0_usize; 0]);
}

#[test]
fn proportional_ropes_spread_over_the_head_and_stop_early() {
    let rope = &read(&gemma4_e()).ropes[1];
    assert_eq!((rope.rotary, rope.rotated_dims()), (32, 8), "a quarter of 32 dims");
    assert_eq!(rope.inv_freq[..4], RopeSpec::new(32, 1e6).inv_freq[..4]);
    assert!(rope.inv_freq[4..].iter().all(|&inv| inv == 0.0), "{:?}", rope.inv_freq);
}

#[test]
fn refusals_name_the_key() {
    let types = |name: &str| json!([name, name, name, name, name, name]);
    assert_refusals(vec![
        case(
            with(gemma3(), "attn_logit_softcapping", json!(50.0)),
            "`text_config.attn_logit_softcapping` = 50.0 is not supported",
        ),
        case(
            with(gemma3(), "use_bidirectional_attention", json!(true)),
            "`text_config.use_bidirectional_attention` = true is not supported",
        ),
        case(
            with(gemma3(), "hidden_activation", json!("gelu")),
            "`text_config.hidden_activation` = \"gelu\" is not supported",
        ),
        case(
            with(gemma3(), "hidden_act", json!("silu")),
            "`text_config.hidden_act` = \"silu\" is not supported",
        ),
        case(
            with(gemma3(), "query_pre_attn_scalar", json!(0)),
            "`text_config.query_pre_attn_scalar` is 0",
        ),
        case(with(gemma3(), "sliding_window", json!(0)), "`text_config.sliding_window` is 0"),
        case(
            with(gemma3(), "_sliding_window_pattern", json!(0)),
            "`text_config._sliding_window_pattern` is 0",
        ),
        case(
            with(gemma4_e(), "attn_logit_softcapping", json!(30.0)),
            "`text_config.attn_logit_softcapping` = 30.0 is not supported",
        ),
        case(
            with(gemma4_e(), "use_bidirectional_attention", json!("all")),
            "`text_config.use_bidirectional_attention` = \"all\" is not supported",
        ),
        case(
            with(gemma4_e(), "layer_types", types("chunked_attention")),
            "`text_config.layer_types` names the unknown mixer `chunked_attention`",
        ),
        case(
            with(gemma4_e(), "num_kv_shared_layers", json!(6)),
            "`text_config.num_kv_shared_layers` is 6 of 6 layers",
        ),
        case(
            with(gemma4_e(), "num_kv_shared_layers", json!(3)),
            "`text_config.num_kv_shared_layers` leaves layer 3 without a layer of its kind to share",
        ),
        case(
            with(gemma4_moe(), "top_k_experts", json!(9)),
            "`text_config.top_k_experts` is 9, more than num_experts = 8",
        ),
        case(
            with(gemma4_moe(), "num_experts", json!(null)),
            "`text_config.num_experts` is missing",
        ),
        case(
            with(gemma4_e(), "final_logit_softcapping", json!(-1.0)),
            "`text_config.final_logit_softcapping` is -1",
        ),
        case(with(gemma4_e(), "pad_token_id", json!(400)), "`text_config.pad_token_id` is 400"),
        case(
            with(gemma4_e(), "attention_bias", json!(true)),
            "`text_config.attention_bias` = true is not supported",
        ),
    ]);
}
