//! DeepSeek-V4: attention to a window and to compressed keys, residual streams that mix by balanced weights, experts
//! in every layer, in the first ones by token.

use super::{layer_types, only_silu, tied};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    CompressSpec, CompressedSpec, Frame, IndexSpec, LayerSpec, MixerSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, Placeholders, RopeSpec, RouterSpec, SharedExpertSpec, StreamMix,
    StreamsSpec,
};
use forerun_backend::op::{Activation, Scores, UpdateStreams};
use forerun_weights::{Checkpoint, Renamed, Translation};

/// Which of the model's ropes is which.
const MAIN: usize = 0;
const COMPRESSED: usize = 1;

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    config.only("attention_bias", &[false.into()])?;
    config.only("mlp_bias", &[false.into()])?;
    config.only("num_key_value_heads", &[1.into()])?;
    let count = |key: &str, default: usize| or_else(config, key, default);
    let (hidden, layers) = (config.count("hidden_size")?, config.layers("num_hidden_layers")?);
    let head_dim = count("head_dim", 512)?;
    let mixers = mixers(config, layers, head_dim)?;
    let mlps = mlps(config, layers)?;
    let streams = count("hc_mult", 4)?;
    if streams > UpdateStreams::MOST_MIXED {
        return Err(config.unsupported("hc_mult"));
    }
    let iterations = count("hc_sinkhorn_iters", 20)?;
    if iterations > 1 << 10 {
        return Err(config.unsupported("hc_sinkhorn_iters"));
    }
    let eps = config.positive("hc_eps", Some(1e-6))? as f32;
    let mix = StreamMix::Balanced { iterations, eps };
    let frame = Frame::Streams(StreamsSpec { count: streams, mix, ngram: None });
    let layer = |(mixer, mlp)| LayerSpec { mixer, mlp, frame };
    let limit = config.positive("swiglu_limit", Some(10.0))? as f32;
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(1 << 20).max(1),
        tied: tied(config, config, false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::ClampedSilu { limit },
        ropes: ropes(config, head_dim)?,
        layers: mixers.into_iter().zip(mlps).map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

fn or_else(config: &Config<'_>, key: &str, default: usize) -> Result<usize, ModelError> {
    match config.maybe_count(key)? {
        Some(0) => Err(config.bad(key, "is 0, expected at least 1")),
        found => Ok(found.unwrap_or(default)),
    }
}

/// The rope of layers that see a window alone, and that of the others, of their entries and of their index.
fn ropes(config: &Config<'_>, head_dim: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let fraction = match config.maybe_count("qk_rope_head_dim")? {
        Some(rotary) => rotary as f64 / head_dim as f64,
        None => 64.0 / 512.0,
    };
    let fraction = config.positive("partial_rotary_factor", Some(fraction))?;
    let parameters = config.section("rope_parameters");
    let named = |name: &str| parameters.as_ref().and_then(|all| all.section(name));
    let main = RopeDefaults { theta: 1e4, fraction };
    let theta = config.positive("compress_rope_theta", Some(160_000.0))?;
    let compressed = RopeDefaults { theta, fraction };
    if let (Some(first), Some(second)) = (named("main"), named("compress")) {
        let read =
            |section, defaults| RopeSource::section(config, Some(section)).read(head_dim, defaults);
        return Ok(vec![read(first, main)?, read(second, compressed)?]);
    }
    // One set of parameters is that of compressed keys alone; others turn without a rule.
    let scaling = config.section("rope_scaling").filter(|_| parameters.is_none());
    let rule = parameters.or(scaling);
    let unscaled = RopeSource::section(config, None).read(head_dim, main)?;
    let base = RopeSpec::new(unscaled.rotary, theta);
    let Some(rule) = rule else { return Ok(vec![unscaled, base]) };
    let mut ruled = RopeSource::section(config, Some(rule.clone())).rule_on(base)?;
    if rule.get("attention_factor").is_none() {
        // The published model leaves cosines and sines as they are.
        ruled.scale = 1.0;
    }
    Ok(vec![unscaled, ruled])
}

