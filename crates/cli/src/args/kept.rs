//! `forerun list` and `forerun rm`.

use crate::hub_model;
use clap::Args;
use forerun_hub::ModelName;

/// List the models in the hub's cache
///
/// With the bytes they take on disk. Files of GGUF models are listed one by one, as each is a model.
#[derive(Args, Debug)]
#[command(visible_alias = "ls")]
pub(crate) struct ListArgs {
    /// Print one JSON object: cache, models (name, bytes, gguf, path, fetched in Unix seconds), bytes
    #[arg(long)]
    pub(crate) json: bool,
}

const EXAMPLES: &str = "\
Examples:
  forerun rm Qwen/Qwen3.5-0.8B
  forerun rm OWNER/NAME:Q4_K_M          one GGUF of several; the others stay";

/// Remove models from the hub's cache
///
/// At a terminal you are asked first; elsewhere --yes is needed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemoveArgs {
    /// The models; FILE is a GGUF file or a quantisation such as Q4_K_M
    #[arg(value_name = "OWNER/NAME[:FILE]", required = true, value_parser = hub_model::parse)]
    pub(crate) models: Vec<ModelName>,

    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}
