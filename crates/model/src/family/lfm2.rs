//! LFM2: gated short convolutions, and attention with normed queries and keys in some layers; experts in all but the
//! first layers of LFM2-MoE.

use super::llama::experts;
use super::{check_heads, layer_types, only_silu};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec,
    Placeholders, RouterSpec, ShortConvSpec,
};
use forerun_backend::op::{Activation, Scores};

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    config.only("block_use_swiglu", &[true.into()])?;
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.maybe_count("num_key_value_heads")?.unwrap_or(8).max(1);
    check_heads(config, heads, kv_heads)?;
    let head_dim = match config.get("head_dim") {
        Some(_) => config.count("head_dim")?,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is {heads}, which does not divide hidden_size = {hidden}");
            return Err(config.bad("num_attention_heads", problem));
        }
    };
    let attention =
        AttentionSpec { qk_norm: true, ..AttentionSpec::plain(heads, kv_heads, head_dim) };
    let conv = ShortConvSpec {
        channels: hidden,
        taps: config.maybe_count("conv_L_cache")?.unwrap_or(3),
        bias: config.flag("conv_bias", false)?,
    };
    let sparse = family == "lfm2_moe";
    let dense =
        MlpSpec::Dense(if sparse { config.count("intermediate_size")? } else { ffn(config)? });
    let moe = if sparse { Some(MlpSpec::Moe(mixture(config)?)) } else { None };
    let dense_layers = config.maybe_count("num_dense_layers")?.unwrap_or(2);
    let layer = |(number, attends): (usize, bool)| {
        let mixer = match attends {
            true => MixerSpec::Attention(attention.clone()),
            false => MixerSpec::ShortConv(conv.clone()),
        };
        let mlp = moe.as_ref().filter(|_| number >= dense_layers).unwrap_or(&dense).clone();
        LayerSpec { mixer, mlp, frame: Frame::Pre }
    };
    let attends = attention_layers(config)?;
    if conv.taps < 2 && attends.contains(&false) {
        let problem = format!("is {}, expected at least 2", conv.taps);
        return Err(config.bad("conv_L_cache", problem));
    }
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: config.positive("norm_eps", Some(1e-5))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(128_000).max(1),
        tied: config.flag("tie_embedding", config.flag("tie_word_embeddings", true)?)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        activation: Activation::Silu,
        ropes: vec![
            RopeSource::of(config).read(head_dim, RopeDefaults { theta: 1e6, fraction: 1.0 })?,
        ],
        layers: attends.into_iter().enumerate().map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

/// A router by sigmoid, perhaps with a bias on the choice.
fn mixture(config: &Config<'_>) -> Result<MoeSpec, ModelError> {
    let router = RouterSpec {
        scores: Scores::Sigmoid,
        bias: config.flag("use_expert_bias", true)?,
        groups: None,
        renormalise: config.flag("norm_topk_prob", true)?.then_some(1e-6),
        scale: config.positive("routed_scaling_factor", Some(1.0))? as f32,
    };
    Ok(MoeSpec { router, ..experts(config, "num_experts_per_tok")? })
}

/// Which layers attend: `layer_types`, or else those in `full_attn_idxs`, or else all.
fn attention_layers(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = config.layers("num_hidden_layers")?;
    if let Some(types) = layer_types(config, "layer_types", layers)? {
        let kind = |name: &str| match name {
            "full_attention" => Ok(true),
            "conv" => Ok(false),
            other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
        };
        return types.into_iter().map(kind).collect();
    }
    let Some(list) = config.list("full_attn_idxs")? else { return Ok(vec![true; layers]) };
    let mut attends = vec![false; layers];
    for number in list {
        let index = number.as_u64().and_then(|i| usize::try_from(i).ok());
        match index.and_then(|i| attends.get_mut(i)) {
            Some(layer) => *layer = true,
            None => {
                let problem = format!("holds {number}, expected numbers below {layers}");
                return Err(config.bad("full_attn_idxs", problem));
            }
        }
    }
    Ok(attends)
}

/// Width of the MLP: `block_ff_dim` goes before `intermediate_size`. Unless told otherwise two thirds of it are taken,
/// times a factor and rounded up.
fn ffn(config: &Config<'_>) -> Result<usize, ModelError> {
    let key = match config.get("block_ff_dim") {
        Some(_) => "block_ff_dim",
        None => "intermediate_size",
    };
    let stored = config.count(key)?;
    if !config.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(stored);
    }
    let narrow = 2 * stored / 3;
    let width = if config.is_null("block_ffn_dim_multiplier") {
        narrow
    } else {
        let factor = config.positive("block_ffn_dim_multiplier", Some(1.0))?;
        let multiple = config.maybe_count("block_multiple_of")?.unwrap_or(256).max(1);
        ((factor * narrow as f64) as usize).next_multiple_of(multiple)
    };
    match width {
        1..=0x0100_0000 => Ok(width),
        _ => Err(config.bad(key, format!("is {stored}, which makes an MLP of width {width}"))),
    }
}
