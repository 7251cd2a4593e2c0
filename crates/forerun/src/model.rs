//! A model on a device, ready for requests.

use crate::driver::EngineDriver;
use crate::stream::Collector;
use crate::{
    AnswerStream, Batch, Chat, Embedding, Error, Generation, GenerationOptions, ModelFiles,
    Options, Pooling, PromptInput, Scores, TextParts, TextProcessor,
};
use forerun_backend::MemoryPlan;
use forerun_base::{SeqId, Token};
use forerun_engine::{Depth, Engine, ModelRunner};
use forerun_text::AnswerParser;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model on a device. Clones are handles of the same one, and can be used from any thread.
///
/// ```
/// # fn main() -> Result<(), forerun::Error> {
/// use forerun::{GenerationOptions, Model};
///
/// let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
/// let options = GenerationOptions::new().temperature(0.0).max_tokens(8);
/// let answer = model.complete("Once upon a time", options)?.answer()?;
/// assert_eq!(answer.token_ids.len(), 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Model(Arc<ModelInner>);

struct ModelInner {
    driver: Mutex<EngineDriver>,
    processor: TextProcessor,
    name: String,
    device: String,
    memory: MemoryPlan,
    speculation_off: Option<&'static str>,
    depth: Depth,
}

impl Model {
    /// Opens a model folder, a safetensors file or a GGUF file with default options.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, &Options::default())
    }

    /// The same with options.
    pub fn open_with(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut files = ModelFiles::open(path, &path.display().to_string())?;
        if let Some(drafter) = &options.drafter {
            files.attach_drafter(drafter, &drafter.display().to_string())?;
        }
        if let Some(scale) = options.rope {
            files.extend_context(scale);
        }
        let settings = files.settings(options)?;
        let backend = forerun_devices::open(&options.device)?.backend;
        let engine = files.load(&settings, backend, &mut |_| {})?;
        let parts = TextParts::of(&files, settings.context);
        let processor = TextProcessor::new(parts);
        Ok(Self::from_parts(&files.path, processor, engine, options.drafting.depth))
    }

    /// A model of an engine that was loaded elsewhere; `depth` is the number of drafts where a request does not say.
    pub fn from_parts(
        name: &str,
        processor: TextProcessor,
        mut engine: Engine<ModelRunner>,
        depth: Depth,
    ) -> Self {
        let speculation_off = engine.speculation_off();
        let runner = engine.runner();
        let (device, memory) = (runner.device(), runner.memory().clone());
        let driver = Mutex::new(EngineDriver::new(engine, processor.tokenizer().ok().cloned()));
        let name = name.to_owned();
        Self(Arc::new(ModelInner {
            driver,
            processor,
            name,
            device,
            memory,
            speculation_off,
            depth,
        }))
    }

    /// A chat, which remembers what was said.
    pub fn chat(&self) -> Chat {
        Chat::new(self.clone())
    }

    /// Continues a text, token ids, or a conversation.
    pub fn complete(
        &self,
        prompt: impl Into<PromptInput>,
        options: GenerationOptions,
    ) -> Result<AnswerStream, Error> {
        self.start(&prompt.into(), &options)
    }

    /// Runs several requests at once. They share steps, up to [`Options::sequences`] at a time.
    pub fn batch<P: Into<PromptInput>>(
        &self,
        requests: impl IntoIterator<Item = (P, GenerationOptions)>,
    ) -> Result<Batch, Error> {
        let started = requests.into_iter().map(|(prompt, options)| self.complete(prompt, options));
        Ok(Batch::new(started.collect::<Result<_, _>>()?))
    }

    /// How likely the model finds a text.
    pub fn score(&self, text: &str) -> Result<Scores, Error> {
        self.score_tokens(self.0.processor.encode(text, true)?)
    }

    /// The same for token ids.
    pub fn score_tokens(&self, tokens: Vec<Token>) -> Result<Scores, Error> {
        let mut driver = self.driver();
        driver.forget_all();
        Scores::compute(&mut driver.engine, tokens, &mut |_| {})
    }

    /// The hidden states of a text as one vector of length 1.
    pub fn embed(&self, text: &str, pooling: Pooling) -> Result<Embedding, Error> {
        self.embed_tokens(self.0.processor.encode(text, true)?, pooling)
    }

    /// The same for token ids.
    pub fn embed_tokens(&self, tokens: Vec<Token>, pooling: Pooling) -> Result<Embedding, Error> {
        let mut driver = self.driver();
        driver.forget_all();
        Embedding::compute(&mut driver.engine, &tokens, pooling)
    }

    /// Text to token ids, with the special tokens that the tokenizer adds.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>, Error> {
        self.0.processor.encode(text, true)
    }

    /// Token ids to text.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<String, Error> {
        Ok(self.0.processor.tokenizer()?.decode(tokens, false)?)
    }

    /// Hands a resolved generation to the engine.
    pub fn generate(&self, generation: Generation) -> Result<AnswerStream, Error> {
        self.submit(generation, None, None)
    }

    fn submit(
        &self,
        generation: Generation,
        retained: Option<SeqId>,
        parser: Option<AnswerParser>,
    ) -> Result<AnswerStream, Error> {
        let sampling = generation.sampling.clone();
        let (seq, to_read) = self.driver().submit(generation, retained)?;
        Ok(AnswerStream::new(self.clone(), seq, sampling, Collector::new(parser, to_read)))
    }

    fn start(
        &self,
        prompt: &PromptInput,
        options: &GenerationOptions,
    ) -> Result<AnswerStream, Error> {
        self.start_from(prompt, options, None, false)
    }

    /// Starts an answer; `retained` is a sequence that may hold the beginning of the prompt, `retain` asks for one.
    pub(crate) fn start_from(
        &self,
        prompt: &PromptInput,
        options: &GenerationOptions,
        retained: Option<SeqId>,
        retain: bool,
    ) -> Result<AnswerStream, Error> {
        let processor = &self.0.processor;
        let encoded = processor.encode_prompt(prompt)?;
        let (chat, grammar) = (encoded.chat.as_ref(), options.constraint.as_ref());
        let constraint = processor.constraint(chat, grammar, &|| true)?;
        let parser = chat.and_then(|chat| processor.answer_parser(chat, &[]));
        let kind = encoded.kind();
        let mut generation = processor.generation(encoded.tokens, kind, options, constraint)?;
        generation.depth = options.drafts.unwrap_or(self.0.depth);
        generation.retain = retain;
        self.submit(generation, retained, parser)
    }

    /// The text side: template, tokenizer, constraints, defaults.
    pub fn processor(&self) -> &TextProcessor {
        &self.0.processor
    }

    /// The model as it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device in words.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// What memory is for.
    pub fn memory(&self) -> &MemoryPlan {
        &self.0.memory
    }

    /// Why no drafts are made, if none are.
    pub fn speculation_off(&self) -> Option<&'static str> {
        self.0.speculation_off
    }

    /// Positions a sequence can reach: prompt and answer together.
    pub fn context(&self) -> usize {
        self.0.processor.context()
    }

    pub(crate) fn driver(&self) -> MutexGuard<'_, EngineDriver> {
        // The engine contains its own panics; one elsewhere leaves whole events behind.
        self.0.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TextParts {
    /// The text side of a model's files. A broken template is an error only once messages are sent.
    pub fn of(files: &ModelFiles, context: usize) -> Self {
        let text = &files.text;
        Self {
            tokenizer: text.tokenizer.clone().ok_or_else(|| text.no_tokenizer()),
            template: text.template(),
            defaults: text.defaults.clone(),
            vocabulary: files.blueprint.spec.vocabulary,
            context,
        }
    }

    /// The same without the chat template.
    #[must_use]
    pub fn raw(mut self) -> Self {
        self.template = Ok(None);
        self
    }
}
