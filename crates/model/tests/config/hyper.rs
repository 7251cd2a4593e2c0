//! Families with several residual streams: Qwen4-Exp and DeepSeek-V4.

use crate::{assert_refusals, case, read, with};
use forerun_backend::op::{Activation, Scores};
use forerun_model::{
    CompressedSpec, Frame, IndexedSpec, MixerSpec, MlpSpec, ModelSpec, NgramSpec, StreamMix,
};
use serde_json::{Value, json};

fn qwen4() -> Value {
    json!({
        "model_type": "qwen4_exp_text", "vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "eos_token_id": [381, 5],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 24,
        "hc_count": 3, "hc_lowrank": 8, "ple_layer_ids": [6, 2], "ngram_size": 3, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 200, "indexer_n_heads": 2, "indexer_kv_heads": 1,
        "indexer_head_dim": 16, "indexer_budget": 16, "indexer_compress_ratio": 4,
        "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"}
    })
}

fn deepseek_v4() -> Value {
    json!({
        "model_type": "deepseek_v4", "vocab_size": 400, "hidden_size": 64, "num_hidden_layers": 5,
        "num_attention_heads": 4, "head_dim": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
        "num_experts_per_tok": 2, "n_routed_experts": 8, "moe_intermediate_size": 32, "o_groups": 2,
        "o_lora_rank": 16, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 6, "hc_mult": 2,
        "sliding_window": 16
    })
}

fn indexed(spec: &ModelSpec, layer: usize) -> Option<&IndexedSpec> {
    match &spec.layers[layer].mixer {
        MixerSpec::Indexed(indexed) => Some(indexed),
        _ => None,
    }
}

fn ngram(spec: &ModelSpec, layer: usize) -> Option<NgramSpec> {
    match spec.layers[layer].frame {
        Frame::Streams(streams) => streams.ngram,
        _ => None,
    }
}

#[test]
fn qwen4_attends_through_an_index_and_embeds_tokens_together() {
    let spec = read(&qwen4());
    let attending: Vec<usize> = (0..8).filter(|&i| indexed(&spec, i).is_some()).collect();
    assert_eq!(attending, [3, 7]);
    let index = indexed(&spec, 3).expect("an index");
    assert_eq!((index.heads, index.head_dim, index.every, index.most), (2, 16, 4, 4));
    assert!(index.attention.gated && index.attention.qk_norm && index.attention.window.is_none());
    let embedding: Vec<usize> = (0..8).filter(|&i| ngram(&spec, i).is_some()).collect();
    assert_eq!(embedding, [1, 5]);
    let [first, second] = [1, 5].map(|i| ngram(&spec, i).expect("an embedding"));
    assert_eq!((first.index, second.index, first.boundary, first.width), (0, 1, 381, 64));
    let Frame::Streams(streams) = spec.layers[0].frame else { panic!("several streams") };
    assert_eq!((streams.count, streams.mix), (3, StreamMix::Gated { rank: 8 }));
    // Published files call such layers by the name of others.
    let types: Vec<&str> =
        (0..8).map(|i| if i == 0 { "full_attention" } else { "linear_attention" }).collect();
    let other = with(with(qwen4(), "layer_types", json!(types)), "ple_layer_ids", Value::Null);
    let other = read(&other);
    assert!(indexed(&other, 0).is_some() && indexed(&other, 3).is_none());
    assert!((0..8).all(|i| ngram(&other, i).is_none()));
}

#[test]
fn what_qwen4_cannot_be_is_refused() {
    let of = |key: &'static str, value: Value| case(with(qwen4(), key, value), key);
    assert_refusals(vec![
        of("hc_count", json!(1)),
        of("indexer_kv_heads", json!(2)),
        of("indexer_head_dim", json!(4)),
        of("indexer_budget", json!(15)),
        of("indexer_compress_ratio", json!(0)),
        of("output_gate_type", json!("sigmoid")),
        of("ple_layer_ids", json!([4])),
        of("ple_layer_ids", json!([9])),
        of("ple_layer_ids", json!([0])),
        of("ple_embed_dim", json!(63)),
        of("ngram_size", json!(9)),
        of("heads_per_ngram", json!(17)),
        of("eos_token_id", Value::Null),
        of("hidden_act", json!("gelu")),
        of("num_experts_per_tok", json!(9)),
        case(
            with(qwen4(), "layer_types", json!(vec!["sliding_attention"; 8])),
            "sliding_attention",
        ),
    ]);
}

fn compressed(spec: &ModelSpec, layer: usize) -> &CompressedSpec {
    match &spec.layers[layer].mixer {
        MixerSpec::Compressed(compressed) => compressed,
        _ => panic!("compressed attention"),
    }
}

