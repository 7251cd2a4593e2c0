//! A server whose adapter is lost: the request on it fails, the next one is answered as if nothing had been.

use crate::adapter::open_device;
use crate::common::settings;
use forerun::Pooling;
use forerun_backend_wgpu::LossSwitch;
use forerun_engine::{Engine, ModelRunner, Settings as EngineSettings, Speculation};
use forerun_model::{Blueprint, Model};
use forerun_server::{Handle, ModelDetails, ServedModel, Server, Settings, StartError};
use forerun_text::{ChatTemplate, GenerationDefaults, Tokenizer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

/// The bundled model, which has words.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m")
}

fn engine() -> (Engine<ModelRunner>, LossSwitch) {
    let blueprint = Blueprint::open(&folder()).expect("a model");
    let mut device = Box::new(open_device());
    let switch = device.loss_switch();
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    // Without drafts each token is an event of its own.
    let settings = EngineSettings { speculation: Speculation::OFF, ..settings(128, 32) };
    let mut runner = ModelRunner::new(device, model, &settings).expect("memory");
    runner.set_reload(Box::new(move |device| Model::load(&blueprint, device, &mut |_| {})));
    (Engine::new(runner), switch)
}

/// A server that stops with this.
struct Running {
    address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<Result<(), StartError>>>,
}

impl Running {
    fn start(engine: Engine<ModelRunner>) -> Self {
        let model = ServedModel {
            name: "tales".to_owned(),
            aliases: Vec::new(),
            tokenizer: Tokenizer::open(&folder()).expect("a tokenizer"),
            template: ChatTemplate::load(&folder()).expect("a template"),
            defaults: GenerationDefaults::load(&folder()).expect("defaults"),
            pooling: Pooling::default(),
            details: ModelDetails::default(),
        };
        let settings = Settings { address: ([127, 0, 0, 1], 0).into(), ..Settings::default() };
        let server = Server::bind(engine, model, settings).expect("a port");
        let (address, handle) = (server.address().expect("an address"), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, handle, thread }
    }

    fn send(&self, head: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        let length = body.len();
        let fields = "host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
        let text = format!("{head} HTTP/1.1\r\n{fields}content-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).expect("sent");
        BufReader::new(stream)
    }

    /// Asks for a story; the answer's text, line by line as it comes.
    fn ask(&self, tokens: usize) -> BufReader<TcpStream> {
        let body = format!(
            "{{\"prompt\": \"Once upon a time\", \"max_tokens\": {tokens}, \"temperature\": 0, \
             \"stream\": true, \"logprobs\": 1}}"
        );
        self.send("POST /v1/completions", &body)
    }

    /// What was told until the end: tokens with their logarithms, whose digits tell bits apart.
    fn told(&self, tokens: usize) -> Vec<String> {
        let lines = self.ask(tokens).lines().map(|line| line.expect("text"));
        let told = |line: String| {
            let (_, choices) = line.strip_prefix("data: ")?.split_once("\"choices\":")?;
            // How long it took is told with the last event.
            choices.split(",\"timings\"").next().map(str::to_owned)
        };
        lines.filter_map(told).collect()
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        self.send("GET /metrics", "").read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("no panic").expect("a clean end");
            }
        }
    }
}

#[test]
fn a_lost_adapter_fails_the_request_on_it_and_the_next_answer_has_the_same_bits() {
    let (engine, switch) = engine();
    let server = Running::start(engine);
    let expected = server.told(12);
    assert!(expected.len() >= 10, "{expected:?}");
    let mut lines = server.ask(100).lines();
    let first = lines.by_ref().map(|line| line.expect("text")).find(|line| line.contains("data: "));
    assert!(first.is_some_and(|line| line.contains("choices")), "a token comes first");
    switch.lose();
    let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
    let why = rest.iter().find(|line| line.contains("error"));
    assert!(why.is_some_and(|line| line.contains("lost")), "{rest:?}");
    assert_eq!(server.told(12), expected, "the next answer");
    let metrics = server.metrics();
    assert!(metrics.contains("forerun:devices_lost_total 1"), "{metrics}");
}
