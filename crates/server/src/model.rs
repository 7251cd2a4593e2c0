//! The model behind the server.

use forerun::{TextParts, TextProcessor};
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
}

/// The names that the model answers to.
#[derive(Debug)]
pub(crate) struct ModelNames {
    pub(crate) name: String,
    aliases: Vec<String>,
}

impl ServedModel {
    /// Its names and its text side, for an engine that was built like this.
    pub(crate) fn into_parts(self, facts: &Facts) -> (ModelNames, TextProcessor) {
        let Self { name, aliases, tokenizer, template, defaults } = self;
        let (vocabulary, context) = (facts.vocabulary, facts.context);
        let (tokenizer, template) = (Ok(tokenizer), Ok(template));
        let parts = TextParts { tokenizer, template, defaults, vocabulary, context };
        (ModelNames { name, aliases }, TextProcessor::new(parts))
    }
}

impl ModelNames {
    /// Whether a client's name for a model is this one.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is = |alias: &String| match alias.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => alias == name,
        };
        self.name == name || self.aliases.iter().any(is)
    }

    /// The names that can be listed: its own, and aliases that stand for one name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.aliases.iter().filter(|alias| !alias.ends_with('*'));
        std::iter::once(&self.name).chain(aliases).map(String::as_str)
    }

    /// Whether it answers to names that cannot be listed.
    pub(crate) fn has_open_names(&self) -> bool {
        self.aliases.iter().any(|alias| alias.ends_with('*'))
    }
}

/// What an engine was built for, told before it moves to its thread.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Positions a sequence can reach.
    pub context: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
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
            sequences: runner.limits().sequences,
            device: runner.device(),
            cache_bytes: runner.cache_settings().bytes,
            memory: runner.memory().clone(),
            speculation_off,
        }
    }
}
