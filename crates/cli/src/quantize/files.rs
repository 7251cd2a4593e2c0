//! The small files around the weights: config, index, manifest of the MTP head.

use super::folder::put;
use super::layout::Shard;
use super::plan::{Plan, Source};
use super::policy::Choice;
use anyhow::Context;
use forerun_weights::Checkpoint;
use forerun_weights::config::Scheme;
use serde_json::{Map, Value, json};
use std::path::Path;

pub(super) const CONFIG: &str = "config.json";
pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const MANIFEST: &str = "mtp/manifest.json";

/// Says that the norms of the MTP head are stored as the factor itself.
pub(super) fn write_manifest(to: &Path) -> anyhow::Result<()> {
    let manifest = json!({ "rmsnorm_weight_format": "mlx_gamma" });
    put(&to.join(MANIFEST), serde_json::to_string_pretty(&manifest)?.as_bytes())
}

/// Writes the index: which tensor lies in which file. It does not list the MTP head, which other
/// readers would not know.
pub(super) fn write_index(to: &Path, shards: &[Shard<'_>], parameters: u64) -> anyhow::Result<()> {
    let mut places = Map::new();
    let shards = || shards.iter().filter(|shard| !shard.is_sidecar());
    for shard in shards() {
        let place = |entry: &forerun_weights::safetensors::Entry| {
            (entry.name.clone(), Value::from(shard.name.as_str()))
        };
        places.extend(shard.entries.iter().map(place));
    }
    places.sort_keys();
    let bytes: u64 = shards().map(|shard| shard.bytes).sum();
    let index = json!({
        "metadata": { "total_size": bytes, "total_parameters": parameters },
        "weight_map": places,
    });
    put(&to.join(INDEX), serde_json::to_string_pretty(&index)?.as_bytes())
}

/// The config of the new model: the old one, with another `quantization`.
pub(super) fn write_config(
    to: &Path,
    checkpoint: &Checkpoint,
    quantization: &Value,
) -> anyhow::Result<()> {
    let mut config = checkpoint.config().clone();
    let vocabulary = config.pointer("/text_config/vocab_size").cloned();
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        text.shift_remove("quantization_config");
    }
    let root = config.as_object_mut().context("config.json is no object")?;
    root.insert("quantization".into(), quantization.clone());
    // Other readers look for it under this name.
    root.insert("quantization_config".into(), quantization.clone());
    let family = root.get("model_type").and_then(Value::as_str).unwrap_or_default();
    // MLX reads this family's vocabulary from the top.
    if let Some(vocabulary) = vocabulary.filter(|_| family.starts_with("gemma4")) {
        root.insert("vocab_size".into(), vocabulary);
    }
    put(&to.join(CONFIG), serde_json::to_string_pretty(&config)?.as_bytes())
}

/// What the config says about precision: the defaults, and every module that differs.
pub(super) fn quantization(plan: &Plan, choices: &[Option<Choice>], base: Scheme) -> Value {
    let mut all = scheme_json(base);
    for (job, choice) in plan.jobs.iter().zip(choices) {
        let Source::Matrix { .. } = job.source else { continue };
        let entry = match choice {
            Some(Choice::Encode(scheme)) if *scheme == base => continue,
            Some(Choice::Encode(scheme)) => Value::Object(scheme_json(*scheme)),
            Some(Choice::Full | Choice::Indivisible) | None => Value::Bool(false),
        };
        all.insert(job.target.clone(), entry);
    }
    Value::Object(all)
}

fn scheme_json(scheme: Scheme) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("group_size".into(), scheme.group.into());
    entry.insert("bits".into(), scheme.bits.into());
    entry.insert("mode".into(), scheme.mode.to_string().into());
    entry
}
