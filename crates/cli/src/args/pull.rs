//! `forerun pull`.

use crate::hub_model;
use clap::Args;
use forerun_hub::{ModelName, RepoId};

const EXAMPLES: &str = "\
Examples:
  forerun pull Qwen/Qwen3.5-0.8B                   all that is needed to run it
  forerun run Qwen/Qwen3.5-0.8B \"Hello\"            run it from the cache
  forerun pull OWNER/NAME-GGUF:Q4_K_M              one file of several, by its quantisation
  forerun pull OWNER/NAME --dry-run                list files and sizes
  forerun pull OWNER/COPY --mtp-from OWNER/NAME    add the MTP head that a copy lost
  forerun pull OWNER/NAME --mtp-only               the head alone, for a GGUF that lost it
  forerun run FILE.gguf --drafter OWNER/NAME

Models lie in the cache that the hub's other programs use: HF_HUB_CACHE, else HF_HOME/hub, else
~/.cache/huggingface/hub. Gated models need a token: HF_TOKEN, else HF_HOME/token. HF_ENDPOINT names
another hub, HTTPS_PROXY a proxy, SSL_CERT_FILE other trusted certificates.
A transfer that breaks goes on where it broke when the command is run again.";

/// Fetch a model from the Hugging Face hub
///
/// Prints the folder or file to give to `forerun run`. Files are checked against the hub's checksums.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PullArgs {
    /// The model, or a short name such as llama3.2-1b; FILE is a file name or a quantisation such as Q4_K_M
    #[arg(value_name = "OWNER/NAME[:FILE]", value_parser = hub_model::parse)]
    pub(crate) model: ModelName,

    /// A branch, a tag or a commit
    #[arg(long, value_name = "REV", default_value = "main")]
    pub(crate) revision: String,

    /// List files and sizes; fetch nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Use no network: find the model in the cache or say what is missing
    #[arg(long)]
    pub(crate) offline: bool,

    /// Fetch only the files that hold the MTP head
    ///
    /// They serve as `--drafter OWNER/NAME` for a copy of the model, a GGUF file for instance.
    #[arg(long)]
    pub(crate) mtp_only: bool,

    /// Put the MTP head of this model beside one that has none
    ///
    /// Only the bytes of the head are fetched. They become `model-mtp.safetensors` in the model's
    /// folder.
    #[arg(long, value_name = "OWNER/NAME", conflicts_with_all = ["mtp_only", "offline", "dry_run"])]
    pub(crate) mtp_from: Option<RepoId>,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: repo, revision, commit, path, files (name, bytes, cached), bytes, downloaded_bytes, mtp.
    #[arg(long)]
    pub(crate) json: bool,
}
