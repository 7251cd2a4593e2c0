//! A conversation in a file: JSON that `/save` writes and `/load` reads.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::env;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The form of the file.
const VERSION: u32 = 1;
/// More than this is no conversation that somebody typed.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedChat {
    forerun_chat: u32,
    pub(super) model: String,
    pub(super) settings: Map<String, Value>,
    pub(super) messages: Vec<Value>,
}

impl SavedChat {
    pub(super) fn new(model: &str, settings: Map<String, Value>, messages: &[Value]) -> Self {
        let (model, messages) = (model.to_owned(), messages.to_vec());
        Self { forerun_chat: VERSION, model, settings, messages }
    }

    /// Writes it, over an older conversation too but over no other file. It may hold anything that was said, so only
    /// its owner may read it.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let named = || path.display().to_string();
        if path.exists() {
            Self::read(path).context("not overwritten")?;
        }
        let mut name = path.file_name().context("not the name of a file")?.to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&part).with_context(named)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        file.write_all(text.as_bytes()).with_context(named)?;
        std::fs::rename(&part, path).with_context(named)
    }

    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let named = || path.display().to_string();
        let file = forerun_base::open_regular(path).with_context(named)?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).with_context(named)?;
        let saved: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no saved conversation", path.display()))?;
        if saved.forerun_chat != VERSION {
            bail!("{} has form {}, and only {VERSION} is known", named(), saved.forerun_chat);
        }
        for (i, message) in saved.messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            let known = ["system", "user", "assistant"].contains(&role);
            if !known || !message["content"].is_string() {
                bail!("{}: messages[{i}] has no role and text of a conversation", named());
            }
        }
        Ok(saved)
    }
}

/// A path as a shell would have it.
pub(super) fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_comes_back_and_replaces_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chat.json");
        let messages = [json!({"role": "user", "content": "hi"})];
        let saved = SavedChat::new("m", Map::new(), &messages);
        saved.write(&file).unwrap();
        saved.write(&file).unwrap();
        assert_eq!(SavedChat::read(&file).unwrap(), saved);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        for text in [
            "hello",
            r#"{"forerun_chat": 2, "model": "", "settings": {}, "messages": []}"#,
            r#"{"forerun_chat": 1, "model": "", "settings": {}, "messages": [{"role": "user"}]}"#,
            r#"{"forerun_chat": 1, "model": "", "settings": {}, "messages": [], "more": 1}"#,
        ] {
            std::fs::write(&file, text).unwrap();
            assert!(SavedChat::read(&file).is_err(), "{text}");
            assert!(saved.write(&file).is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
    }
}
