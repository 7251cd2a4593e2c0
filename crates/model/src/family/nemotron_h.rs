//! Nemotron-H: a block is Mamba-2, attention without rope, an MLP with relu squared, or experts of such MLPs.

use super::{check_heads, check_scan, step_limits};
use crate::config::Config;
use crate::{
    AttentionSpec, Frame, LayerSpec, MixerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec,
    Placeholders, RopeSpec, RouterSpec, ScanSpec, SharedExpertSpec,
};
use forerun_backend::op::{Activation, ExpertGroups, ScanShape, Scores};

/// What a block is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Scan,
    Attention,
    Mlp,
    Experts,
}

pub(super) fn read(family: &str, config: &Config<'_>) -> Result<ModelSpec, ModelError> {
    for bias in ["attention_bias", "mlp_bias", "mamba_proj_bias"] {
        config.only(bias, &[false.into()])?;
    }
    config.only("mlp_hidden_act", &["relu2".into()])?;
    config.only("mamba_hidden_act", &["silu".into(), "swish".into()])?;
    config.only("sliding_window", &[])?;
    config.only("moe_latent_size", &[])?;
    let eps = config.positive("layer_norm_epsilon", Some(1e-5))? as f32;
    let layer = |kind: Kind| -> Result<LayerSpec, ModelError> {
        let (mixer, mlp) = match kind {
            Kind::Scan => (MixerSpec::Scan(scan(config, eps)?), MlpSpec::None),
            Kind::Attention => (MixerSpec::Attention(attention(config)?), MlpSpec::None),
            Kind::Mlp => {
                (MixerSpec::None, MlpSpec::Dense(count(config, "intermediate_size", 21504)?))
            }
            Kind::Experts => (MixerSpec::None, MlpSpec::Moe(experts(config)?)),
        };
        Ok(LayerSpec { mixer, mlp, frame: Frame::Pre })
    };
    Ok(ModelSpec {
        family: family.to_owned(),
        vocabulary: config.count("vocab_size")?,
        hidden: config.count("hidden_size")?,
        eps,
        max_positions: config.maybe_count("max_position_embeddings")?.unwrap_or(4096).max(1),
        tied: config.flag("tie_word_embeddings", false)?,
        placeholders: Placeholders::default(),
        embed_scale: 1.0,
        logit_scale: 1.0,
        logit_cap: None,
        // Relu squared is relu of a product times the product: an MLP whose gate is its up.
        activation: Activation::Relu,
        ropes: vec![RopeSpec::still()],
        layers: kinds(config)?.into_iter().map(layer).collect::<Result<_, _>>()?,
        per_layer: None,
        drafter: None,
    })
}

/// A count of at least one.
fn count(config: &Config<'_>, key: &str, default: usize) -> Result<usize, ModelError> {
    match config.get(key) {
        Some(_) => config.count(key),
        None => Ok(default),
    }
}

