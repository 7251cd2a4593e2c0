//! The small files around the weights: config, index, manifest of the MTP head.

use super::folder::put;
use super::layout::Shard;
use super::plan::{CheckpointPlan, JobSource};
use super::policy::ModulePrecision;
use crate::QuantizeError;
use forerun_model::MlxForm;
use forerun_weights::Checkpoint;
use forerun_weights::config::Scheme;
use forerun_weights::safetensors::NewTensor;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::Path;

pub(super) const CONFIG: &str = "config.json";
pub(super) const INDEX: &str = "model.safetensors.index.json";
pub(super) const MANIFEST: &str = "mtp/manifest.json";

/// A JSON value as text.
pub(super) fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("keys are strings, so nothing can fail")
}

/// Says that the norms of the MTP head are stored as the factor itself.
pub(super) fn write_manifest(to: &Path) -> Result<(), QuantizeError> {
    let manifest = json!({ "rmsnorm_weight_format": "mlx_gamma" });
    put(&to.join(MANIFEST), json_text(&manifest).as_bytes())
}

/// Writes the index: which tensor lies in which file. It does not list the MTP head, which other
/// readers would not know.
pub(super) fn write_index(
    to: &Path,
    shards: &[Shard],
    parameters: u64,
) -> Result<(), QuantizeError> {
    let mut files_of = Map::new();
    let shards = || shards.iter().filter(|shard| !shard.is_sidecar());
    for shard in shards() {
        let file_of = |entry: &NewTensor| (entry.name.clone(), Value::from(shard.name.as_str()));
        files_of.extend(shard.entries.iter().map(file_of));
    }
    files_of.sort_keys();
    let bytes: u64 = shards().map(|shard| shard.bytes).sum();
    let index = json!({
        "metadata": { "total_size": bytes, "total_parameters": parameters },
        "weight_map": files_of,
    });
    put(&to.join(INDEX), json_text(&index).as_bytes())
}

/// The config of the new model: the old one, with another `quantization`.
pub(super) fn write_config(
    to: &Path,
    checkpoint: &Checkpoint,
    mlx: MlxForm,
    quantization: &Value,
) -> Result<(), QuantizeError> {
    let mut config = checkpoint.config().clone();
    let vocabulary = config.pointer("/text_config/vocab_size").cloned();
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        text.shift_remove("quantization_config");
    }
    let root = config.as_object_mut().ok_or(QuantizeError::Config)?;
    root.insert("quantization".into(), quantization.clone());
    // Other readers look for it under this name.
    root.insert("quantization_config".into(), quantization.clone());
    if let Some(vocabulary) = vocabulary.filter(|_| mlx.vocabulary_at_root) {
        root.insert("vocab_size".into(), vocabulary);
    }
    put(&to.join(CONFIG), json_text(&config).as_bytes())
}

/// What the config says about precision: the defaults, and every module that differs.
pub(super) fn quantization(
    plan: &CheckpointPlan,
    choices: &[Option<ModulePrecision>],
    base: Scheme,
) -> Value {
    let mut all = scheme_json(base);
    for (job, choice) in plan.jobs.iter().zip(choices) {
        let JobSource::Matrix { .. } = job.source else { continue };
        let entry = match choice {
            Some(ModulePrecision::Encode(scheme)) if *scheme == base => continue,
            Some(ModulePrecision::Encode(scheme)) => Value::Object(scheme_json(*scheme)),
            Some(ModulePrecision::Full | ModulePrecision::Indivisible) | None => Value::Bool(false),
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
