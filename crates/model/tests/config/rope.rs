//! Rules that stretch rotary frequencies.

use crate::gemma::{gemma3, gemma4_e};
use crate::{assert_refusals, case, llama, qwen3_5, read, with};
use forerun_model::{ModelSpec, RopeScale, RopeSpec};
use serde_json::{Value, json};

/// Heads of 128 dims, theta 1e6, and a rope section on top of YaRN times four from 32768.
fn stretched(more: &Value) -> Value {
    let mut section = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768
    });
    let more = more.as_object().expect("an object").clone();
    section.as_object_mut().expect("an object").extend(more);
    let config = with(with(llama(), "head_dim", json!(128)), "rope_theta", json!(1e6));
    with(config, "rope_scaling", section)
}

/// Computed apart from this code, in double precision, by the formulas of transformers' YaRN.
struct Expected {
    more: Value,
    scale: f64,
    /// Some pairs and their frequencies.
    inv_freq: [(usize, f64); 6],
}

fn yarn_cases() -> [Expected; 6] {
    let usual = [
        (1, 0.805_842_187_761_481_9),
        (20, 0.013_335_214_321_633_24),
        (24, 0.005_375_321_490_790_102),
        (32, 0.000_602_941_176_470_588_2),
        (36, 0.000_179_841_155_873_954_23),
        (63, 3.102_344_401_879_299e-7),
    ];
    let scale = 1.138_629_436_111_989;
    [
        Expected { more: json!({}), scale, inv_freq: usual },
        Expected {
            more: json!({"beta_fast": 16, "beta_slow": 2}),
            scale,
            inv_freq: [
                (20, 0.013_335_214_321_633_24),
                (24, 0.005_623_413_251_903_491),
                (28, 0.002_048_004_563_980_520_2),
                (32, 0.000_590_909_090_909_090_9),
                (36, 0.000_134_176_160_181_821_65),
                (40, 4.445_698_525_097_307e-5),
            ],
        },
        Expected {
            more: json!({"truncate": false}),
            scale,
            inv_freq: [
                (20, 0.013_335_214_321_633_24),
                (24, 0.005_517_270_475_134_122_5),
                (28, 0.001_883_502_440_166_115),
                (32, 0.000_607_407_937_879_839_1),
                (36, 0.000_177_344_246_306_840_23),
                (40, 4.445_698_525_097_307e-5),
            ],
        },
        Expected {
            more: json!({"mscale": 1.0, "mscale_all_dim": 0.5}),
            scale: 1.064_821_625_369_571_5,
            inv_freq: usual,
        },
        Expected {
            more: json!({"mscale": 0.707, "mscale_all_dim": 1.0}),
            scale: 0.964_326_914_892_074,
            inv_freq: usual,
        },
        Expected { more: json!({"attention_factor": 1.5}), scale: 1.5, inv_freq: usual },
    ]
}

fn close(found: f32, expected: f64) -> bool {
    (f64::from(found) - expected).abs() <= 2e-6 * expected
}

#[test]
fn yarn_by_config_gives_the_published_frequencies() {
    for Expected { more, scale, inv_freq } in yarn_cases() {
        let rope = read(&stretched(&more)).ropes[0].clone();
        assert!(close(rope.scale, scale), "{more}: {} is not {scale}", rope.scale);
        for (pair, expected) in inv_freq {
            let found = rope.inv_freq[pair];
            assert!(close(found, expected), "{more}, pair {pair}: {found} is not {expected}");
        }
    }
}

#[test]
fn yarn_finds_its_factor_in_the_two_contexts() {
    let mut config = with(stretched(&json!({})), "max_position_embeddings", json!(131_072));
    let said = read(&config).ropes;
    config["rope_scaling"].as_object_mut().unwrap().remove("factor");
    assert_eq!(read(&config).ropes, said);
    // Newer configs say the same in one section.
    let section = stretched(&json!({"rope_theta": 1e6}))["rope_scaling"].clone();
    let mut config = with(with(llama(), "head_dim", json!(128)), "rope_parameters", section);
    config.as_object_mut().unwrap().remove("rope_theta");
    assert_eq!(read(&config).ropes, said);
}

#[test]
fn wrong_rules_are_refused_by_key() {
    let scaling = |value| with(llama(), "rope_scaling", value);
    assert_refusals(vec![
        case(
            scaling(json!({"rope_type": "yarn", "factor": 4.0})),
            "original_max_position_embeddings` is missing",
        ),
        case(stretched(&json!({"factor": 0.0})), "`rope_scaling.factor` is 0"),
        case(stretched(&json!({"beta_slow": -1})), "`rope_scaling.beta_slow` is -1"),
        case(scaling(json!({"rope_type": "linear"})), "`rope_scaling.factor` is missing"),
        case(scaling(json!({"type": "longrope"})), "`rope_scaling.type` = \"longrope\""),
        case(with(llama(), "rope_theta", json!(0.5)), "`rope_theta` is 0.5"),
        case(with(llama(), "partial_rotary_factor", json!(1.5)), "`partial_rotary_factor` is 1.5"),
    ]);
}

fn extended(config: &Value, scale: RopeScale) -> (ModelSpec, ModelSpec) {
    let before = read(config);
    let mut after = before.clone();
    after.extend_context(scale);
    (before, after)
}

#[test]
fn a_longer_context_stretches_layers_that_see_all_of_it() {
    for (config, whole) in [(llama(), 0), (qwen3_5(), 0), (gemma3(), 1), (gemma4_e(), 1)] {
        for scale in [RopeScale::Linear(4.0), RopeScale::Yarn(4.0)] {
            let (before, after) = extended(&config, scale);
            assert_eq!(after.max_positions, 4 * before.max_positions);
            for (i, (near, far)) in before.ropes.iter().zip(&after.ropes).enumerate() {
                assert_eq!(near == far, i != whole, "{}: rope {i}", before.family);
            }
            assert_eq!(after.layers, before.layers);
        }
    }
}

#[test]
fn a_longer_context_equals_the_same_rule_by_config() {
    let config = with(
        with(with(llama(), "head_dim", json!(128)), "rope_theta", json!(1e6)),
        "max_position_embeddings",
        json!(32768),
    );
    let (_, after) = extended(&config, RopeScale::Yarn(4.0));
    assert_eq!(after.ropes, read(&stretched(&json!({}))).ropes);
    assert_eq!(after.max_positions, 131_072);
}

#[test]
fn pairs_that_stand_still_stay_so_in_a_longer_context() {
    let factors: Vec<f64> = (0..16).map(|i| if i < 4 { 1.0 } else { 1e30 }).collect();
    let section = json!({
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "factors", "factors": factors, "rope_theta": 1e6}
    });
    let by_factors = with(gemma4_e(), "rope_parameters", section);
    assert_eq!(read(&by_factors).ropes[1].inv_freq, read(&gemma4_e()).ropes[1].inv_freq);
    for scale in [RopeScale::Linear(2.0), RopeScale::Yarn(2.0)] {
        let (_, proportional) = extended(&gemma4_e(), scale);
        let (_, factors) = extended(&by_factors, scale);
        let expected: &RopeSpec = &proportional.ropes[1];
        assert_eq!(expected.rotated_dims(), 8);
        assert_eq!(factors.ropes[1].inv_freq, expected.inv_freq);
    }
}
