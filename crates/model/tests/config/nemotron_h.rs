//! Nemotron-H: blocks of one part, by name and by letter.

use crate::{assert_refusals, case, read, with};
use forerun_backend::op::{Activation, ExpertGroups};
use forerun_model::{MixerSpec, MlpSpec};
use serde_json::{Value, json};

fn nemotron() -> Value {
    json!({
        "model_type": "nemotron_h", "vocab_size": 131_072, "hidden_size": 2688,
        "num_hidden_layers": 5, "hybrid_override_pattern": "ME*-M",
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
        "conv_kernel": 4, "use_conv_bias": true, "use_bias": false, "mlp_hidden_act": "relu2",
        "intermediate_size": 1856, "n_routed_experts": 128, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false, "sliding_window": null
    })
}

#[test]
fn a_block_is_a_mixer_or_an_mlp() {
    let names = json!(["linear_attention", "moe", "full_attention", "mlp", "mamba"]);
    for config in [nemotron(), with(nemotron(), "layers_block_type", names)] {
        let spec = read(&config);
        assert_eq!(spec.activation, Activation::Relu);
        assert!(matches!(&spec.layers[0].mixer, MixerSpec::Scan(scan) if scan.norms == 8));
        assert_eq!(spec.layers[0].mlp, MlpSpec::None);
        assert_eq!(spec.layers[2].mixer.attention().map(|a| a.head_dim), Some(128));
        assert_eq!(spec.layers[3].mixer, MixerSpec::None);
        assert_eq!(spec.layers[3].mlp, MlpSpec::Dense(1856));
        let MlpSpec::Moe(moe) = &spec.layers[1].mlp else { panic!("experts") };
        assert_eq!((moe.router.bias, moe.router.scale, moe.router.groups), (true, 2.5, None));
        assert_eq!(moe.shared.map(|shared| shared.width), Some(3712));
        assert_eq!(spec.ropes[0].rotated_dims(), 0);
    }
}

#[test]
fn groups_of_experts_are_ranked_by_their_two_best() {
    let config = with(with(nemotron(), "n_group", json!(8)), "topk_group", json!(3));
    let MlpSpec::Moe(moe) = &read(&config).layers[1].mlp else { panic!("experts") };
    assert_eq!(moe.router.groups, Some(ExpertGroups { count: 8, open: 3, ranked_by: 2 }));
}

#[test]
fn what_is_not_done_is_refused_by_key() {
    let changed = |key: &str, value: Value| with(nemotron(), key, value);
    assert_refusals(vec![
        case(changed("mlp_hidden_act", json!("silu")), "mlp_hidden_act"),
        case(changed("mlp_bias", json!(true)), "mlp_bias"),
        case(changed("attention_bias", json!(true)), "attention_bias"),
        case(changed("sliding_window", json!(512)), "sliding_window"),
        case(changed("moe_latent_size", json!(64)), "moe_latent_size"),
        case(changed("hybrid_override_pattern", json!("MX")), "hybrid_override_pattern"),
        case(changed("hybrid_override_pattern", Value::Null), "hybrid_override_pattern"),
        case(changed("layers_block_type", json!(["ring"])), "layers_block_type"),
        case(changed("num_hidden_layers", json!(4)), "num_hidden_layers"),
        case(changed("n_groups", json!(7)), "n_groups"),
        case(changed("n_group", json!(7)), "n_group"),
        case(changed("topk_group", json!(2)), "topk_group"),
        case(changed("num_experts_per_tok", json!(129)), "num_experts_per_tok"),
    ]);
}
