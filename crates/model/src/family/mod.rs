//! Families: each reads one kind of config into a [`ModelSpec`]. The only place that knows model names.

pub(crate) mod assistant;
pub(crate) mod deepseek_v4;
mod gemma3;
mod gemma4;
mod lfm2;
mod llama;
mod mlx;
mod qwen4_exp;
mod qwen_hybrid;

pub use mlx::MlxForm;

use crate::config::Config;
use crate::loader::Layout;
use crate::{ModelError, ModelSpec};
use forerun_weights::Checkpoint;

/// For error messages.
pub(crate) const SUPPORTED: &str = "llama, qwen3, qwen3_moe, qwen3_next, qwen3_5(_text), qwen3_5_moe(_text), gemma3(_text), gemma4(_text), gemma4_unified, lfm2, qwen4_exp(_text), deepseek_v4";

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
        "lfm2" => lfm2::read(family, &root),
        "qwen4_exp" | "qwen4_exp_text" => qwen4_exp::read(family, &root),
        "deepseek_v4" => deepseek_v4::read(family, &root),
        other => Err(ModelError::UnknownFamily(other.to_owned())),
    }
}

/// Whether a config is of a model that was published with an MTP head, whatever its files hold.
pub fn published_with_mtp(config: &serde_json::Value) -> bool {
    let text = config.get("text_config").unwrap_or(&serde_json::Value::Null);
    let layers = |config: &serde_json::Value| config.get("mtp_num_hidden_layers")?.as_u64();
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
    let mut spec = spec_from_config(checkpoint.config(), layout.mtp.is_some())?;
    let offset_norms = ["qwen3_next", "qwen3_5", "qwen4_exp"];
    if offset_norms.iter().any(|family| spec.family.starts_with(family)) {
        layout.decide_norms(checkpoint)?;
    } else if spec.family.starts_with("gemma3") && !layout.gamma {
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
    let mut windowed: Vec<bool> = match layer_types(config, layers)? {
        Some(types) => types.into_iter().map(kind).collect::<Result<_, _>>()?,
        None => (1..=layers).map(|i| !i.is_multiple_of(pattern)).collect(),
    };
    if let Some(last) = windowed.last_mut().filter(|_| last_is_whole) {
        *last = false;
    }
    Ok(windowed)
}

/// `layer_types`, one name per layer, where it is given.
fn layer_types<'a>(config: &Config<'a>, layers: usize) -> Result<Option<Vec<&'a str>>, ModelError> {
    let Some(types) = config.list("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        let problem = format!("has {} entries for {layers} layers", types.len());
        return Err(config.bad("layer_types", problem));
    }
    let name = |value: &'a serde_json::Value| {
        let wrong = || config.bad("layer_types", format!("names the unknown mixer {value}"));
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
