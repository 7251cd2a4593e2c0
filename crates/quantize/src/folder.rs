//! The folder that is written: whose it is, what may be removed from it, and how far an earlier
//! run came.
//!
//! While weights are written, `quantize.partial.json` says what for. A run with the same settings
//! and the same source goes on with the files that are whole; any other is refused. There is no
//! `config.json` until the very end, so nobody takes a half-written folder for a model.

use super::layout::{SIDECAR, Shard};
use super::write::{PartialFile, rename};
use super::{files, text};
use crate::QuantizeError;
use forerun_weights::Checkpoint;
use forerun_weights::safetensors::header;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const STATE: &str = "quantize.partial.json";
/// Bytes of a source file that tell it from another; more than any header, and than the vocabulary
/// at the beginning of a GGUF file.
const HEAD: usize = 32 << 20;

/// What is being made of what.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// For people, and for what does not show in the files' headers.
    settings: String,
    /// Of the headers of all new files.
    files: String,
    source: Vec<SourceFile>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SourceFile {
    name: String,
    bytes: u64,
    head: String,
}

impl Identity {
    pub(super) fn new(checkpoint: &Checkpoint, shards: &[Shard], settings: String) -> Self {
        let mut hash = Hash::new();
        for shard in shards {
            hash.add(shard.name.as_bytes());
            hash.add(&header(&shard.entries, None).unwrap_or_default());
        }
        let source = checkpoint.files().iter().map(|file| {
            let bytes = file.bytes();
            let mut head = Hash::new();
            head.add(&bytes[..bytes.len().min(HEAD)]);
            let name = file.path().file_name().unwrap_or_default().to_string_lossy();
            SourceFile { name: name.into(), bytes: bytes.len() as u64, head: head.text() }
        });
        Self { settings, files: hash.text(), source: source.collect() }
    }
}

/// A folder that may be written to.
#[derive(Debug)]
pub(super) struct TargetFolder {
    pub(super) path: PathBuf,
    /// Whether an earlier run left whole files for this one.
    pub(super) resumes: bool,
}

impl TargetFolder {
    /// Makes the folder ready, or says why it must not be touched.
    pub(super) fn prepare(
        path: &Path,
        checkpoint: &Checkpoint,
        identity: &Identity,
        force: bool,
    ) -> Result<Self, QuantizeError> {
        if is_same(path, checkpoint.folder()) {
            return Err(QuantizeError::SameFolder(path.to_owned()));
        }
        std::fs::create_dir_all(path).map_err(QuantizeError::file(path))?;
        let state = path.join(STATE);
        let resumes = match read_state(&state)? {
            Some(found) if found.as_ref() == Some(identity) => true,
            Some(_) if !force => {
                return Err(QuantizeError::OtherQuantization(path.to_owned()));
            }
            None if !force && holds_something(path)? => {
                return Err(QuantizeError::NotEmpty(path.to_owned()));
            }
            _ => {
                clear(path, checkpoint)?;
                false
            }
        };
        if !resumes {
            put(&state, files::json_text(identity).as_bytes())?;
        }
        Ok(Self { path: path.to_owned(), resumes })
    }

    /// Says that the folder is whole.
    pub(super) fn finish(&self) -> Result<(), QuantizeError> {
        let state = self.path.join(STATE);
        std::fs::remove_file(&state).map_err(QuantizeError::file(&state))
    }
}

/// Writes a small file under another name, then gives it its own.
pub(super) fn put(path: &Path, bytes: &[u8]) -> Result<(), QuantizeError> {
    let partial = PartialFile(partial_of(path));
    let write = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let mut file = File::create(&partial.0)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(QuantizeError::file(path))?;
    rename(&partial.0, path)
}

/// `None` without a state; `Some(None)` when it is not readable as one.
fn read_state(path: &Path) -> Result<Option<Option<Identity>>, QuantizeError> {
    match forerun_base::read_regular(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).ok())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(QuantizeError::file(path)(cause)),
    }
}

fn holds_something(path: &Path) -> Result<bool, QuantizeError> {
    let mut entries = std::fs::read_dir(path).map_err(QuantizeError::file(path))?;
    Ok(entries.next().is_some())
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Removes every file that a reader would take for a part of the model, and nothing else. The
/// config goes first: what is left after an interruption is no model.
fn clear(folder: &Path, checkpoint: &Checkpoint) -> Result<(), QuantizeError> {
    let mut doomed = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(QuantizeError::file(folder))? {
        let entry = entry.map_err(QuantizeError::file(folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_part_of_a_model(&name) {
            doomed.push(entry.path());
        }
    }
    let head = [SIDECAR, files::MANIFEST].map(|name| folder.join(name));
    doomed.extend(head.iter().flat_map(|path| [path.clone(), partial_of(path)]));
    doomed.retain(|path| path.is_file());
    doomed.sort_by_key(|path| path.file_name().is_some_and(|name| name != "config.json"));
    for path in &doomed {
        if checkpoint.files().iter().any(|file| is_same(file.path(), path)) {
            return Err(QuantizeError::SourceFile(path.clone()));
        }
    }
    for path in &doomed {
        std::fs::remove_file(path).map_err(QuantizeError::file(path))?;
    }
    // Goes only if nothing else is in it.
    if let Some(folder) = head[0].parent() {
        let _ = std::fs::remove_dir(folder);
    }
    Ok(())
}

/// What a file is called until it is whole.
pub(super) fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

fn is_part_of_a_model(name: &str) -> bool {
    let whole = name.strip_suffix(".partial").unwrap_or(name);
    let weights = whole.starts_with("model") && whole.ends_with(".safetensors");
    weights || [files::CONFIG, files::INDEX, STATE].contains(&whole) || text::is_side_file(whole)
}

/// FNV-1a, 64 bits: tells files apart; it keeps no secret.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}
