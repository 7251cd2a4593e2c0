//! How a model is loaded, for whoever knows where it is.

use forerun::{ModelFiles, Pooling};
use forerun_engine::{Engine, ModelRunner};
use forerun_text::{ChatTemplate, Dialect, GenerationDefaults, Tokenizer};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// A model that is loaded when somebody asks for it.
pub struct ModelEntry {
    /// The name clients ask for and `/v1/models` lists.
    pub name: String,
    /// Further names it answers to; a star at the end stands for any ending.
    pub aliases: Vec<String>,
    /// Brings it to a device.
    pub loader: Arc<dyn LoadModel>,
}

/// Brings a model to a device, as often as it is asked for.
pub trait LoadModel: Send + Sync {
    /// What is known of it without its weights.
    fn details(&self) -> ModelDetails;

    /// Loads it into what others leave.
    ///
    /// # Errors
    /// [`LoadError::NoRoom`] where it would fit if others were gone.
    fn load(&self, room: RoomLeft) -> Result<LoadedModel, LoadError>;
}

/// What is known of a model without its weights.
#[derive(Clone, Debug, Default)]
pub struct ModelDetails {
    /// Of its weights.
    pub bytes: u64,
    /// Tells it from other models.
    pub digest: String,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// Its family's name.
    pub family: String,
    /// Positions it was made for.
    pub context: usize,
    /// Width of its hidden states.
    pub hidden: usize,
    /// When its files were written.
    pub modified: Option<SystemTime>,
    /// Whether the template knows tools.
    pub tools: bool,
    /// Whether the model thinks before it speaks.
    pub thinks: bool,
}

impl ModelDetails {
    /// Asks a model's files.
    pub fn of(files: &ModelFiles) -> Self {
        let (blueprint, text) = (&files.blueprint, &files.text);
        let template = text.template().ok().flatten();
        let dialect = template.as_ref().zip(text.tokenizer.as_ref());
        let dialect = dialect.map(|(template, tokenizer)| Dialect::of(template, tokenizer));
        let first = blueprint.checkpoint.files().first().map(|file| file.path().to_owned());
        let written = |path: PathBuf| std::fs::metadata(path).ok()?.modified().ok();
        Self {
            bytes: blueprint.total_bytes(),
            digest: blueprint.fingerprint(),
            format: if blueprint.checkpoint.gguf().is_some() { "gguf" } else { "safetensors" },
            family: blueprint.spec.family.clone(),
            context: blueprint.spec.max_positions,
            hidden: blueprint.spec.hidden,
            modified: first.and_then(written),
            tools: template.as_ref().is_some_and(|template| template.mentions("tools")),
            thinks: dialect.is_some_and(|dialect| dialect.thinks()),
        }
    }
}

/// What other models leave of memory.
#[derive(Clone, Copy, Debug)]
pub struct RoomLeft {
    /// Bytes that loaded models take by their plans. They are gone from free memory already, but not from a limit that
    /// all models share.
    pub others: u64,
    /// Whether a context that nobody asked for may be shortened to what fits: where no other model can make room.
    pub shorten: bool,
}

/// Why a model is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is too little memory beside the other models.
    #[error("{0}")]
    NoRoom(String),
    /// Anything else; without other models it would be the same.
    #[error("{0}")]
    Failed(String),
}

/// A model on a device.
pub struct LoadedModel {
    /// It runs there.
    pub engine: Engine<ModelRunner>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to a prompt; a model without one only continues text.
    pub template: Option<ChatTemplate>,
    /// What holds where a request does not say.
    pub defaults: GenerationDefaults,
    /// How embeddings are pooled where a request does not say.
    pub pooling: Pooling,
    /// Bytes it takes: weights, caches and what kernels need.
    pub bytes: u64,
}
