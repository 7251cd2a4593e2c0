//! Families: each reads one kind of config into a [`ModelSpec`]. The only place that knows model names.

pub(crate) mod assistant;
mod deepseek_v3;
pub(crate) mod deepseek_v4;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4_moe;
mod granite;
mod kimi_linear;
mod lfm2;
mod llama;
mod mlx;
mod nemotron_h;
mod olmo_hybrid;
mod qwen4_exp;
mod qwen_hybrid;
mod routed;

pub use mlx::MlxForm;

use crate::config::Config;
use crate::loader::Layout;
use crate::{ModelError, ModelSpec};
use forerun_backend::op::ScanShape;
use forerun_weights::Checkpoint;

/// For error messages.
pub(crate) const SUPPORTED: &str = "llama, qwen3, qwen3_moe, qwen3_next, qwen3_5(_text), qwen3_5_moe(_text), qwen4_exp(_text), gemma3(_text), gemma3n(_text), gemma4(_text), gemma4_unified, lfm2, lfm2_moe, olmo_hybrid, granitemoehybrid, nemotron_h, glm4_moe, deepseek_v3, deepseek_v4, kimi_linear";

/// The network that a config describes, without looking at tensors; `has_mtp` says whether the
/// checkpoint holds an MTP head.
pub fn spec_from_config(
    config: &serde_json::Value,
    has_mtp: bool,
) -> Result<ModelSpec, ModelError> {
    let root = Config::root(config);
    let family = root.text("model_type")?.ok_or_else(|| root.bad("model_type", "is missing"))?;
    match family {
        "llama" | "qwen3" | "qwen3_moe" => llama::read(family, &root),
        "qwen3_next" | "qwen3_5" | "qwen3_5_text" | "qwen3_5_moe" | "qwen3_5_moe_text" => {
            qwen_hybrid::read(family, &root, has_mtp)
        }
        "gemma3" | "gemma3_text" => gemma3::read(family, &root),
        "gemma4" | "gemma4_text" | "gemma4_unified" => gemma4::read(family, &root),
        "gemma3n" | "gemma3n_text" => gemma3n::read(family, &root),
        "granitemoehybrid" => granite::read(family, &root),
        "lfm2" | "lfm2_moe" => lfm2::read(family, &root),
        "nemotron_h" => nemotron_h::read(family, &root),
        "olmo_hybrid" => olmo_hybrid::read(family, &root),
        "glm4_moe" => glm4_moe::read(family, &root, has_mtp),
        "deepseek_v3" => deepseek_v3::read(family, &root, has_mtp),
        "kimi_linear" => kimi_linear::read(family, &root),
        "qwen4_exp" | "qwen4_exp_text" => qwen4_exp::read(family, &root),
        "deepseek_v4" => deepseek_v4::read(family, &root),
        other => Err(ModelError::UnknownFamily(other.to_owned())),
    }
}

/// Whether a config is of a model that was published with an MTP head, whatever its files hold.
pub fn published_with_mtp(config: &serde_json::Value) -> bool {
    let text = config.get("text_config").unwrap_or(&serde_json::Value::Null);
    let layers = |config: &serde_json::Value| {
        let keys = ["mtp_num_hidden_layers", "num_nextn_predict_layers"];
        keys.iter().find_map(|key| config.get(key)?.as_u64())
    };
    match layers(config).or_else(|| layers(text)) {
        Some(layers) => layers >= 1,
        None => config
            .get("model_type")
            .and_then(serde_json::Value::as_str)
            .is_some_and(|family| family == "qwen3_next" || family.starts_with("qwen3_5")),
    }
}

/// The network and how its tensors are named and stored.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<(ModelSpec, Layout), ModelError> {
    let mut layout = Layout::find(checkpoint);
    let mut spec = spec_from_config(checkpoint.config(), layout.has_mtp())?;
    let offset_norms = ["qwen3_next", "qwen3_5", "qwen4_exp"];
    if offset_norms.iter().any(|family| spec.family.starts_with(family)) {
        layout.decide_norms(checkpoint)?;
    } else if ["gemma3", "gemma3_text"].contains(&spec.family.as_str()) && !layout.gamma {
        layout.norm_offset = 1.0;
    }
    // A file without a head can only be tied, whatever the config leaves unsaid.
    let root = Config::root(checkpoint.config());
    let said = root.get("tie_word_embeddings").is_some()
        || root.get("tie_embedding").is_some()
        || root.section("text_config").is_some_and(|c| c.get("tie_word_embeddings").is_some());
    spec.tied |= !said && layout.head.is_none();
    Ok((spec, layout))
}

