//! Whether a model has its MTP head, and where to get it if not.

use forerun_hub::RepoId;
use forerun_model::published_with_mtp;
use forerun_weights::{Checkpoint, is_mtp_tensor};
use serde::Serialize;
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
        match (published_with_mtp(checkpoint.config()), checkpoint.gguf()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_head_names_the_command_that_adds_it() {
        let (copy, original) = ("a/copy".parse().unwrap(), "b/whole".parse().unwrap());
        let remark = MtpState::Missing.remark(Some(&copy), &[original]);
        assert!(remark.ends_with("forerun pull a/copy --mtp-from b/whole"), "{remark}");
        assert!(MtpState::Missing.remark(None, &[]).contains("ORIGINAL"));
    }
}
