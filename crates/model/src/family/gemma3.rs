//! Gemma 3: layers with and without a window, sandwich norms, normed queries and keys.

use super::{check_heads, only_gelu, tied, windowed_layers};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, Placeholders,
    RopeSpec,
};
use forerun_backend::op::Activation;

/// Ropes in the order layers name them.
const WINDOWED: usize = 0;
const WHOLE: usize = 1;

pub(super) fn read(family: &str, root: &Config<'_>) -> Result<ModelSpec, ModelError> {
    let nested = root.section("text_config");
    let config = nested.as_ref().unwrap_or(root);
    only_gelu(config)?;
    config.only("attn_logit_softcapping", &[])?;
    config.only("use_bidirectional_attention", &[false.into()])?;
    let hidden = config.count("hidden_size")?;
    // Published configs leave out what equals the library's defaults.
    let count = |key: &str, default: usize| match config.get(key) {
        Some(_) => config.count(key),
        None => Ok(default),
    };
    let (heads, kv_heads) = (count("num_attention_heads", 8)?, count("num_key_value_heads", 4)?);
    check_heads(config, heads, kv_heads)?;
    let head_dim = count("head_dim", 256)?;
    let scale = config.positive("query_pre_attn_scalar", Some(256.0))?.powf(-0.5) as f32;
    let bias = config.flag("attention_bias", false)?;
    let window = count("sliding_window", 4096)?;
    let ffn = config.count("intermediate_size")?;
    let layer = |windowed: bool| LayerSpec {
        mixer: MixerSpec::Attention(AttentionSpec {
            scale,
            qk_norm: true,
            bias,
            window: windowed.then_some(window),
            rope: if windowed { WINDOWED } else { WHOLE },
            ..AttentionSpec::plain(heads, kv_heads, head_dim)
        }),
        mlp: MlpSpec::Dense(ffn),
        frame: Frame::Sandwich { scaled: false },
    };
    let pattern = match config.maybe_count("sliding_window_pattern")? {
        Some(pattern) => pattern.max(1),
        None => count("_sliding_window_pattern", 6)?,
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: count("vocab_size", 262_208)?,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(131_072).max(1),
        tied: tied(root, config, true)?,
        placeholders: Placeholders::default(),
        embed_scale: (hidden as f32).sqrt(),
        logit_scale: 1.0,
        logit_cap: config.cap("final_logit_softcapping")?,
        activation: Activation::GeluTanh,
        ropes: ropes(config, head_dim)?,
        layers: windowed_layers(config, pattern, false)?.into_iter().map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

/// Newer configs have a section per kind of layer; older ones scale only layers that see everything.
pub(super) fn ropes(config: &Config<'_>, head_dim: usize) -> Result<Vec<RopeSpec>, ModelError> {
    let parameters = config.section("rope_parameters");
    let section = |kind: &str| parameters.as_ref().and_then(|p| p.section(kind));
    let windowed = match section("sliding_attention") {
        Some(section) => RopeSource::section(config, Some(section))
            .read(head_dim, RopeDefaults { theta: 1e4, fraction: 1.0 })?,
        None => RopeSpec::new(head_dim, config.positive("rope_local_base_freq", Some(1e4))?),
    };
    let whole = match section("full_attention") {
        Some(section) => RopeSource::section(config, Some(section)),
        None => RopeSource::of(config),
    };
    Ok(vec![windowed, whole.read(head_dim, RopeDefaults { theta: 1e6, fraction: 1.0 })?])
}
