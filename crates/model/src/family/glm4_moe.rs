//! GLM-4.5 and later with experts: attention with perhaps normed queries and keys, half of each head rotated, the first
//! layers dense, and an MTP block behind the last.

use super::routed::{self, RoutedKeys};
use super::{check_heads, only_silu};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, DrafterSpec, Frame, LayerSpec, MixerSpec, ModelError, ModelSpec, Placeholders,
};
use forerun_backend::op::Activation;

pub(super) fn read(
    family: &str,
    config: &Config<'_>,
    has_mtp: bool,
) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.maybe_count("num_key_value_heads")?.unwrap_or(8).max(1);
    check_heads(config, heads, kv_heads)?;
    let head_dim = match config.get("head_dim") {
        Some(_) => config.count("head_dim")?,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => return Err(config.bad("head_dim", "is missing and heads do not divide the width")),
    };
    let attention = AttentionSpec {
        qk_norm: config.flag("use_qk_norm", false)?,
        bias: config.flag("attention_bias", false)?,
        bare_out: true,
        ..AttentionSpec::plain(heads, kv_heads, head_dim)
    };
    let moe = RoutedKeys::deepseek([1, 1], 1.0).read(config)?;
    let dense = config.maybe_count("first_k_dense_replace")?.unwrap_or(1);
    let layers = config.layers("num_hidden_layers")?;
    let layer = |i: usize| -> Result<LayerSpec, ModelError> {
        let mixer = MixerSpec::Attention(attention.clone());
        Ok(LayerSpec { mixer, mlp: routed::mlp(config, i, dense, &moe)?, frame: Frame::Pre })
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-5))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(131_072).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::Silu,
        ropes: vec![
            RopeSource::of(config).read(head_dim, RopeDefaults { theta: 1e4, fraction: 0.5 })?,
        ],
        layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: has_mtp.then(|| layer(layers)).transpose()?.map(DrafterSpec::Head),
    })
}