fn mixers(
    config: &Config<'_>,
    layers: usize,
    head_dim: usize,
) -> Result<Vec<MixerSpec>, ModelError> {
    let count = |key: &str, default: usize| or_else(config, key, default);
    let heads = config.count("num_attention_heads")?;
    let groups = count("o_groups", 8)?;
    if !heads.is_multiple_of(groups) {
        let problem = format!("is {groups}, which does not divide num_attention_heads = {heads}");
        return Err(config.bad("o_groups", problem));
    }
    let rates = config.section("compress_rates");
    let rate = |kind: &str, legacy: &str, default: usize| match config.get(legacy) {
        Some(_) => config.count(legacy),
        None => match &rates {
            Some(rates) => or_else(rates, kind, default),
            None => Ok(default),
        },
    };
    let index = IndexSpec {
        heads: count("index_n_heads", 64)?,
        head_dim: count("index_head_dim", 128)?,
        most: count("index_topk", 512)?,
    };
    let heavy = CompressSpec {
        every: rate("heavily_compressed_attention", "compress_rate_hca", 128)?,
        overlaps: false,
        index: None,
    };
    let sparse = CompressSpec {
        every: rate("compressed_sparse_attention", "compress_rate_csa", 4)?,
        overlaps: true,
        index: Some(index),
    };
    let plain = CompressedSpec {
        heads,
        head_dim,
        q_rank: count("q_lora_rank", 1024)?,
        window: count("sliding_window", 128)?,
        rope: MAIN,
        groups,
        out_rank: count("o_lora_rank", 1024)?,
        compress: None,
    };
    let mixer = |compress: Option<CompressSpec>| {
        let rope = if compress.is_some() { COMPRESSED } else { MAIN };
        MixerSpec::Compressed(CompressedSpec { rope, compress, ..plain.clone() })
    };
    let kinds = compressions(config, layers, [heavy, sparse])?;
    Ok(kinds.into_iter().map(mixer).collect())
}

/// What each layer compresses: as `layer_types` says, or `compress_ratios`, or two of the heavy kind and then both in
/// turn.
fn compressions(
    config: &Config<'_>,
    layers: usize,
    [heavy, sparse]: [CompressSpec; 2],
) -> Result<Vec<Option<CompressSpec>>, ModelError> {
    if let Some(types) = layer_types(config, "layer_types", layers)? {
        let kind = |name: &str| match name {
            "sliding_attention" => Ok(None),
            "heavily_compressed_attention" => Ok(Some(heavy)),
            "compressed_sparse_attention" => Ok(Some(sparse)),
            other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
        };
        return types.into_iter().map(kind).collect();
    }
    if let Some(ratios) = config.list("compress_ratios")? {
        if ratios.len() < layers {
            let problem = format!("has {} entries for {layers} layers", ratios.len());
            return Err(config.bad("compress_ratios", problem));
        }
        let kind = |ratio: &serde_json::Value| match ratio.as_u64() {
            Some(0) => Ok(None),
            Some(4) => Ok(Some(sparse)),
            Some(128) => Ok(Some(heavy)),
            _ => Err(config.bad("compress_ratios", format!("holds {ratio}, expected 0, 4 or 128"))),
        };
        return ratios[..layers].iter().map(kind).collect();
    }
    let kind = |i: usize| Some(if i < 2 || i.is_multiple_of(2) { heavy } else { sparse });
    Ok((0..layers).map(kind).collect())
}

fn mlps(config: &Config<'_>, layers: usize) -> Result<Vec<MlpSpec>, ModelError> {
    config.only("norm_topk_prob", &[true.into()])?;
    config.only("n_shared_experts", &[1.into()])?;
    let scores = match config.text("scoring_func")? {
        None | Some("sqrtsoftplus") => Scores::SqrtSoftplus,
        Some("sigmoid") => Scores::Sigmoid,
        Some("softmax") => Scores::Softmax,
        Some(_) => return Err(config.unsupported("scoring_func")),
    };
    let (experts, top_k) =
        (config.count("n_routed_experts")?, config.count("num_experts_per_tok")?);
    if top_k > experts {
        let problem = format!("is {top_k}, more than n_routed_experts = {experts}");
        return Err(config.bad("num_experts_per_tok", problem));
    }
    let ffn = config.count("moe_intermediate_size")?;
    let scale = config.positive("routed_scaling_factor", Some(1.5))? as f32;
    let router = RouterSpec { scores, bias: true, groups: None, renormalise: Some(1e-20), scale };
    let shared = Some(SharedExpertSpec { width: ffn, gated: false });
    let routed = MoeSpec { experts, top_k, ffn, router, shared };
    let by_token = RouterSpec { bias: false, ..router };
    let hashed = MoeSpec { router: by_token, ..routed.clone() };
    let Some(types) = config.list("mlp_layer_types")? else {
        let first = config.maybe_count("num_hash_layers")?.unwrap_or(3);
        let kind = |i: usize| match i < first {
            true => MlpSpec::Hashed(hashed.clone()),
            false => MlpSpec::Moe(routed.clone()),
        };
        return Ok((0..layers).map(kind).collect());
    };
    if types.len() != layers {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(config.bad("mlp_layer_types", problem));
    }
    let kind = |name: &serde_json::Value| match name.as_str() {
        Some("hash_moe") => Ok(MlpSpec::Hashed(hashed.clone())),
        Some("moe") => Ok(MlpSpec::Moe(routed.clone())),
        _ => Err(config.bad("mlp_layer_types", format!("names the unknown kind {name}"))),
    };
    types.iter().map(kind).collect()
}

