//! The model behind the server.

use crate::models::{LoadedModel, ModelDetails, ModelNames};
use forerun::Pooling;
use forerun_backend::MemoryPlan;
use forerun_engine::{Engine, ModelRunner};
use forerun_text::{ChatTemplate, GenerationDefaults, Tokenizer};

/// The text side of the model that is served.
#[derive(Debug)]
pub struct ServedModel {
    /// The name clients ask for and `/v1/models` lists.
    pub name: String,
    /// Further names it answers to; a star at the end stands for any ending.
    pub aliases: Vec<String>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to a prompt; a model without one only continues text.
    pub template: Option<ChatTemplate>,
    /// What holds where a request does not say.
    pub defaults: GenerationDefaults,
    /// How embeddings are pooled where a request does not say.
    pub pooling: Pooling,
    /// What is known of it besides.
    pub details: ModelDetails,
}

impl ServedModel {
    /// Its names, and the rest beside its engine.
    pub(crate) fn with_engine(
        self,
        engine: Engine<ModelRunner>,
    ) -> ((ModelNames, ModelDetails), LoadedModel) {
        let Self { name, aliases, tokenizer, template, defaults, pooling, details } = self;
        // What it takes is asked of nobody: it stays.
        let loaded = LoadedModel { engine, tokenizer, template, defaults, pooling, bytes: 0 };
        ((ModelNames { name, aliases }, details), loaded)
    }
}

/// What an engine was built for, told before it moves to its thread.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Positions a sequence can reach.
    pub context: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Width of its hidden states.
    pub hidden: usize,
    /// Sequences that run at a time.
    pub sequences: usize,
    /// The device in words.
    pub device: String,
    /// Bytes the prefix cache may hold; 0 without one.
    pub cache_bytes: u64,
    /// What memory is for.
    pub memory: MemoryPlan,
    /// Why no drafts are made, if none are.
    pub speculation_off: Option<&'static str>,
}

impl Facts {
    /// Asks an engine.
    pub fn of(engine: &mut Engine<ModelRunner>) -> Self {
        let speculation_off = engine.speculation_off();
        let runner = engine.runner();
        Self {
            context: runner.limits().context,
            vocabulary: runner.model().spec.vocabulary,
            hidden: runner.model().spec.hidden,
            sequences: runner.limits().sequences,
            device: runner.device(),
            cache_bytes: runner.cache_settings().bytes,
            memory: runner.memory().clone(),
            speculation_off,
        }
    }
}
