//! Granite 4: Mamba-2 and attention with or without rope, then a shared MLP with or without experts beside it; factors
//! on embeddings, branches, scores and logits.

use super::{check_heads, layer_types, only_silu, step_limits};
use crate::config::Config;
use crate::rope::{RopeDefaults, RopeSource};
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec,
    Placeholders, RopeSpec, RouterSpec, ScanSpec, SharedExpertSpec,
};
use forerun_backend::op::{Activation, ScanShape};

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    only_silu(config)?;
    let hidden = config.count("hidden_size")?;
    let eps = config.positive("rms_norm_eps", Some(1e-6))? as f32;
    let attention = attention(config, hidden)?;
    let rope = match config.text("position_embedding_type")? {
        None | Some("nope") => RopeSpec::still(),
        Some("rope") => {
            let defaults = RopeDefaults { theta: 1e4, fraction: 1.0 };
            RopeSource::of(config).read(attention.head_dim, defaults)?
        }
        Some(_) => return Err(config.unsupported("position_embedding_type")),
    };
    let attends = attention_layers(config)?;
    let scan = match attends.contains(&false) {
        true => Some(scan(config, hidden, eps)?),
        false => None,
    };
    let mlp = mlp(config)?;
    let layer = |attends: bool| {
        let mixer = match &scan {
            Some(scan) if !attends => MixerSpec::Scan(scan.clone()),
            _ => MixerSpec::Attention(attention.clone()),
        };
        LayerSpec { mixer, mlp: mlp.clone(), frame: Frame::Pre }
    };
    // `x += r·f(norm(x))` is `x/r += f(norm(x))`, and the norm of x is that of x/r if eps is divided by r². So the
    // stream is kept divided by r, and every block is a plain one.
    let residual = config.positive("residual_multiplier", Some(1.0))? as f32;
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden,
        eps: eps / (residual * residual),
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(2048).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: config.positive("embedding_multiplier", Some(1.0))? as f32 / residual,
        logit_scale: 1.0 / config.positive("logits_scaling", Some(1.0))? as f32,
        logit_cap: None,
        activation: Activation::Silu,
        ropes: vec![rope],
        layers: attends.into_iter().map(layer).collect(),
        per_layer: None,
        drafter: None,
    })
}

fn attention(config: &Config<'_>, hidden: usize) -> Result<AttentionSpec, ModelError> {
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
    Ok(AttentionSpec {
        scale: config.positive("attention_multiplier", Some(1.0))? as f32,
        bias: config.flag("attention_bias", false)?,
        ..AttentionSpec::plain(heads, kv_heads, head_dim)
    })
}

fn scan(config: &Config<'_>, hidden: usize, eps: f32) -> Result<ScanSpec, ModelError> {
    let or = |key: &str, default: usize| match config.get(key) {
        Some(_) => config.count(key),
        None => Ok(default),
    };
    let heads = or("mamba_n_heads", 128)?;
    let inner = or("mamba_expand", 2)? * hidden;
    let width = match config.get("mamba_d_head") {
        None => inner / heads,
        Some(auto) if auto == "auto" => inner / heads,
        Some(_) => config.count("mamba_d_head")?,
    };
    if width * heads != inner {
        let problem = format!("is {heads}, but heads of {width} make no {inner} channels");
        return Err(config.bad("mamba_n_heads", problem));
    }
    let shape = ScanShape {
        heads,
        groups: or("mamba_n_groups", 1)?,
        width,
        state: or("mamba_d_state", 256)?,
    };
    super::check_scan(config, ["mamba_n_groups", "mamba_d_conv"], &shape, or("mamba_d_conv", 4)?)?;
    Ok(ScanSpec {
        shape,
        taps: or("mamba_d_conv", 4)?,
        conv_bias: config.flag("mamba_conv_bias", true)?,
        bias: config.flag("mamba_proj_bias", false)?,
        limits: step_limits(config, "time_step_limit")?,
        norms: 1,
        eps,
    })
}

fn mlp(config: &Config<'_>) -> Result<MlpSpec, ModelError> {
    let shared = match config.get("shared_intermediate_size") {
        Some(_) => config.count("shared_intermediate_size")?,
        None => 1024,
    };
    let experts = config.maybe_count("num_local_experts")?.unwrap_or(8);
    if experts == 0 {
        return Ok(MlpSpec::Dense(shared));
    }
    let top_k = config.maybe_count("num_experts_per_tok")?.unwrap_or(2);
    if top_k == 0 || top_k > experts {
        let problem = format!("is {top_k}, expected 1 to num_local_experts = {experts}");
        return Err(config.bad("num_experts_per_tok", problem));
    }
    // The softmax of the chosen logits alone is that of all of them, divided by what the chosen ones have of it.
    let router = RouterSpec::softmax(true);
    let shared = Some(SharedExpertSpec { width: shared, gated: false });
    let ffn = config.count("intermediate_size")?;
    Ok(MlpSpec::Moe(MoeSpec { experts, top_k, ffn, router, shared }))
}

/// Which layers attend: none where nothing is said.
fn attention_layers(config: &Config<'_>) -> Result<Vec<bool>, ModelError> {
    let layers = config.layers("num_hidden_layers")?;
    let key = if config.get("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
    let Some(types) = layer_types(config, key, layers)? else { return Ok(vec![false; layers]) };
    let kind = |name: &str| match name {
        "full_attention" | "attention" => Ok(true),
        "linear_attention" | "mamba" => Ok(false),
        other => Err(config.bad(key, format!("names the unknown mixer `{other}`"))),
    };
    types.into_iter().map(kind).collect()
}
