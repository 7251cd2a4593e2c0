//! The text side of a model: tokenizer, chat template, defaults.

use anyhow::{Context, anyhow};
use forerun_base::Token;
use forerun_text::{ChatTemplate, GenerationDefaults, TextError, Tokenizer};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What a model folder says about text.
pub(crate) struct ModelText {
    folder: PathBuf,
    /// Missing is fine as long as only token ids are asked for.
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) defaults: GenerationDefaults,
}

impl ModelText {
    pub(crate) fn open(folder: &Path) -> anyhow::Result<Self> {
        let tokenizer = match Tokenizer::open(folder) {
            Err(TextError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            other => Some(other?),
        };
        let defaults = GenerationDefaults::load(folder)?;
        Ok(Self { folder: folder.to_owned(), tokenizer, defaults })
    }

    /// The tokenizer, where there is no going on without.
    pub(crate) fn need_tokenizer(&self) -> anyhow::Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or_else(|| {
            let folder = self.folder.display();
            anyhow!("{folder} has no tokenizer.json; add it, or give token ids with --ids")
        })
    }

    /// The chat template. Read only when asked for, so that a broken one does not stand in the
    /// way of raw text.
    pub(crate) fn template(&self) -> anyhow::Result<Option<ChatTemplate>> {
        ChatTemplate::load(&self.folder)
            .with_context(|| format!("{} (--raw goes without)", self.folder.display()))
    }

    /// Text as it stands to tokens, with the special tokens the tokenizer itself adds.
    pub(crate) fn encode_raw(&self, text: &str) -> anyhow::Result<Vec<Token>> {
        Ok(self.need_tokenizer()?.encode(text, true)?)
    }

    /// A rendered conversation to tokens; it already contains its special tokens.
    pub(crate) fn encode_rendered(&self, text: &str) -> anyhow::Result<Vec<Token>> {
        Ok(self.need_tokenizer()?.encode(text, false)?)
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
