//! Qwen3-Next, Qwen3.5 and Qwen3.5-MoE (3.6 and 3.8 reuse the types): Gated DeltaNet and gated
//! attention, dense or with experts, with an MTP block.

use super::llama::{experts, is_sparse};
use super::{check_heads, layer_types, no_sliding_window, only_silu, tied};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, DeltaSpec, DrafterSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, Placeholders, RouterSpec, SharedExpertSpec,
};
use forerun_backend::op::{Activation, DeltaShape};

pub(super) fn read(
    family: &str,
    root: &Config<'_>,
    has_mtp: bool,
) -> Result<ModelSpec, ModelError> {
    let nested = root.section("text_config");
    let config = nested.as_ref().unwrap_or(root);
    check_features(config)?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.count("num_key_value_heads")?;
    check_heads(config, heads, kv_heads)?;
    let attention = AttentionSpec {
        qk_norm: true,
        gated: config.flag("attn_output_gate", true)?,
        bias: config.flag("attention_bias", false)?,
        ..AttentionSpec::plain(heads, kv_heads, config.count("head_dim")?)
    };
    let delta = delta(config)?;
    let layers = config.layers("num_hidden_layers")?;
    let attends = attention_layers(config, layers)?;
    let block = |attends: bool, i: usize| -> Result<LayerSpec, ModelError> {
        let mixer = if attends {
            MixerSpec::Attention(attention.clone())
        } else {
            MixerSpec::Delta(delta.clone())
        };
        Ok(LayerSpec { mixer, mlp: mlp(family, config, i)?, frame: Frame::Pre })
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
        logit_scale: 1.0,
        logit_cap: None,
        activation: Activation::Silu,
        ropes: vec![
            RopeSource::of(config)
                .read(attention.head_dim, RopeDefaults { theta: 1e4, fraction: 0.25 })?,
        ],
        layers: (0..layers).map(|i| block(attends[i], i)).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: has_mtp.then(|| block(true, layers)).transpose()?.map(DrafterSpec::Head),
    })
}

fn check_features(config: &Config<'_>) -> Result<(), ModelError> {
    only_silu(config)?;
    no_sliding_window(config)?;
    config.only("output_gate_type", &["swish".into(), "silu".into()])?;
    config.only("mamba_ssm_dtype", &["float32".into()])?;
    config.only("mtp_use_dedicated_embeddings", &[false.into()])?;
    config.only("mtp_num_hidden_layers", &[0.into(), 1.into()])
}

pub(super) fn delta(config: &Config<'_>) -> Result<DeltaSpec, ModelError> {
    let shape = DeltaShape {
        key_heads: config.count("linear_num_key_heads")?,
        value_heads: config.count("linear_num_value_heads")?,
        dk: config.count("linear_key_head_dim")?,
        dv: config.count("linear_value_head_dim")?,
    };
    if !shape.value_heads.is_multiple_of(shape.key_heads) {
        let problem = "is not a multiple of linear_num_key_heads";
        return Err(config.bad("linear_num_value_heads", problem));
    }
    let taps = config.count("linear_conv_kernel_dim")?;
    if taps < 2 {
        return Err(config.bad("linear_conv_kernel_dim", "is 1, expected at least 2"));
    }
    Ok(DeltaSpec { shape, taps, beta_scale: 1.0, norm_eps: None })
}

/// Which layers attend: `layer_types`, or every `full_attention_interval`-th.
fn attention_layers(config: &Config<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = layer_types(config, "layer_types", layers)? else {
        let interval = config.maybe_count("full_attention_interval")?.unwrap_or(4).max(1);
        return Ok((0..layers).map(|i| (i + 1).is_multiple_of(interval)).collect());
    };
    let kind = |name: &str| match name {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
    };
    types.into_iter().map(kind).collect()
}

fn mlp(family: &str, config: &Config<'_>, layer: usize) -> Result<MlpSpec, ModelError> {
    let next = family == "qwen3_next";
    let sparse = if next {
        // The MTP block sits past the last layer and is always sparse.
        layer >= config.count("num_hidden_layers")? || is_sparse(config, layer)?
    } else {
        family.starts_with("qwen3_5_moe")
    };
    if !sparse {
        return Ok(MlpSpec::Dense(config.count("intermediate_size")?));
    }
    // Qwen3.5-MoE always divides by the sum; Qwen3-Next asks its config.
    let router = RouterSpec::softmax(!next || config.flag("norm_topk_prob", true)?);
    let width = config.count("shared_expert_intermediate_size")?;
    let shared = Some(SharedExpertSpec { width, gated: true });
    Ok(MlpSpec::Moe(MoeSpec { router, shared, ..experts(config, "num_experts_per_tok")? }))
}
