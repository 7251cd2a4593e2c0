//! Where keys come from.

use crate::args::ServeArgs;
use anyhow::{Context, bail};

const VARIABLE: &str = "FORERUN_API_KEY";

/// Keys that were typed, from a file and from the environment.
pub(super) fn read(args: &ServeArgs) -> anyhow::Result<Vec<String>> {
    let mut keys = args.api_key.clone();
    keys.extend(std::env::var(VARIABLE).ok());
    if let Some(path) = &args.api_key_file {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let lines: Vec<String> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect();
        // An empty file must not open the server to everyone.
        if lines.is_empty() {
            bail!("{} holds no key; write one per line", path.display());
        }
        keys.extend(lines);
    }
    if keys.iter().any(|key| key.is_empty()) {
        bail!("a key is empty; give a longer one, or unset {VARIABLE}");
    }
    Ok(keys)
}
