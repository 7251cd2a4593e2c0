//! The text side of a model: tokenizer, chat template, defaults, from the files of a folder or from a GGUF file.

use crate::processor::end_tokens;
use crate::{Error, Pooling, TemplateError, gguf_text};
use forerun_base::Token;
use forerun_text::{ChatTemplate, GenerationDefaults, SpecialTokens, TextError, Tokenizer};
use forerun_weights::Checkpoint;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What the files of a model say about text.
pub struct ModelText {
    pub(crate) origin: Origin,
    /// Missing where requests are token ids only.
    pub tokenizer: Option<Tokenizer>,
    /// End tokens and sampling settings.
    pub defaults: GenerationDefaults,
    /// How the model was made to be pooled where its text becomes a vector; the mean where its files do not say.
    pub pooling: Pooling,
    /// What the files ask for and nobody does.
    pub warnings: Vec<String>,
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
    /// Reads the text side of a checkpoint. The chat template is left for [`Self::template`].
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, Error> {
        match checkpoint.gguf() {
            Some(metadata) => {
                let file = checkpoint.files().first().map_or(checkpoint.folder(), |f| f.path());
                Ok(gguf_text::read(metadata, &file.display().to_string())?)
            }
            None => Self::of_folder(checkpoint.folder()),
        }
    }

    fn of_folder(folder: &Path) -> Result<Self, Error> {
        let tokenizer = match Tokenizer::open(folder) {
            Err(TextError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => None,
            other => Some(other?),
        };
        let defaults = GenerationDefaults::load(folder)?;
        let origin = Origin::Folder(folder.to_owned());
        let pooling = pooling_of(folder);
        Ok(Self { origin, tokenizer, defaults, pooling, warnings: Vec::new() })
    }

    /// The tokenizer, where there is no going on without.
    pub fn need_tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_ref().ok_or_else(|| Error::NoTokenizer(self.no_tokenizer()))
    }

    /// Why there is no tokenizer.
    pub(crate) fn no_tokenizer(&self) -> String {
        match &self.origin {
            Origin::Folder(folder) => format!("{} has no tokenizer.json", folder.display()),
            Origin::Gguf { file, problem, .. } => {
                let problem = problem.as_deref().unwrap_or("it holds no vocabulary");
                format!("{file}: {problem}")
            }
        }
    }

    /// The chat template. Read only here, so that a broken one does not stand in the way of raw text.
    pub fn template(&self) -> Result<Option<ChatTemplate>, TemplateError> {
        let (path, template) = match &self.origin {
            Origin::Folder(folder) => (folder.display().to_string(), ChatTemplate::load(folder)),
            Origin::Gguf { file, template, special, .. } => {
                let made = template.as_ref().map(|t| ChatTemplate::from_source(t, special.clone()));
                (file.clone(), made.transpose())
            }
        };
        template.map_err(|cause| TemplateError { path, cause: cause.to_string() })
    }

    /// A text to tokens, with the special tokens the tokenizer itself adds.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<Token>, Error> {
        Ok(self.need_tokenizer()?.encode(text, true)?)
    }

    /// Tokens that end an answer; in a chat also the token that ends a turn.
    pub fn end_tokens(&self, chat: Option<&ChatTemplate>) -> Vec<Token> {
        end_tokens(&self.defaults, chat.zip(self.tokenizer.as_ref()))
    }
}

/// As models for sentences have it: a folder beside the weights. One that cannot be read says nothing.
fn pooling_of(folder: &Path) -> Pooling {
    let text = std::fs::read(folder.join("1_Pooling/config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    if config["pooling_mode_lasttoken"] == true { Pooling::Last } else { Pooling::Mean }
}
