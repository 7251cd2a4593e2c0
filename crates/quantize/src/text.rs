//! What belongs to text: files that are carried over, or made from the vocabulary of a GGUF file.

use super::folder::put;
use crate::QuantizeError;
use forerun::gguf_text;
use forerun_text::{TextError, Vocabulary};
use forerun_weights::Checkpoint;
use forerun_weights::gguf::Metadata;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Files about text that are carried over as they are.
const SIDE_FILES: [&str; 11] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
];

pub(super) fn is_side_file(name: &str) -> bool {
    SIDE_FILES.contains(&name) || name.ends_with(".tiktoken")
}

/// The text files of the new model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SideFiles {
    /// Those of the source's folder.
    Folder(PathBuf),
    /// Names and contents.
    Made(Vec<(&'static str, String)>),
}

/// The text files, and why there is no tokenizer among them where a GGUF file's cannot be one.
pub(super) fn prepare(checkpoint: &Checkpoint) -> (SideFiles, Option<String>) {
    match checkpoint.gguf() {
        None => (SideFiles::Folder(checkpoint.folder().to_owned()), None),
        Some(metadata) => match gguf_text::vocabulary_of(metadata) {
            Some(vocabulary) => made(&vocabulary, metadata),
            None => {
                (SideFiles::Made(Vec::new()), Some("the source holds no vocabulary".to_owned()))
            }
        },
    }
}

fn made(vocabulary: &Vocabulary, metadata: &Metadata) -> (SideFiles, Option<String>) {
    let mut files = Vec::new();
    let mut add = || -> Result<(), TextError> {
        let ends = vocabulary.generation_config()?;
        files.push(("generation_config.json", with_sampling(&ends, metadata)));
        let made = vocabulary.to_files(gguf_text::template_of(metadata))?;
        files.push(("tokenizer.json", made.tokenizer));
        files.push(("tokenizer_config.json", made.tokenizer_config));
        Ok(())
    };
    let problem = add().err().map(|error| error.to_string());
    (SideFiles::Made(files), problem)
}

/// A generation config with the sampling settings of a GGUF file.
fn with_sampling(config: &str, metadata: &Metadata) -> String {
    let mut config: Value = serde_json::from_str(config).expect("it was just made");
    let map = config.as_object_mut().expect("a config is an object");
    map.extend(gguf_text::sampling_of(metadata));
    config.to_string()
}

impl SideFiles {
    pub(super) fn write(&self, to: &Path) -> Result<(), QuantizeError> {
        match self {
            Self::Folder(from) => copy_side_files(from, to),
            Self::Made(files) => {
                files.iter().try_for_each(|(name, text)| put(&to.join(name), text.as_bytes()))
            }
        }
    }
}

fn copy_side_files(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    for entry in std::fs::read_dir(from).map_err(QuantizeError::file(from))? {
        let entry = entry.map_err(QuantizeError::file(from))?;
        let path = entry.path();
        if is_side_file(&entry.file_name().to_string_lossy()) && path.is_file() {
            let bytes = forerun_base::read_regular(&path).map_err(QuantizeError::file(&path))?;
            put(&to.join(entry.file_name()), &bytes)?;
        }
    }
    Ok(())
}
