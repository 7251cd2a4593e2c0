//! Where keys come from.

use crate::args::ServeArgs;
use anyhow::{Context, bail};
use std::path::Path;

const VARIABLE: &str = "FORERUN_API_KEY";

/// API keys that were typed, from a file and from the environment.
pub(super) fn api(args: &ServeArgs) -> anyhow::Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    keys.extend(std::env::var(VARIABLE).ok());
    if let Some(path) = &args.api_key_file {
        keys.extend(in_file(path)?);
    }
    if keys.iter().any(|key| key.is_empty()) {
        bail!("a key is empty; give a longer one, or unset {VARIABLE}");
    }
    Ok(keys)
}

/// Admin keys, from a file.
pub(super) fn admin(args: &ServeArgs) -> anyhow::Result<Vec<String>> {
    args.admin_key_file.as_deref().map_or(Ok(Vec::new()), in_file)
}

/// One key per line.
fn in_file(path: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let keys: Vec<String> = lines.map(str::to_owned).collect();
    // An empty file must not open the server to everyone.
    if keys.is_empty() {
        bail!("{} holds no key; write one per line", path.display());
    }
    Ok(keys)
}