/// Whether a config is of this family.
pub(crate) fn is_it(config: &serde_json::Value) -> bool {
    config.get("model_type").and_then(serde_json::Value::as_str) == Some("deepseek_v4")
}

/// The checkpoint under the names that other families use. Files come with names of either kind, and with a
/// multi-token-prediction part, which is left out.
pub(crate) fn translate(checkpoint: Checkpoint) -> Result<Checkpoint, ModelError> {
    let names: Vec<String> = checkpoint.names().map(str::to_owned).collect();
    let kept =
        names.into_iter().filter(|name| !name.starts_with("mtp.") && !name.contains(".mtp."));
    let renamed = |stored: String| {
        let name = usual_name(&stored);
        Renamed { name, stored, ..Renamed::default() }
    };
    let tensors = kept.map(renamed).collect();
    let config = checkpoint.config().clone();
    Ok(checkpoint.translated(Translation { config, tensors })?)
}

/// What other families call a tensor.
fn usual_name(stored: &str) -> String {
    let name = stored.strip_prefix("model.").unwrap_or(stored);
    let top = [
        ("embed.weight", "model.embed_tokens.weight"),
        ("head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("hc_head_fn", "model.hc_head.hc_fn"),
        ("hc_head_base", "model.hc_head.hc_base"),
        ("hc_head_scale", "model.hc_head.hc_scale"),
    ];
    if let Some((_, usual)) = top.iter().find(|(stored, _)| *stored == name) {
        return (*usual).to_owned();
    }
    let in_layer = name.starts_with("layers.");
    let inside = |part: &str| name.contains(part);
    let mut out = String::from("model");
    let parts: Vec<&str> = name.split('.').collect();
    for (i, &part) in parts.iter().enumerate() {
        let usual = match part {
            "attn" => "self_attn",
            "ffn" => "mlp",
            "attn_norm" => "input_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "hc_attn_fn" => "attn_hc.fn",
            "hc_attn_base" => "attn_hc.base",
            "hc_attn_scale" => "attn_hc.scale",
            "hc_ffn_fn" => "ffn_hc.fn",
            "hc_ffn_base" => "ffn_hc.base",
            "hc_ffn_scale" => "ffn_hc.scale",
            "attn_sink" => "sinks",
            "wq_a" => "q_a_proj",
            "wq_b" => "q_b_proj",
            "q_norm" => "q_a_norm",
            "wkv" => "kv_proj",
            "wgate" => "gate_proj",
            "wo_a" => "o_a_proj",
            "wo_b" => "o_b_proj",
            "ape" => "position_bias",
            "w1" => "gate_proj",
            "w2" => "down_proj",
            "w3" => "up_proj",
            "norm" if in_layer => "kv_norm",
            "bias" if inside(".gate.bias") => "e_score_correction_bias",
            // The index's own compressor stands inside the other one.
            "indexer" if !inside(".compressor.indexer.") => "compressor.indexer",
            "compressor" if i > 0 && parts[i - 1] == "indexer" => continue,
            "weights_proj" if !inside(".scorer.") => "scorer.weights_proj",
            other => other,
        };
        out.push('.');
        out.push_str(usual);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::usual_name;

    #[test]
    fn both_ways_of_naming_tensors_become_one() {
        for (stored, usual) in [
            ("embed.weight", "model.embed_tokens.weight"),
            ("model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("head.weight", "lm_head.weight"),
            ("norm.weight", "model.norm.weight"),
            ("model.hc_head.hc_fn", "model.hc_head.hc_fn"),
            ("hc_head_fn", "model.hc_head.hc_fn"),
            ("layers.3.hc_ffn_base", "model.layers.3.ffn_hc.base"),
            ("layers.3.attn.norm.weight", "model.layers.3.self_attn.kv_norm.weight"),
            ("layers.3.attn.kv_norm.weight", "model.layers.3.self_attn.kv_norm.weight"),
            (
                "model.layers.2.attn.indexer.compressor.wgate.weight",
                "model.layers.2.self_attn.compressor.indexer.gate_proj.weight",
            ),
            (
                "model.layers.2.self_attn.compressor.indexer.gate_proj.weight",
                "model.layers.2.self_attn.compressor.indexer.gate_proj.weight",
            ),
            (
                "layers.2.attn.indexer.weights_proj.weight",
                "model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight",
            ),
            ("layers.9.ffn.gate.bias", "model.layers.9.mlp.gate.e_score_correction_bias"),
            ("layers.9.ffn.experts.7.w2.weight", "model.layers.9.mlp.experts.7.down_proj.weight"),
        ] {
            assert_eq!(usual_name(stored), usual, "{stored}");
        }
    }
}
