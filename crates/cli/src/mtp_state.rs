//! Whether a model has its MTP head, and where to get it if not.

use forerun_hub::RepoId;
use forerun_weights::{Checkpoint, is_mtp_tensor};
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// What the files hold against what the model's type can have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum MtpState {
    Present {
        file: PathBuf,
    },
    /// The type has a head, the files do not hold it.
    Missing,
    /// Not in this GGUF file, which takes no sidecar.
    MissingInGguf,
    /// Models of this type have none.
    None,
}

impl MtpState {
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let stored = checkpoint.names().find(|name| is_mtp_tensor(name));
        if let Some(file) = stored.and_then(|name| checkpoint.file_of(name)) {
            return Self::Present { file: file.path().to_owned() };
        }
        match (can_have(checkpoint.config()), checkpoint.gguf()) {
            (false, _) => Self::None,
            (true, None) => Self::Missing,
            (true, Some(_)) => Self::MissingInGguf,
        }
    }

    /// One remark. `copy` is the model's name on the hub, `originals` what it was made from.
    pub(crate) fn remark(&self, copy: Option<&RepoId>, originals: &[RepoId]) -> String {
        let original = originals.first().map_or("ORIGINAL".to_owned(), RepoId::to_string);
        match self {
            Self::Present { file } => format!("present, in {}", file.display()),
            Self::None => "none; models of this type have none".to_owned(),
            Self::MissingInGguf => format!(
                "missing: models of this type have one, this file does not hold it; the original's \
                 can be used with\n  forerun pull {original} --mtp-only\n  forerun run … --drafter {original}"
            ),
            Self::Missing => {
                let copy = copy.map_or("OWNER/COPY".to_owned(), RepoId::to_string);
                format!(
                    "missing: models of this type have one, these files do not hold it; add it \
                     with\n  forerun pull {copy} --mtp-from {original}"
                )
            }
        }
    }
}

/// Whether a config is of a model that was published with a head.
fn can_have(config: &Value) -> bool {
    let text = config.get("text_config").unwrap_or(&Value::Null);
    let layers = |config: &Value| config.get("mtp_num_hidden_layers").and_then(Value::as_u64);
    match layers(config).or_else(|| layers(text)) {
        Some(layers) => layers >= 1,
        None => config
            .get("model_type")
            .and_then(Value::as_str)
            .is_some_and(|family| family == "qwen3_next" || family.starts_with("qwen3_5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn configs_tell_who_can_have_a_head() {
        let cases = [
            (json!({ "model_type": "qwen3_next" }), true),
            (json!({ "model_type": "qwen3_5_moe" }), true),
            (
                json!({ "model_type": "qwen3_5", "text_config": { "mtp_num_hidden_layers": 0 } }),
                false,
            ),
            (json!({ "model_type": "x", "text_config": { "mtp_num_hidden_layers": 1 } }), true),
            (json!({ "model_type": "x", "mtp_num_hidden_layers": 1 }), true),
            (json!({ "model_type": "qwen3" }), false),
            (json!(null), false),
        ];
        for (config, expected) in cases {
            assert_eq!(can_have(&config), expected, "{config}");
        }
    }

    #[test]
    fn a_missing_head_names_the_command_that_adds_it() {
        let (copy, original) = ("a/copy".parse().unwrap(), "b/whole".parse().unwrap());
        let remark = MtpState::Missing.remark(Some(&copy), &[original]);
        assert!(remark.ends_with("forerun pull a/copy --mtp-from b/whole"), "{remark}");
        assert!(MtpState::Missing.remark(None, &[]).contains("ORIGINAL"));
    }
}
