//! What was fetched, or would be.

use crate::mtp_state::MtpState;
use crate::report::bytes_text;
use forerun_hub::{DownloadPlan, RepoId};
use forerun_model::ModelError;
use forerun_weights::Checkpoint;
use serde::Serialize;
use std::path::PathBuf;

/// `--json`.
#[derive(Serialize)]
pub(super) struct PullReport {
    repo: String,
    revision: String,
    commit: String,
    path: PathBuf,
    files: Vec<PulledFile>,
    bytes: u64,
    downloaded_bytes: u64,
    /// `None` where no whole model was fetched.
    mtp: Option<MtpReport>,
}

#[derive(Serialize)]
struct PulledFile {
    name: String,
    bytes: u64,
    /// Before this command.
    cached: bool,
}

/// The MTP head of what was fetched.
#[derive(Serialize)]
pub(super) struct MtpReport {
    #[serde(flatten)]
    state: Option<MtpState>,
    /// Why nothing can be said: the model cannot be opened.
    error: Option<String>,
    /// What the model card names as the model's origin.
    originals: Vec<String>,
    #[serde(skip)]
    repos: Vec<RepoId>,
}

impl PullReport {
    pub(super) fn new(plan: &DownloadPlan, downloaded_bytes: u64, mtp: Option<MtpReport>) -> Self {
        let file = |file: &forerun_hub::PlannedFile| PulledFile {
            name: file.name.clone(),
            bytes: file.size,
            cached: file.cached,
        };
        Self {
            repo: plan.repo.to_string(),
            revision: plan.revision.clone(),
            commit: plan.commit.clone(),
            path: plan.path(),
            files: plan.files.iter().map(file).collect(),
            bytes: plan.bytes(),
            downloaded_bytes,
            mtp,
        }
    }
}

impl MtpReport {
    pub(super) fn new(opened: &Result<Checkpoint, ModelError>, plan: &DownloadPlan) -> Self {
        Self {
            state: opened.as_ref().ok().map(MtpState::of),
            error: opened.as_ref().err().map(ToString::to_string),
            originals: plan.originals.iter().map(ToString::to_string).collect(),
            repos: plan.originals.clone(),
        }
    }

    pub(super) fn remark(&self, copy: &RepoId) -> String {
        match (&self.state, &self.error) {
            (Some(state), _) => format!("mtp head: {}", state.remark(Some(copy), &self.repos)),
            (None, why) => {
                let why = why.as_deref().unwrap_or_default();
                format!("warning: this version cannot run the model: {why}")
            }
        }
    }
}

/// `--dry-run` for people.
pub(super) fn page(plan: &DownloadPlan) -> String {
    let mut page = format!("{} at {}\n", plan.repo, plan.commit);
    for file in &plan.files {
        let place = if file.cached { "  (in the cache)" } else { "" };
        page += &format!("  {:>10}  {}{place}\n", bytes_text(file.size), file.name);
    }
    let (all, missing) = (bytes_text(plan.bytes()), bytes_text(plan.missing_bytes()));
    page + &format!("  {all:>10}  in all, {missing} to fetch\n")
}
