//! What was typed in earlier chats: a file of the user's state folder, which nobody else may read.

use crate::terminal;
use anyhow::{Context, bail};
use rustyline::{Config, DefaultEditor};
use std::env;
use std::path::{Path, PathBuf};

/// Messages that are kept.
const KEPT: usize = 1000;

/// The line editor of a chat, and the file it keeps its lines in.
pub(super) struct Lines {
    pub(super) editor: DefaultEditor,
    /// `None` keeps nothing.
    file: Option<PathBuf>,
}

impl Lines {
    /// An editor that knows the lines of earlier chats, if `kept`. A chat without a history is still a chat.
    pub(super) fn open(kept: bool) -> anyhow::Result<Self> {
        let config = Config::builder().max_history_size(KEPT)?.build();
        let mut editor = DefaultEditor::with_config(config)?;
        let file = match kept.then(file) {
            None => None,
            Some(Ok(file)) => Some(file),
            Some(Err(error)) => {
                terminal::aside(&format!("history is not kept: {error:#}"));
                None
            }
        };
        if let Some(file) = file.as_deref().filter(|file| file.exists()) {
            // One that cannot be read is no reason not to talk.
            if let Err(error) = editor.load_history(file) {
                terminal::aside(&format!("{}: {error}", file.display()));
            }
        }
        Ok(Self { editor, file })
    }

    /// Keeps a message, in the file at once: a chat may end in any way.
    pub(super) fn keep(&mut self, message: &str) -> anyhow::Result<()> {
        self.editor.add_history_entry(message)?;
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = self.editor.append_history(file) {
            terminal::aside(&format!("history is not kept: {}: {error}", file.display()));
            self.file = None;
        }
        Ok(())
    }
}

/// The file, in a folder that is there.
fn file() -> anyhow::Result<PathBuf> {
    let Some(state) = state_folder(&|name| env::var_os(name).map(PathBuf::from)) else {
        bail!("neither XDG_STATE_HOME nor HOME says where")
    };
    let folder = state.join("forerun");
    make_private(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join("history"))
}

/// Where programs keep what is worth keeping between runs, by the rules of the XDG base directories.
fn state_folder(variable: &dyn Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let absolute = |name| variable(name).filter(|path: &PathBuf| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .or_else(|| absolute("LOCALAPPDATA"))
}

fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_is_the_one_that_was_set_and_else_in_the_home() {
        let find = |set: &[(&str, &str)]| {
            let set: Vec<(String, PathBuf)> =
                set.iter().map(|(name, path)| ((*name).to_owned(), path.into())).collect();
            state_folder(&|name| Some(set.iter().find(|(own, _)| own == name)?.1.clone()))
        };
        let home = ("HOME", "/home/x");
        assert_eq!(find(&[home]), Some("/home/x/.local/state".into()));
        assert_eq!(find(&[home, ("XDG_STATE_HOME", "/s")]), Some("/s".into()));
        assert_eq!(find(&[home, ("XDG_STATE_HOME", "s")]), Some("/home/x/.local/state".into()));
        assert_eq!(find(&[]), None);
    }
}