/// Positions of each layer's entries, and whether an index chooses.
fn rates(spec: &ModelSpec) -> Vec<Option<(usize, bool)>> {
    let rate = |i| compressed(spec, i).compress.map(|c| (c.every, c.index.is_some()));
    (0..spec.layers.len()).map(rate).collect()
}

#[test]
fn deepseek_v4_compresses_as_either_spelling_says() {
    let (heavy, sparse) = (Some((128, false)), Some((4, true)));
    let spec = read(&deepseek_v4());
    assert_eq!(rates(&spec), [heavy, heavy, heavy, sparse, heavy]);
    let ratios = read(&with(deepseek_v4(), "compress_ratios", json!([0, 4, 128, 4, 0, 0])));
    assert_eq!(rates(&ratios), [None, sparse, heavy, sparse, None]);
    let types = json!([
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "sliding_attention"
    ]);
    let named = with(deepseek_v4(), "layer_types", types);
    let given = json!({"compressed_sparse_attention": 8, "heavily_compressed_attention": 32});
    let named = with(named, "compress_rates", given);
    let sparse = Some((8, true));
    assert_eq!(rates(&read(&named)), [None, sparse, Some((32, false)), sparse, None]);
    assert!(compressed(&spec, 3).compress.is_some_and(|compress| compress.overlaps));
    assert_eq!((compressed(&ratios, 0).rope, compressed(&ratios, 1).rope), (0, 1));
}

#[test]
fn deepseek_v4_has_two_ropes_and_stretches_one() {
    let spec = read(&deepseek_v4());
    assert_eq!([spec.ropes[0].rotary, spec.ropes[1].rotary], [8, 8]);
    assert!(spec.ropes[0].inv_freq[1] > spec.ropes[1].inv_freq[1]);
    let yarn = json!({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64});
    let stretched = read(&with(deepseek_v4(), "rope_scaling", yarn));
    assert_eq!(stretched.ropes[0], spec.ropes[0]);
    assert!(stretched.ropes[1].inv_freq[3] < spec.ropes[1].inv_freq[3]);
    assert_eq!(stretched.ropes[1].scale, 1.0);
    let section = |theta: f64| json!({"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.25});
    let both = json!({"main": section(1e4), "compress": section(160_000.0)});
    assert_eq!(read(&with(deepseek_v4(), "rope_parameters", both)).ropes, spec.ropes);
}

#[test]
fn deepseek_v4_chooses_experts_by_token_in_the_first_layers() {
    let spec = read(&deepseek_v4());
    let hashed = |spec: &ModelSpec| -> Vec<bool> {
        spec.layers.iter().map(|layer| matches!(layer.mlp, MlpSpec::Hashed(_))).collect()
    };
    assert_eq!(hashed(&spec), [true, true, true, false, false]);
    let MlpSpec::Moe(moe) = &spec.layers[4].mlp else { panic!("experts") };
    assert_eq!(
        (moe.router.scores, moe.router.bias, moe.router.scale),
        (Scores::SqrtSoftplus, true, 1.5)
    );
    assert_eq!(spec.activation, Activation::ClampedSilu { limit: 10.0 });
    let one = read(&with(deepseek_v4(), "num_hash_layers", json!(1)));
    assert_eq!(hashed(&one), [true, false, false, false, false]);
    let types = json!(["moe", "moe", "hash_moe", "moe", "moe"]);
    let named = read(&with(deepseek_v4(), "mlp_layer_types", types));
    assert_eq!(hashed(&named), [false, false, true, false, false]);
}

#[test]
fn what_deepseek_v4_cannot_be_is_refused() {
    let of = |key: &'static str, value: Value| case(with(deepseek_v4(), key, value), key);
    assert_refusals(vec![
        of("num_key_value_heads", json!(2)),
        of("scoring_func", json!("tanh")),
        of("n_shared_experts", json!(2)),
        of("norm_topk_prob", json!(false)),
        of("attention_bias", json!(true)),
        of("o_groups", json!(3)),
        of("hc_mult", json!(17)),
        of("compress_ratios", json!([0, 4])),
        of("compress_ratios", json!([0, 4, 5, 4, 4])),
        of("mlp_layer_types", json!(["moe"])),
        of("mlp_layer_types", json!(["moe", "dense", "moe", "moe", "moe"])),
        of("layer_types", json!(vec!["full_attention"; 5])),
        of("num_experts_per_tok", json!(9)),
        of("swiglu_limit", json!(0)),
    ]);
}
