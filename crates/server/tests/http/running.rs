//! A server with the bundled model, and the same model without a server.

use crate::client::get;
use forerun::ModelFiles;
use forerun_base::Token;
use forerun_engine::{
    Depth, Engine, Event, ModelRunner, Request, Sampling, Settings as EngineSettings, Speculation,
};
use forerun_model::{Blueprint, Model};
use forerun_server::{Handle, ModelDetails, ModelEntry, ServedModel, Server, Settings, StartError};
use forerun_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m")
}

pub(crate) fn engine(settings: &EngineSettings) -> Engine<ModelRunner> {
    let blueprint = Blueprint::open(&folder()).unwrap();
    let mut backend: Box<dyn forerun_backend::Backend> =
        Box::new(forerun_backend_cpu::tuned(Some(2)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).unwrap();
    Engine::new(ModelRunner::new(backend, model, settings).unwrap())
}

pub(crate) fn served() -> ServedModel {
    ServedModel {
        name: "tales".to_owned(),
        aliases: vec!["other/name".to_owned()],
        tokenizer: Tokenizer::open(&folder()).unwrap(),
        template: ChatTemplate::load(&folder()).unwrap(),
        defaults: GenerationDefaults::load(&folder()).unwrap(),
        pooling: forerun::Pooling::Mean,
        details: details(),
    }
}

/// What is known of it without its weights.
pub(crate) fn details() -> ModelDetails {
    ModelDetails::of(&ModelFiles::open(&folder(), "tales").unwrap())
}

/// The same model with a template that opens reasoning, and knows calls in the tagged form.
pub(crate) fn thinking() -> ServedModel {
    const SOURCE: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}\
        {% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}\
        {{ m.content + '<|im_end|>\n' }}{% endfor %}\
        {{ '<|im_start|>assistant\n<think>\n' }}\
        {% if enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}\
        {# <function= <parameter= #}";
    let special = served().template.unwrap().special_tokens().clone();
    let template = Some(ChatTemplate::from_source(SOURCE, special).unwrap());
    ServedModel { template, ..served() }
}

/// What most tests want of an engine.
pub(crate) fn sizes() -> EngineSettings {
    EngineSettings {
        context: 1024,
        sequences: 4,
        speculation: Speculation { text: true, ..Speculation::mtp(4) },
        step_budget: EngineSettings::SHARED_STEP,
        ..EngineSettings::default()
    }
}

/// A server that stops with this.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<Result<(), StartError>>>,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with(&sizes(), served(), Settings::default())
    }

    pub(crate) fn with(sizes: &EngineSettings, model: ServedModel, settings: Settings) -> Self {
        Self::of(engine(sizes), model, settings)
    }

    pub(crate) fn of(engine: Engine<ModelRunner>, model: ServedModel, settings: Settings) -> Self {
        let settings = Settings { address: ([127, 0, 0, 1], 0).into(), ..settings };
        Self::run(Server::bind(engine, model, settings).unwrap())
    }

    /// A server of models that are loaded when they are asked for.
    pub(crate) fn several(models: Vec<ModelEntry>, settings: Settings) -> Self {
        let settings = Settings { address: ([127, 0, 0, 1], 0).into(), ..settings };
        Self::run(Server::bind_models(models, settings).unwrap())
    }

    fn run(server: Server) -> Self {
        let (address, handle) = (server.address().unwrap(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, handle, thread }
    }

    /// Waits for the server to have ended by itself.
    pub(crate) fn ended(mut self) -> Result<(), StartError> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// A number among the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = get(self.address, "/metrics").text().to_owned();
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) fn wait_for(&self, name: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {} for ever", self.metric(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// What the engine says alone, without drafts: the text and how many tokens it is.
pub(crate) fn alone(prompt: Vec<Token>, sampling: Sampling, max_tokens: usize) -> (String, usize) {
    let mut engine = engine(&EngineSettings { context: 1024, ..EngineSettings::default() });
    let ends = GenerationDefaults::load(&folder()).unwrap().eos_token_ids;
    let request = Request {
        sampling,
        end_tokens: ends.clone(),
        depth: Depth::Fixed(0),
        ..Request::greedy(prompt, max_tokens)
    };
    engine.submit(request).unwrap();
    let (mut tokens, mut events) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    for event in events {
        if let Event::Token { token, .. } = event {
            tokens.push(token);
        }
    }
    let said: Vec<Token> = tokens.iter().copied().filter(|token| !ends.contains(token)).collect();
    (Tokenizer::open(&folder()).unwrap().decode(&said, true).unwrap(), tokens.len())
}
