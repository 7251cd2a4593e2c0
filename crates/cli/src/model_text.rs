//! The text side of a model: tokenizer, chat template, defaults, from the files of a folder or from a GGUF file.

use crate::gguf_text;
use anyhow::{Context, anyhow};
use forerun_base::Token;
use forerun_text::{ChatTemplate, GenerationDefaults, SpecialTokens, TextError, Tokenizer};
use forerun_weights::Checkpoint;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What a model says about text.
pub(crate) struct ModelText {
    origin: Origin,
    /// Missing is fine as long as only token ids are asked for.
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) defaults: GenerationDefaults,
}

/// Where the chat template is, and what to say when there is no tokenizer.
pub(crate) enum Origin {
    Folder(PathBuf),
    Gguf {
        file: String,
        template: Option<String>,
        special: SpecialTokens,
        /// Why its vocabulary makes no tokenizer.
        problem: Option<String>,
    },
}

impl ModelText {
    pub(crate) fn open(checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        match checkpoint.gguf() {
            Some(metadata) => {
                let file = checkpoint.files().first().map_or(checkpoint.folder(), |f| f.path());
                Ok(gguf_text::read(metadata, &file.display().to_string())?)
            }
            None => Self::of_folder(checkpoint.folder()),
        }
    }

    fn of_folder(folder: &Path) -> anyhow::Result<Self> {
        let tokenizer = match Tokenizer::open(folder) {
            Err(TextError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            other => Some(other?),
        };
        let defaults = GenerationDefaults::load(folder)?;
        Ok(Self::new(Origin::Folder(folder.to_owned()), tokenizer, defaults))
    }

    pub(crate) fn new(
        origin: Origin,
        tokenizer: Option<Tokenizer>,
        defaults: GenerationDefaults,
    ) -> Self {
        Self { origin, tokenizer, defaults }
    }

    /// The tokenizer, where there is no going on without.
    pub(crate) fn need_tokenizer(&self) -> anyhow::Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| match &self.origin {
            Origin::Folder(folder) => {
                let folder = folder.display();
                anyhow!("{folder} has no tokenizer.json; add it, or give token ids with --ids")
            }
            Origin::Gguf { file, problem, .. } => {
                let problem = problem.as_deref().unwrap_or("it holds no vocabulary");
                anyhow!("{file}: {problem}; token ids can be given with --ids")
            }
        })
    }

    /// The chat template. Read only when asked for, so that a broken one does not stand in the
    /// way of raw text.
    pub(crate) fn template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        match &self.origin {
            Origin::Folder(folder) => ChatTemplate::load(folder)
                .with_context(|| format!("{} (--raw goes without)", folder.display())),
            Origin::Gguf { file, template, special, .. } => template
                .as_ref()
                .map(|source| ChatTemplate::from_source(source, special.clone()))
                .transpose()
                .with_context(|| format!("{file} (--raw goes without)")),
        }
    }

    /// Text as it stands to tokens, with the special tokens the tokenizer itself adds.
    pub(crate) fn encode_raw(&self, text: &str) -> anyhow::Result<Vec<Token>> {
        Ok(self.need_tokenizer()?.encode(text, true)?)
    }

    /// Tokens that end an answer; in a chat also the token that ends a turn.
    pub(crate) fn end_tokens(&self, chat: Option<&ChatTemplate>) -> Vec<Token> {
        let defaults = self.defaults.clone();
        match (chat, &self.tokenizer) {
            (Some(template), Some(tokenizer)) => {
                defaults.with_chat_eos(tokenizer, template.special_tokens()).eos_token_ids
            }
            _ => defaults.eos_token_ids,
        }
    }
}
