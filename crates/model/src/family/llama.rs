//! Llama, Qwen3 and Qwen3-MoE: plain attention blocks.

use super::{check_heads, no_sliding_window, only_silu};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec,
    Placeholders, RouterSpec,
};
use forerun_backend::op::Activation;

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    no_sliding_window(config)?;
    config.only("mlp_bias", &[false.into()])?;
    let types = config.list("layer_types")?.unwrap_or_default();
    if types.iter().any(|t| t != "full_attention") {
        return Err(config.unsupported("layer_types"));
    }
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.maybe_count("num_key_value_heads")?.unwrap_or(heads).max(1);
    check_heads(config, heads, kv_heads)?;
    let head_dim = match config.maybe_count("head_dim")? {
        Some(0) => return Err(config.bad("head_dim", "is 0, expected at least 1")),
        Some(d) => d,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(config.bad("head_dim", "is missing and heads do not divide the width")),
    };
    let attention = AttentionSpec {
        qk_norm: family != "llama",
        bias: config.flag("attention_bias", false)?,
        ..AttentionSpec::plain(heads, kv_heads, head_dim)
    };
    let layer = |i: usize| -> Result<LayerSpec, ModelError> {
        let mixer = MixerSpec::Attention(attention.clone());
        Ok(LayerSpec { mixer, mlp: mlp(family, config, i)?, frame: Frame::Pre })
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(2048).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        activation: Activation::Silu,
        ropes: vec![
            RopeSource::of(config).read(head_dim, RopeDefaults { theta: 1e4, fraction: 1.0 })?,
        ],
        layers: (0..config.layers("num_hidden_layers")?).map(layer).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: None,
    })
}

fn mlp(family: &str, config: &Config<'_>, layer: usize) -> Result<MlpSpec, ModelError> {
    if family != "qwen3_moe" || !is_sparse(config, layer)? {
        return Ok(MlpSpec::Dense(config.count("intermediate_size")?));
    }
    let router = RouterSpec::softmax(config.flag("norm_topk_prob", false)?);
    Ok(MlpSpec::Moe(MoeSpec { router, ..experts(config, "num_experts_per_tok")? }))
}

/// Whether block `layer` has experts: not when listed as dense or off the sparse step.
pub(super) fn is_sparse(config: &Config<'_>, layer: usize) -> Result<bool, ModelError> {
    let dense = config.list("mlp_only_layers")?.unwrap_or_default();
    let step = config.maybe_count("decoder_sparse_step")?.unwrap_or(1).max(1);
    let listed = dense.iter().any(|l| l.as_u64() == Some(layer as u64));
    Ok(!listed && (layer + 1).is_multiple_of(step))
}

/// Counts and widths that every mixture spells alike, but for the key of experts per row.
pub(super) fn experts(config: &Config<'_>, top_k_key: &str) -> Result<MoeSpec, ModelError> {
    let (experts, top_k) = (config.count("num_experts")?, config.count(top_k_key)?);
    if top_k > experts {
        let problem = format!("is {top_k}, more than num_experts = {experts}");
        return Err(config.bad(top_k_key, problem));
    }
    let ffn = config.count("moe_intermediate_size")?;
    Ok(MoeSpec { experts, top_k, ffn, router: RouterSpec::softmax(true), shared: None })
}
