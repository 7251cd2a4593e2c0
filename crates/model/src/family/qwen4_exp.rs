//! Qwen4-Exp: Gated DeltaNet and indexed attention on several residual streams, experts in every layer, and in some an
//! embedding of the last tokens together.

use super::llama::experts;
use super::qwen_hybrid::delta;
use super::{check_heads, layer_types, no_sliding_window, only_silu, tied};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, IndexedSpec, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec,
    MoeSpec, NgramSpec, Placeholders, RouterSpec, SharedExpertSpec, StreamMix, StreamsSpec,
};
use forerun_backend::op::{Activation, NgramHash};

pub(super) fn read(family: &str, root: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let nested = root.section("text_config");
    let config = nested.as_ref().unwrap_or(root);
    only_silu(config)?;
    no_sliding_window(config)?;
    config.only("output_gate_type", &["swish".into(), "silu".into()])?;
    config.only("mamba_ssm_dtype", &["float32".into()])?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.count("num_key_value_heads")?;
    check_heads(config, heads, kv_heads)?;
    let attention = AttentionSpec {
        qk_norm: true,
        gated: config.flag("attn_output_gate", true)?,
        bias: config.flag("attention_bias", false)?,
        ..AttentionSpec::plain(heads, kv_heads, config.count("head_dim")?)
    };
    let rope = RopeSource::of(config)
        .read(attention.head_dim, RopeDefaults { theta: 1e4, fraction: 0.25 })?;
    let indexed = indexed(config, attention, rope.rotary)?;
    let (delta, mlp) = (delta(config)?, mlp(config)?);
    let layers = config.layers("num_hidden_layers")?;
    let attends = attending_layers(config, layers)?;
    let ngrams = ngrams(root, config, &attends)?;
    let count = config.maybe_count("hc_count")?.unwrap_or(4);
    if count < 2 {
        return Err(config.bad("hc_count", format!("is {count}, expected at least 2")));
    }
    let rank = config.maybe_count("hc_lowrank")?.unwrap_or(320).max(1);
    let layer = |(attends, ngram): (bool, Option<NgramSpec>)| LayerSpec {
        mixer: match attends {
            true => MixerSpec::Indexed(indexed.clone()),
            false => MixerSpec::Delta(delta.clone()),
        },
        mlp: mlp.clone(),
        frame: Frame::Streams(StreamsSpec { count, mix: StreamMix::Gated { rank }, ngram }),
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden: config.count("hidden_size")?,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(32768).max(1),
        tied: tied(root, config, false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::Silu,
        ropes: vec![rope],
        layers: attends.into_iter().zip(ngrams).map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

fn indexed(
    config: &Config<'_>,
    attention: AttentionSpec,
    rotary: usize,
) -> Result<IndexedSpec, ModelError> {
    config.only("indexer_kv_heads", &[1.into()])?;
    let head_dim = config.count("indexer_head_dim")?;
    if rotary > head_dim {
        let problem = format!("is {head_dim}, but {rotary} dims of a head are rotated");
        return Err(config.bad("indexer_head_dim", problem));
    }
    let (budget, every) =
        (config.count("indexer_budget")?, config.count("indexer_compress_ratio")?);
    if !budget.is_multiple_of(every) {
        let problem = format!("is {budget}, no multiple of indexer_compress_ratio = {every}");
        return Err(config.bad("indexer_budget", problem));
    }
    let heads = config.count("indexer_n_heads")?;
    Ok(IndexedSpec { attention, heads, head_dim, every, most: budget / every })
}

fn mlp(config: &Config<'_>) -> Result<MlpSpec, ModelError> {
    let router = RouterSpec::softmax(config.flag("norm_topk_prob", true)?);
    let width = config.count("shared_expert_intermediate_size")?;
    let shared = Some(SharedExpertSpec { width, gated: true });
    Ok(MlpSpec::Moe(MoeSpec { router, shared, ..experts(config, "num_experts_per_tok")? }))
}

/// Which layers attend: `layer_types`, or every `full_attention_interval`-th. All that do have an index, whatever they
/// are called.
fn attending_layers(config: &Config<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = layer_types(config, "layer_types", layers)? else {
        let interval = config.maybe_count("full_attention_interval")?.unwrap_or(4).max(1);
        return Ok((0..layers).map(|i| (i + 1).is_multiple_of(interval)).collect());
    };
    let kind = |name: &str| match name {
        "indexed_attention" | "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
    };
    types.into_iter().map(kind).collect()
}

/// The embedding of the last tokens in each layer, where it has one; `ple_layer_ids` counts layers from 1.
fn ngrams(
    root: &Config<'_>,
    config: &Config<'_>,
    attends: &[bool],
) -> Result<Vec<Option<NgramSpec>>, ModelError> {
    let mut all = vec![None; attends.len()];
    let mut ids = Vec::new();
    for number in config.list("ple_layer_ids")?.unwrap_or_default() {
        let id = number.as_u64().and_then(|i| usize::try_from(i).ok()).filter(|&i| i > 0);
        match id.and_then(|i| attends.get(i - 1)) {
            Some(false) => ids.extend(id),
            Some(true) => {
                let problem = format!("names layer {number}, which is no linear_attention layer");
                return Err(config.bad("ple_layer_ids", problem));
            }
            None => {
                let problem = format!("holds {number}, expected numbers 1 to {}", attends.len());
                return Err(config.bad("ple_layer_ids", problem));
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(all);
    }
    let first = ngram(root, config)?;
    for (index, id) in ids.into_iter().enumerate() {
        all[id - 1] = Some(NgramSpec { index, ..first });
    }
    Ok(all)
}

/// The first of them.
fn ngram(root: &Config<'_>, config: &Config<'_>) -> Result<NgramSpec, ModelError> {
    let count = |key: &str, default: usize| match config.maybe_count(key)? {
        Some(0) => Err(config.bad(key, "is 0, expected at least 1")),
        found => Ok(found.unwrap_or(default)),
    };
    let hidden = config.count("hidden_size")?;
    let (order, heads) = (count("ngram_size", 3)?, count("heads_per_ngram", 8)?);
    if !(2..=NgramHash::MOST_TOKENS).contains(&order) {
        return Err(config.unsupported("ngram_size"));
    }
    let all_heads = (order - 1) * heads;
    if all_heads > NgramHash::MOST_HEADS {
        return Err(config.unsupported("heads_per_ngram"));
    }
    let width = count("ple_embed_dim", hidden)?;
    if !width.is_multiple_of(all_heads) {
        let problem = format!("is {width}, no multiple of {all_heads} heads");
        return Err(config.bad("ple_embed_dim", problem));
    }
    // The base goes beyond what other counts may be.
    let base = match config.get("ngram_vocab_size_base") {
        None => 20_000_000,
        Some(base) => match base.as_u64() {
            Some(base) if (1..=1 << 28).contains(&base) => base as u32,
            _ => {
                let problem = format!("is {base}, expected 1 to 2^28");
                return Err(config.bad("ngram_vocab_size_base", problem));
            }
        },
    };
    let seed = match config.get("seed") {
        None => 1234,
        Some(seed) => seed.as_u64().ok_or_else(|| config.bad("seed", "is no integer from 0 on"))?,
    };
    Ok(NgramSpec {
        hidden,
        width,
        taps: count("ple_conv_kernel_size", 4)?,
        order,
        heads,
        vocabulary: config.count("vocab_size")?,
        base,
        seed,
        index: 0,
        divisor: count("make_ngram_vocab_size_divisible_by", 128)?,
        parts: count("split_ngram_parts", 512)?,
        boundary: boundary(root, config)?,
    })
}

/// The first token that ends a text.
fn boundary(root: &Config<'_>, config: &Config<'_>) -> Result<u32, ModelError> {
    let key = "eos_token_id";
    let value = config.get(key).or_else(|| root.get(key));
    let first = value.and_then(|value| value.as_array().map_or(Some(value), |list| list.first()));
    let token = first.and_then(|token| token.as_u64()).and_then(|token| u32::try_from(token).ok());
    token.ok_or_else(|| config.bad(key, "is missing, and ple_layer_ids needs it"))
}
