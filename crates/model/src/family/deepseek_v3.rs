//! DeepSeek-V3 and what is published under its type (R1, V3.1, Kimi-K2): latent attention, experts in groups, the first
//! layers dense, MTP blocks behind the last.

use super::only_silu;
use super::routed::{self, RoutedKeys};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource, yarn_strength};
use crate::{
    DrafterSpec, Frame, LatentSpec, LayerSpec, MixerSpec, ModelError, ModelSpec, Placeholders,
};
use forerun_backend::op::Activation;

pub(super) fn read(
    family: &str,
    config: &Config<'_>,
    has_mtp: bool,
) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    let plain = latent(config, Some(1536))?;
    let attention = LatentSpec {
        rope: Some(0),
        interleaved: config.flag("rope_interleave", true)?,
        scale: plain.scale * sharpening(config)?,
        ..plain
    };
    let rope = RopeSource::of(config)
        .read(attention.rope_dim, RopeDefaults { theta: 1e4, fraction: 1.0 })?;
    if rope.rotary != attention.rope_dim {
        return Err(config.unsupported("partial_rotary_factor"));
    }
    let moe = RoutedKeys::deepseek([8, 4], 2.5).read(config)?;
    let dense = config.maybe_count("first_k_dense_replace")?.unwrap_or(3);
    let layers = config.layers("num_hidden_layers")?;
    let layer = |i: usize| -> Result<LayerSpec, ModelError> {
        let mixer = MixerSpec::Latent(attention.clone());
        Ok(LayerSpec { mixer, mlp: routed::mlp(config, i, dense, &moe)?, frame: Frame::Pre })
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden: config.count("hidden_size")?,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(4096).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::Silu,
        ropes: vec![rope],
        layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: has_mtp.then(|| layer(layers)).transpose()?.map(DrafterSpec::Head),
    })
}

/// Latent attention whose rope keys stand still. A key that is there and `null` says that queries have no latent.
pub(super) fn latent(
    config: &Config<'_>,
    q_latent: Option<usize>,
) -> Result<LatentSpec, ModelError> {
    let heads = config.count("num_attention_heads")?;
    if let Some(kv_heads) = config.maybe_count("num_key_value_heads")?
        && kv_heads != heads
    {
        let problem = format!("is {kv_heads}, expected num_attention_heads = {heads}");
        return Err(config.bad("num_key_value_heads", problem));
    }
    let width = |key: &str, default: usize| match config.get(key) {
        None => Ok(default),
        Some(_) => config.count(key),
    };
    let (rope_dim, nope) = (width("qk_rope_head_dim", 64)?, width("qk_nope_head_dim", 128)?);
    let q_latent = match config.get("q_lora_rank") {
        None if config.is_null("q_lora_rank") => None,
        None => q_latent,
        Some(_) => Some(config.count("q_lora_rank")?),
    };
    Ok(LatentSpec {
        heads,
        q_latent,
        latent: width("kv_lora_rank", 512)?,
        rope_dim,
        nope,
        value: width("v_head_dim", 128)?,
        scale: 1.0 / ((nope + rope_dim) as f32).sqrt(),
        rope: None,
        interleaved: false,
        bias: config.flag("attention_bias", false)?,
    })
}

/// What YaRN's `mscale_all_dim` makes of scores.
fn sharpening(config: &Config<'_>) -> Result<f32, ModelError> {
    let section = config.section("rope_parameters").or_else(|| config.section("rope_scaling"));
    let Some(section) = section else { return Ok(1.0) };
    let key = if section.get("rope_type").is_some() { "rope_type" } else { "type" };
    if section.text(key)?.unwrap_or("default") == "default" {
        return Ok(1.0);
    }
    match section.maybe_number("mscale_all_dim")? {
        Some(all) if all != 0.0 => {
            let strength = yarn_strength(section.positive("factor", None)?, all);
            Ok((strength * strength) as f32)
        }
        _ => Ok(1.0),
    }
}
