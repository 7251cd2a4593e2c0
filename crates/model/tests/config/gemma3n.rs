//! Gemma 3n: what a config leaves unsaid, lists with an entry for each layer, and what is refused.

use crate::{assert_refusals, case, read, with};
use forerun_model::{AltUpSpec, Frame, MlpSpec};
use serde_json::{Value, json};

/// As the E4B model is published, with the defaults of the library left out.
fn gemma3n() -> Value {
    json!({
        "model_type": "gemma3n",
        "text_config": {
            "model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 35,
            "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0
        },
        "image_token_id": 262_145, "audio_token_id": 262_273
    })
}

#[test]
fn defaults_are_the_librarys() {
    let spec = read(&gemma3n());
    let altup = AltUpSpec { streams: 4, active: 0, scaled: true, laurel: 64 };
    assert_eq!((spec.layers[0].frame, spec.altup()), (Frame::AltUp(altup), Some(altup)));
    assert_eq!((spec.vocabulary, spec.logit_cap, spec.tied), (262_400, Some(30.0), true));
    let inputs = spec.per_layer.expect("per-layer inputs");
    assert_eq!((inputs.width, inputs.vocabulary), (256, 262_144));
    let window = |i: usize| spec.layers[i].window();
    assert_eq!([window(0), window(3), window(4)], [Some(512), Some(512), None]);
    let shares = |i: usize| spec.layers[i].mixer.attention().expect("attends").shares;
    assert_eq!([shares(19), shares(20), shares(24)], [None, Some(18), Some(19)]);
    // Of the standard normal distribution 95 % are below 1.645.
    let MlpSpec::Sparse { ffn: 16_384, deviations } = spec.layers[9].mlp else { panic!("sparse") };
    assert!((deviations - 1.644_853_6).abs() < 1e-6);
    assert_eq!(spec.layers[10].mlp, MlpSpec::Dense(16_384));
    assert_eq!(spec.placeholders.tokens, [262_145, 262_273]);
    assert_eq!(read(&with(gemma3n(), "final_logit_softcapping", Value::Null)).logit_cap, None);
}

#[test]
fn lists_have_an_entry_for_each_layer() {
    let widths: Vec<usize> = (0..35).map(|i| 64 + i).collect();
    let shares: Vec<f64> = (0..35).map(|i| if i == 30 { 0.5 } else { 0.0 }).collect();
    let config = with(gemma3n(), "intermediate_size", json!(widths));
    let spec = read(&with(config, "activation_sparsity_pattern", json!(shares)));
    assert_eq!(spec.layers[0].mlp, MlpSpec::Dense(64));
    let MlpSpec::Sparse { ffn: 94, deviations } = spec.layers[30].mlp else { panic!("sparse") };
    assert!(deviations.abs() < 1e-6);
}

#[test]
fn what_the_network_cannot_be_is_refused() {
    let set = |key: &str, value: Value| with(gemma3n(), key, value);
    assert_refusals(vec![
        case(set("activation_sparsity_pattern", json!([0.5])), "activation_sparsity_pattern"),
        case(set("activation_sparsity_pattern", json!(0.5)), "activation_sparsity_pattern"),
        case(set("activation_sparsity_pattern", json!(vec![1.0; 35])), "activation_sparsity"),
        case(set("intermediate_size", json!([64, 64])), "intermediate_size"),
        case(set("intermediate_size", json!(vec![0; 35])), "intermediate_size"),
        case(set("altup_active_idx", json!(4)), "altup_active_idx"),
        case(set("altup_num_inputs", json!(9)), "altup_num_inputs"),
        case(set("num_kv_shared_layers", json!(35)), "num_kv_shared_layers"),
        case(set("num_kv_shared_layers", json!(34)), "num_kv_shared_layers"),
        case(set("hidden_size_per_layer_input", json!(0)), "hidden_size_per_layer_input"),
        case(set("hidden_activation", json!("silu")), "hidden_activation"),
        case(set("layer_types", json!(vec!["linear_attention"; 35])), "linear_attention"),
    ]);
}
