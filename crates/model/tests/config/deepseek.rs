//! DeepSeek-V3, GLM-4-MoE and Kimi-Linear: latents, experts in groups, decays.

use crate::{assert_refusals, case, read, refused, with};
use forerun_backend::op::{ExpertGroups, Scores};
use forerun_model::{
    DrafterSpec, KdaSpec, LatentSpec, MixerSpec, MlpSpec, ModelSpec, MoeSpec, published_with_mtp,
    spec_from_config,
};
use serde_json::{Value, json};

/// As DeepSeek-V3 is published.
fn deepseek() -> Value {
    json!({
        "model_type": "deepseek_v3", "vocab_size": 129_280, "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "attention_bias": false,
        "first_k_dense_replace": 3, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "moe_layer_freq": 1, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 163_840, "num_nextn_predict_layers": 1, "rope_theta": 10_000,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
    })
}

/// As GLM-4.5-Air is published.
fn glm() -> Value {
    json!({
        "model_type": "glm4_moe", "vocab_size": 151_552, "hidden_size": 4096, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": true,
        "use_qk_norm": false, "partial_rotary_factor": 0.5, "rope_theta": 1_000_000,
        "first_k_dense_replace": 1, "intermediate_size": 10_944, "moe_intermediate_size": 1408,
        "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": true, "routed_scaling_factor": 1.0, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072, "num_nextn_predict_layers": 1
    })
}

/// As Kimi-Linear-48B-A3B is published.
fn kimi() -> Value {
    let full: Vec<usize> = vec![4, 8, 12, 16, 20, 24, 27];
    let kda: Vec<usize> = (1..=27).filter(|i| !full.contains(i)).collect();
    json!({
        "model_type": "kimi_linear", "vocab_size": 163_840, "hidden_size": 2304, "num_hidden_layers": 27,
        "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": null, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": true,
        "first_k_dense_replace": 1, "intermediate_size": 9216, "moe_intermediate_size": 1024,
        "num_experts": 256, "num_shared_experts": 1, "num_experts_per_token": 8, "num_expert_group": 1,
        "topk_group": 1, "moe_renormalize": true, "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 2.446, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "model_max_length": 1_048_576,
        "linear_attn_config": {"full_attn_layers": full, "kda_layers": kda, "head_dim": 128, "num_heads": 32,
            "short_conv_kernel_size": 4}
    })
}

fn latent(spec: &ModelSpec, layer: usize) -> &LatentSpec {
    let MixerSpec::Latent(latent) = &spec.layers[layer].mixer else { panic!("attends to latents") };
    latent
}

fn experts(spec: &ModelSpec, layer: usize) -> &MoeSpec {
    let MlpSpec::Moe(moe) = &spec.layers[layer].mlp else { panic!("has experts") };
    moe
}

#[test]
fn deepseek_means_what_its_tensors_say() {
    let spec = read(&deepseek());
    let attention = latent(&spec, 60);
    let widths = (attention.q_latent, attention.latent, attention.rope_dim, attention.nope);
    assert_eq!(widths, (Some(1536), 512, 64, 128));
    // YaRN over forty times the context sharpens scores by (0.1·ln 40 + 1)².
    let strength = 0.1 * 40_f64.ln() + 1.0;
    let expected = strength * strength / 192_f64.sqrt();
    assert!((f64::from(attention.scale) - expected).abs() < 1e-7, "{}", attention.scale);
    assert_eq!((spec.ropes[0].rotary, spec.ropes[0].scale), (64, 1.0));
    let moe = experts(&spec, 3);
    let groups = ExpertGroups { count: 8, open: 4, ranked_by: 2 };
    assert_eq!((moe.router.groups, moe.router.scores), (Some(groups), Scores::Sigmoid));
    assert_eq!((moe.router.scale, moe.router.renormalise), (2.5, Some(1e-20)));
    assert_eq!(spec.layers[2].mlp, MlpSpec::Dense(18_432));
    assert!(!spec.is_recurrent() && published_with_mtp(&deepseek()));
    let Some(DrafterSpec::Head(head)) = &spec.drafter else { panic!("has a head") };
    assert_eq!(head, &spec.layers[60], "the block behind the last is one like it");
    let without = spec_from_config(&deepseek(), false).expect("read");
    assert_eq!(without.drafter, None);
}

