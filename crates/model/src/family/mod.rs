//! Families: each reads one kind of config into a [`ModelSpec`]. The only place that knows model names.

mod llama;
mod qwen_hybrid;

use crate::config::Config;
use crate::loader::Layout;
use crate::{ModelError, ModelSpec};
use forerun_weights::Checkpoint;

/// For error messages.
pub(crate) const SUPPORTED: &str =
    "llama, qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_text, qwen3_5_moe, qwen3_5_moe_text";

/// The network a checkpoint describes.
pub fn read_spec(checkpoint: &Checkpoint) -> Result<ModelSpec, ModelError> {
    read(checkpoint).map(|(spec, _)| spec)
}

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
        other => Err(ModelError::UnknownFamily(other.to_owned())),
    }
}

/// The network and how its tensors are named and stored.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<(ModelSpec, Layout), ModelError> {
    let mut layout = Layout::find(checkpoint);
    let mut spec = spec_from_config(checkpoint.config(), layout.mtp.is_some())?;
    if spec.family.starts_with("qwen3_next") || spec.family.starts_with("qwen3_5") {
        layout.decide_norms(checkpoint)?;
    }
    // A file without a head can only be tied, whatever the config leaves unsaid.
    let root = Config::root(checkpoint.config());
    let said = root.get("tie_word_embeddings").is_some()
        || root.section("text_config").is_some_and(|c| c.get("tie_word_embeddings").is_some());
    spec.tied |= !said && layout.head.is_none();
    Ok((spec, layout))
}

/// Refuses activations other than silu, which all families here use.
fn only_silu(config: &Config<'_>) -> Result<(), ModelError> {
    config.only("hidden_act", &["silu".into(), "swish".into()])
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
