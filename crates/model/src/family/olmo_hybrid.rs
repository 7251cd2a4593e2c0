//! OLMo-Hybrid: Gated DeltaNet with separate projections, and attention whose blocks have their norms behind mixer and
//! MLP and one norm over all query and all key heads.

use super::{check_heads, layer_types, only_silu};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, DeltaSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec,
    Placeholders, RopeSpec,
};
use forerun_backend::op::{Activation, DeltaShape};

/// What norms of a delta net's output add to mean squares, whatever `rms_norm_eps` says.
const OUTPUT_EPS: f32 = 1e-5;

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.maybe_count("num_key_value_heads")?.unwrap_or(heads).max(1);
    check_heads(config, heads, kv_heads)?;
    let head_dim = match config.get("head_dim") {
        Some(_) => config.count("head_dim")?,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem = format!("is {heads}, which does not divide hidden_size = {hidden}");
            return Err(config.bad("num_attention_heads", problem));
        }
    };
    let attention = AttentionSpec {
        qk_norm: true,
        norm_whole: true,
        bias: config.flag("attention_bias", false)?,
        ..AttentionSpec::plain(heads, kv_heads, head_dim)
    };
    let delta = delta(config, [hidden, heads])?;
    let ffn = config.count("intermediate_size")?;
    let layer = |attends: bool| {
        let (mixer, frame) = match attends {
            true => (MixerSpec::Attention(attention.clone()), Frame::Post),
            false => (MixerSpec::Delta(delta.clone()), Frame::Pre),
        };
        LayerSpec { mixer, mlp: MlpSpec::Dense(ffn), frame }
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: config.positive("rms_norm_eps", Some(1e-6))? as f32,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(65_536).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::Silu,
        ropes: vec![rope(config, head_dim)?],
        layers: attention_layers(config)?.into_iter().map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

fn delta(config: &Config<'_>, [hidden, heads]: [usize; 2]) -> Result<DeltaSpec, ModelError> {
    let count = |key: &str, default: usize| match config.get(key) {
        Some(_) => config.count(key),
        None => Ok(default),
    };
    let (key_heads, value_heads) =
        (count("linear_num_key_heads", heads)?, count("linear_num_value_heads", heads)?);
    if !value_heads.is_multiple_of(key_heads) {
        let problem = "is not a multiple of linear_num_key_heads";
        return Err(config.bad("linear_num_value_heads", problem));
    }
    let dk = count("linear_key_head_dim", 3 * hidden / (4 * key_heads))?;
    if dk == 0 {
        return Err(config.bad("linear_key_head_dim", "is missing, and hidden_size is too small"));
    }
    let dv = count("linear_value_head_dim", 2 * dk)?;
    let taps = count("linear_conv_kernel_dim", 4)?;
    if taps < 2 {
        return Err(config.bad("linear_conv_kernel_dim", "is 1, expected at least 2"));
    }
    let doubled = config.flag("linear_allow_neg_eigval", true)?;
    Ok(DeltaSpec {
        shape: DeltaShape { key_heads, value_heads, dk, dv },
        taps,
        beta_scale: if doubled { 2.0 } else { 1.0 },
        norm_eps: Some(OUTPUT_EPS),
    })
}

/// Which layers attend: those `layer_types` names, or every fourth and, where that is none, the last.
fn attention_layers(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = config.layers("num_hidden_layers")?;
    let Some(types) = layer_types(config, "layer_types", layers)? else {
        return Ok((1..=layers).map(|i| i % 4 == 0 || layers < 4 && i == layers).collect());
    };
    let kind = |name: &str| match name {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
    };
    types.into_iter().map(kind).collect()
}

/// Positions do not count where the rope, or its base, is there and says `null`, as it is in published files that were
/// made for long contexts.
fn rope(config: &Config<'_>, head_dim: usize) -> Result<RopeSpec, ModelError> {
    let parameters = config.section("rope_parameters");
    let absent = match &parameters {
        Some(section) => section.is_null("rope_theta"),
        None if ["rope_theta", "rope_scaling"].iter().any(|key| config.get(key).is_some()) => false,
        None => config.is_null("rope_parameters") || config.is_null("rope_theta"),
    };
    if absent {
        return Ok(RopeSpec::none(head_dim));
    }
    RopeSource::of(config).read(head_dim, RopeDefaults { theta: 1e4, fraction: 1.0 })
}