#[test]
fn scores_are_sharpened_only_where_a_rule_says_so() {
    let scale = |config: Value| latent(&read(&config), 0).scale;
    let plain = 1.0 / 192_f32.sqrt();
    assert_eq!(scale(with(deepseek(), "rope_scaling", Value::Null)), plain);
    let named = json!({"rope_type": "default", "rope_theta": 1e4, "mscale_all_dim": 1.0});
    assert_eq!(scale(with(deepseek(), "rope_parameters", named)), plain);
}

#[test]
fn a_query_latent_is_absent_only_where_null_says_so() {
    assert_eq!(latent(&read(&with(deepseek(), "q_lora_rank", Value::Null)), 0).q_latent, None);
    let mut unsaid = deepseek();
    unsaid.as_object_mut().unwrap().remove("q_lora_rank");
    assert_eq!(latent(&read(&unsaid), 0).q_latent, Some(1536));
}

#[test]
fn glm_has_biases_on_its_inputs_alone_and_turns_half_of_a_head() {
    let spec = read(&glm());
    let attention = spec.layers[45].mixer.attention().expect("attends");
    assert!(attention.bias && attention.bare_out && !attention.qk_norm);
    assert_eq!((spec.ropes[0].rotary, spec.eps), (64, 1e-5));
    assert_eq!(experts(&spec, 1).router.groups, None);
    let mut unsaid = glm();
    unsaid.as_object_mut().unwrap().remove("partial_rotary_factor");
    assert_eq!(read(&unsaid).ropes[0].rotary, 64);
}

#[test]
fn kimi_counts_its_layers_from_one() {
    let spec = read(&kimi());
    let attends = |i: &usize| matches!(spec.layers[*i].mixer, MixerSpec::Latent(_));
    let full: Vec<usize> = (0..27).filter(attends).collect();
    assert_eq!(full, [3, 7, 11, 15, 19, 23, 26]);
    let attention = latent(&spec, 3);
    assert_eq!((attention.q_latent, attention.rope, attention.interleaved), (None, None, false));
    let MixerSpec::Kda(kda) = &spec.layers[0].mixer else { panic!("decays") };
    assert_eq!(kda, &KdaSpec { heads: 32, dim: 128, taps: 4 });
    assert_eq!(spec.layers[0].mlp, MlpSpec::Dense(9216));
    assert_eq!((experts(&spec, 1).experts, spec.max_positions), (256, 1 << 20));
    assert!(spec.is_recurrent() && spec.ropes.is_empty() && spec.drafter.is_none());
}

#[test]
fn what_these_networks_cannot_be_is_refused() {
    let kimi_with = |key: &str, list: Value| {
        let mut config = kimi();
        config["linear_attn_config"][key] = list;
        config
    };
    assert_refusals(vec![
        case(with(deepseek(), "scoring_func", json!("softmax")), "`scoring_func` = \"softmax\""),
        case(with(deepseek(), "topk_method", json!("greedy")), "`topk_method` = \"greedy\""),
        case(with(deepseek(), "moe_layer_freq", json!(2)), "`moe_layer_freq` = 2"),
        case(with(deepseek(), "num_key_value_heads", json!(8)), "num_key_value_heads"),
        case(with(deepseek(), "partial_rotary_factor", json!(0.5)), "partial_rotary_factor"),
        case(with(deepseek(), "n_group", json!(7)), "n_group"),
        case(with(deepseek(), "topk_group", json!(9)), "topk_group"),
        case(with(deepseek(), "num_experts_per_tok", json!(257)), "num_experts_per_tok"),
        case(with(glm(), "hidden_act", json!("gelu")), "hidden_act"),
        case(with(glm(), "num_key_value_heads", json!(7)), "num_key_value_heads"),
        case(with(kimi(), "mla_use_nope", json!(false)), "`mla_use_nope` = false"),
        case(
            with(kimi(), "moe_router_activation_func", json!("softmax")),
            "moe_router_activation_func",
        ),
        case(kimi_with("full_attn_layers", json!([0])), "full_attn_layers"),
        case(kimi_with("kda_layers", json!([1])), "leave a layer out"),
        case(kimi_with("short_conv_kernel_size", json!(1)), "linear_conv_kernel_dim"),
        case(with(kimi(), "mlp_layer_types", json!(["sparse"])), "mlp_layer_types"),
    ]);
    assert!(refused(&with(kimi(), "layer_types", json!(["full_attention"]))).contains("1 entries"));
}
