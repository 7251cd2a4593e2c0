//! Kimi-Linear: KDA in most layers, latent attention without rope in the others, experts after a dense layer.

use super::deepseek_v3::latent;
use super::routed::RoutedKeys;
use super::{layer_types, only_silu};
use crate::config::Config;
use crate::{Frame, KdaSpec, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, Placeholders};
use forerun_backend::op::Activation;

const KEYS: RoutedKeys = RoutedKeys {
    experts: "num_experts",
    top_k: "num_experts_per_token",
    shared: "num_shared_experts",
    groups: "num_expert_group",
    renormalise: "moe_renormalize",
    default_groups: [1, 1],
    default_scale: 2.446,
};

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    config.only("mla_use_nope", &[true.into()])?;
    config.only("moe_router_activation_func", &["sigmoid".into()])?;
    let (attention, kda, moe) = (latent(config, None)?, kda(config)?, KEYS.read(config)?);
    let layers = config.layers("num_hidden_layers")?;
    let (attends, sparse) = (attention_layers(config, layers)?, sparse_layers(config, layers)?);
    let layer = |i: usize| -> Result<LayerSpec, ModelError> {
        let mixer = match attends[i] {
            true => MixerSpec::Latent(attention.clone()),
            false => MixerSpec::Kda(kda.clone()),
        };
        let mlp = match sparse[i] {
            true => MlpSpec::Moe(moe.clone()),
            false => MlpSpec::Dense(config.count("intermediate_size")?),
        };
        Ok(LayerSpec { mixer, mlp, frame: Frame::Pre })
    };
    let reach = ["model_max_length", "max_position_embeddings"];
    let reach = reach.into_iter().find(|key| config.get(key).is_some());
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden: config.count("hidden_size")?,
        eps: config.positive("rms_norm_eps", Some(1e-5))? as f32,
        max_positions: reach.map_or(Ok(1 << 20), |key| config.count(key))?,
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_cap: None,
        logit_scale: 1.0,
        activation: Activation::Silu,
        ropes: Vec::new(),
        layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: None,
    })
}

fn kda(config: &Config<'_>) -> Result<KdaSpec, ModelError> {
    let section = config.section("linear_attn_config");
    let count = |inner: &str, outer: &str, default: usize| match &section {
        Some(section) if section.get(inner).is_some() => section.count(inner),
        _ if config.get(outer).is_some() => config.count(outer),
        _ => Ok(default),
    };
    let taps = count("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?;
    if taps < 2 {
        return Err(config.bad("linear_conv_kernel_dim", "is 1, expected at least 2"));
    }
    let heads = count("num_heads", "linear_num_heads", 32)?;
    Ok(KdaSpec { heads, dim: count("head_dim", "linear_head_dim", 128)?, taps })
}

/// Which layers attend: `layer_types`, or the lists of `linear_attn_config`, which count from one, or every fourth but
/// the first.
fn attention_layers(config: &Config<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    if let Some(types) = layer_types(config, "layer_types", layers)? {
        let kind = |name: &str| match name {
            "full_attention" => Ok(true),
            "linear_attention" => Ok(false),
            other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
        };
        return types.into_iter().map(kind).collect();
    }
    let default = || (0..layers).map(|i| i > 0 && i.is_multiple_of(4)).collect();
    let Some(section) = config.section("linear_attn_config") else { return Ok(default()) };
    let lists = (section.list("full_attn_layers")?, section.list("kda_layers")?);
    let (Some(full), Some(kda)) = lists else { return Ok(default()) };
    let mut kinds = vec![None; layers];
    for (key, list, attends) in [("full_attn_layers", full, true), ("kda_layers", kda, false)] {
        for number in list {
            let index = number.as_u64().and_then(|i| usize::try_from(i).ok()?.checked_sub(1));
            match index.and_then(|i| kinds.get_mut(i)) {
                Some(kind) => *kind = Some(attends),
                None => {
                    let problem = format!("holds {number}, expected numbers from 1 to {layers}");
                    return Err(section.bad(key, problem));
                }
            }
        }
    }
    let all: Option<Vec<bool>> = kinds.into_iter().collect();
    all.ok_or_else(|| section.bad("kda_layers", "and full_attn_layers leave a layer out"))
}

/// Which layers have experts: `mlp_layer_types`, or all after the first few.
fn sparse_layers(config: &Config<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = config.list("mlp_layer_types")? else {
        let dense = config.maybe_count("first_k_dense_replace")?.unwrap_or(1);
        return Ok((0..layers).map(|i| i >= dense).collect());
    };
    let kind = |name: &serde_json::Value| match name.as_str() {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(config.bad("mlp_layer_types", format!("names the unknown kind {name}"))),
    };
    if types.len() != layers {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(config.bad("mlp_layer_types", problem));
    }
    types.iter().map(kind).collect()
}
