//! OLMo-Hybrid: what a config leaves unsaid, and where positions count.

use crate::{assert_refusals, case, read, with};
use forerun_backend::op::DeltaShape;
use forerun_model::{Frame, MixerSpec};
use serde_json::{Value, json};

/// As the 7B model is published, with the defaults of the library left out.
fn olmo() -> Value {
    json!({
        "model_type": "olmo_hybrid", "vocab_size": 100_352, "hidden_size": 3840,
        "intermediate_size": 11_008, "num_hidden_layers": 32, "num_attention_heads": 30,
        "rope_parameters": {"rope_type": "default", "rope_theta": null}
    })
}

#[test]
fn defaults_are_the_librarys() {
    let spec = read(&olmo());
    let attends: Vec<usize> =
        (0..32).filter(|&i| spec.layers[i].mixer.attention().is_some()).collect();
    assert_eq!(attends, [3, 7, 11, 15, 19, 23, 27, 31]);
    let MixerSpec::Delta(delta) = &spec.layers[0].mixer else { panic!("a delta net") };
    assert_eq!(delta.shape, DeltaShape { key_heads: 30, value_heads: 30, dk: 96, dv: 192 });
    assert_eq!((delta.taps, delta.beta_scale, delta.norm_eps), (4, 2.0, Some(1e-5)));
    assert_eq!((spec.layers[0].frame, spec.layers[3].frame), (Frame::Pre, Frame::Post));
    let attention = spec.layers[3].mixer.attention().expect("attends");
    assert_eq!((attention.kv_heads, attention.head_dim), (30, 128));
    assert!(attention.qk_norm && attention.norm_whole && !spec.tied);
    let few = read(&with(olmo(), "num_hidden_layers", json!(3)));
    assert!(few.layers[2].mixer.attention().is_some(), "the last of a few layers attends");
    let single = with(olmo(), "linear_allow_neg_eigval", json!(false));
    let MixerSpec::Delta(delta) = &read(&single).layers[0].mixer else { panic!("a delta net") };
    assert_eq!(delta.beta_scale, 1.0);
}

#[test]
fn positions_count_unless_the_rope_is_said_to_be_none() {
    let turns = |key: &str, value: Value| {
        let config = with(with(olmo(), "rope_parameters", Value::Null), key, value);
        read(&config).ropes[0].rotated_dims()
    };
    assert_eq!(read(&olmo()).ropes[0].rotated_dims(), 0);
    assert_eq!(turns("rope_parameters", Value::Null), 0);
    assert_eq!(turns("rope_theta", json!(5e5)), 128);
    assert_eq!(turns("rope_parameters", json!({"rope_theta": 1e4})), 128);
    let mut unsaid = olmo();
    unsaid.as_object_mut().expect("an object").remove("rope_parameters");
    assert_eq!(read(&unsaid).ropes[0].rotated_dims(), 128);
}

#[test]
fn what_the_network_cannot_be_is_refused() {
    assert_refusals(vec![
        case(with(olmo(), "hidden_act", json!("gelu")), "hidden_act"),
        case(with(olmo(), "num_key_value_heads", json!(7)), "num_key_value_heads"),
        case(with(olmo(), "linear_num_value_heads", json!(31)), "linear_num_value_heads"),
        case(with(olmo(), "linear_conv_kernel_dim", json!(1)), "linear_conv_kernel_dim"),
        case(with(olmo(), "linear_key_head_dim", json!(0)), "linear_key_head_dim"),
        case(with(olmo(), "layer_types", json!(vec!["mamba"; 32])), "mamba"),
        case(with(olmo(), "num_attention_heads", json!(7)), "num_attention_heads"),
    ]);
}