/// The spelling of a key that is there.
fn spelt<'a>(config: &Config<'_>, keys: [&'a str; 2]) -> &'a str {
    if config.get(keys[1]).is_some() { keys[1] } else { keys[0] }
}

/// What each block is: by name, or in a pattern of letters.
fn kinds(config: &Config<'_>) -> Result<Vec<Kind>, ModelError> {
    let key = spelt(config, ["layers_block_type", "layer_types"]);
    let kinds: Vec<Kind> = match config.list(key)? {
        Some(names) => {
            let kind = |name: &serde_json::Value| match name.as_str() {
                Some("linear_attention" | "mamba") => Ok(Kind::Scan),
                Some("full_attention" | "attention") => Ok(Kind::Attention),
                Some("mlp") => Ok(Kind::Mlp),
                Some("moe") => Ok(Kind::Experts),
                _ => Err(config.bad(key, format!("names the unknown block {name}"))),
            };
            names.iter().map(kind).collect::<Result<_, _>>()?
        }
        None => {
            let key = "hybrid_override_pattern";
            let pattern = config.text(key)?.ok_or_else(|| config.bad(key, "is missing"))?;
            let kind = |letter: char| match letter {
                'M' => Ok(Kind::Scan),
                '*' => Ok(Kind::Attention),
                '-' => Ok(Kind::Mlp),
                'E' => Ok(Kind::Experts),
                _ => Err(config.bad(key, format!("names the unknown block `{letter}`"))),
            };
            pattern.chars().map(kind).collect::<Result<_, _>>()?
        }
    };
    match (kinds.len(), config.maybe_count("num_hidden_layers")?) {
        (0, _) => Err(config.bad(key, "names no block")),
        (4097.., _) => Err(config.bad(key, "names more than 4096 blocks")),
        (named, Some(layers)) if named != layers => {
            let problem = format!("is {layers}, but {named} blocks are named");
            Err(config.bad("num_hidden_layers", problem))
        }
        _ => Ok(kinds),
    }
}

fn attention(config: &Config<'_>) -> Result<AttentionSpec, ModelError> {
    let heads = count(config, "num_attention_heads", 32)?;
    let kv_heads = match config.is_null("num_key_value_heads") {
        true => heads,
        false => count(config, "num_key_value_heads", 8)?,
    };
    check_heads(config, heads, kv_heads)?;
    Ok(AttentionSpec::plain(heads, kv_heads, count(config, "head_dim", 128)?))
}

fn scan(config: &Config<'_>, eps: f32) -> Result<ScanSpec, ModelError> {
    let groups_key = spelt(config, ["n_groups", "mamba_n_groups"]);
    let taps_key = spelt(config, ["conv_kernel", "mamba_d_conv"]);
    let shape = ScanShape {
        heads: count(config, "mamba_num_heads", 128)?,
        groups: count(config, groups_key, 8)?,
        width: count(config, "mamba_head_dim", 64)?,
        state: count(config, "ssm_state_size", 128)?,
    };
    let taps = count(config, taps_key, 4)?;
    check_scan(config, [groups_key, taps_key], &shape, taps)?;
    Ok(ScanSpec {
        shape,
        taps,
        conv_bias: config.flag(spelt(config, ["use_conv_bias", "mamba_conv_bias"]), true)?,
        bias: config.flag("use_bias", false)?,
        limits: step_limits(config, spelt(config, ["time_step_limit", "mamba_dt_limit"]))?,
        norms: shape.groups,
        eps,
    })
}

fn experts(config: &Config<'_>) -> Result<MoeSpec, ModelError> {
    let experts = count(config, "n_routed_experts", 8)?;
    let top_k = count(config, "num_experts_per_tok", 2)?;
    let (groups, open) = (count(config, "n_group", 1)?, count(config, "topk_group", 1)?);
    if !experts.is_multiple_of(groups) {
        let problem = format!("is {groups}, which does not divide n_routed_experts = {experts}");
        return Err(config.bad("n_group", problem));
    }
    if open > groups {
        return Err(config.bad("topk_group", format!("is {open}, more than n_group = {groups}")));
    }
    // A group is ranked by its two best.
    let size = experts / groups;
    if groups > 1 && size < 2 {
        return Err(
            config.bad("n_group", format!("is {groups}, which leaves groups of one expert"))
        );
    }
    if top_k > open * size {
        let problem = format!("is {top_k}, more than the {} experts of open groups", open * size);
        return Err(config.bad("num_experts_per_tok", problem));
    }
    let renormalise = config.flag("norm_topk_prob", true)?.then_some(1e-20);
    let router = RouterSpec {
        scores: Scores::Sigmoid,
        bias: true,
        groups: (open < groups).then_some(ExpertGroups { count: groups, open, ranked_by: 2 }),
        renormalise,
        scale: config.positive("routed_scaling_factor", Some(1.0))? as f32,
    };
    let width = count(config, "moe_shared_expert_intermediate_size", 7688)?;
    let ffn = count(config, "moe_intermediate_size", 7688)?;
    let shared = Some(SharedExpertSpec { width, gated: false });
    Ok(MoeSpec { experts, top_k, ffn, router, shared })
}