/// Refuses activations other than silu, which all families here use.
fn only_silu(config: &Config<'_>) -> Result<(), ModelError> {
    config.only("hidden_act", &["silu".into(), "swish".into()])
}

/// The same for families that use the tanh form of gelu.
fn only_gelu(config: &Config<'_>) -> Result<(), ModelError> {
    let known = ["gelu_pytorch_tanh".into()];
    config.only("hidden_activation", &known)?;
    match config.get("hidden_activation") {
        // `hidden_act` is a leftover beside `hidden_activation`.
        Some(_) => Ok(()),
        None => config.only("hidden_act", &known),
    }
}

/// Whether the embedding is the head: the outer config's word goes before the inner one's.
fn tied(root: &Config<'_>, config: &Config<'_>, default: bool) -> Result<bool, ModelError> {
    match root.get("tie_word_embeddings") {
        Some(_) => root.flag("tie_word_embeddings", default),
        None => config.flag("tie_word_embeddings", default),
    }
}

/// Which layers have a window: those `layer_types` names, or all but every `pattern`-th; when `last_is_whole`, the
/// last one has none whatever the config says.
fn windowed_layers(
    config: &Config<'_>,
    pattern: usize,
    last_is_whole: bool,
) -> Result<Vec<bool>, ModelError> {
    let layers = config.layers("num_hidden_layers")?;
    let kind = |name: &str| match name {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(config.bad("layer_types", format!("names the unknown mixer `{other}`"))),
    };
    let mut windowed: Vec<bool> = match layer_types(config, "layer_types", layers)? {
        Some(types) => types.into_iter().map(kind).collect::<Result<_, _>>()?,
        None => (1..=layers).map(|i| !i.is_multiple_of(pattern)).collect(),
    };
    if let Some(last) = windowed.last_mut().filter(|_| last_is_whole) {
        *last = false;
    }
    Ok(windowed)
}

/// `layer_types`, or what else the key is, one name per layer, where it is given.
fn layer_types<'a>(
    config: &Config<'a>,
    key: &str,
    layers: usize,
) -> Result<Option<Vec<&'a str>>, ModelError> {
    let Some(types) = config.list(key)? else { return Ok(None) };
    if types.len() != layers {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(config.bad(key, problem));
    }
    let name = |value: &'a serde_json::Value| {
        let wrong = || config.bad(key, format!("names the unknown mixer {value}"));
        value.as_str().ok_or_else(wrong)
    };
    types.iter().map(name).collect::<Result<_, _>>().map(Some)
}

/// Refuses a sliding window that is switched on.
fn no_sliding_window(config: &Config<'_>) -> Result<(), ModelError> {
    config.only("use_sliding_window", &[false.into()])
}

/// Checks what attention heads need to fit together.
fn check_heads(config: &Config<'_>, heads: usize, kv_heads: usize) -> Result<(), ModelError> {
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let problem = format!("is {kv_heads}, which does not divide num_attention_heads = {heads}");
    Err(config.bad("num_key_value_heads", problem))
}

/// Checks what the sizes of Mamba-2 need to fit together, by the keys of groups and of taps.
fn check_scan(
    config: &Config<'_>,
    [groups, conv]: [&str; 2],
    shape: &ScanShape,
    taps: usize,
) -> Result<(), ModelError> {
    if !shape.heads.is_multiple_of(shape.groups) {
        let problem = format!("is {}, which does not divide {} heads", shape.groups, shape.heads);
        return Err(config.bad(groups, problem));
    }
    match taps {
        0 | 1 => Err(config.bad(conv, format!("is {taps}, expected at least 2"))),
        _ => Ok(()),
    }
}

/// The smallest and the largest step of Mamba-2; any where nothing is said.
fn step_limits(config: &Config<'_>, key: &str) -> Result<[f32; 2], ModelError> {
    let Some(list) = config.list(key)? else { return Ok([0.0, f32::INFINITY]) };
    // Infinity is no JSON: transformers stores it as an object or as a bare word, which is read as null.
    let number = |value: &serde_json::Value| match value.get("__float__").and_then(|v| v.as_str()) {
        Some("Infinity") => Some(f64::INFINITY),
        _ if value.is_null() => Some(f64::INFINITY),
        _ => value.as_f64(),
    };
    match list.iter().map(number).collect::<Option<Vec<_>>>().as_deref() {
        Some(&[least, most]) if (0.0..=most).contains(&least) && least.is_finite() => {
            Ok([least as f32, most as f32])
        }
        _ => Err(config.bad(key, "is not a smallest and a largest step")),
    }
}
