//! What a hit in the prefix cache saves: the time to the first token of prompts that are new, known in memory, and
//! known on disk.
//!
//! ```text
//! cargo run --release -p forerun-engine --example prefix_cache -- models/tales-28m 512 2048
//! ```

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{
    CacheReport, CacheSettings, DiskSettings, Engine, Event, ModelRunner, Request, Settings,
    Speculation,
};
use forerun_model::{Blueprint, Model};
use std::path::Path;
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| "models/tales-28m".to_owned());
    let mut lengths: Vec<usize> = args.filter_map(|n| n.parse().ok()).collect();
    if lengths.is_empty() {
        lengths = vec![512, 2048];
    }
    let blueprint = Blueprint::open(Path::new(&folder)).expect("a model");
    let store = std::env::temp_dir().join(format!("forerun-prefix-{}", std::process::id()));
    let disk =
        DiskSettings { folder: store.clone(), bytes: 4 << 30, identity: blueprint.fingerprint() };
    let longest = lengths.iter().copied().max().unwrap_or(0);
    println!("tokens  cold ms  memory ms  disk ms  reused  bytes kept");
    for length in lengths {
        let mut engine = open(&blueprint, longest, &disk);
        let vocabulary = blueprint.spec.vocabulary as u32;
        let prompt: Vec<Token> =
            (0..length as u32).map(|i| (i * i + length as u32) % vocabulary).collect();
        let (cold, _) = first_token(&mut engine, &prompt);
        let (warm, report) = first_token(&mut engine, &prompt);
        let bytes = engine.cache_stats().memory.bytes;
        engine.flush_cache();
        drop(engine);
        let (stored, _) = first_token(&mut open(&blueprint, longest, &disk), &prompt);
        let reused = report.cached_tokens;
        println!("{length:6}  {cold:7.1}  {warm:9.1}  {stored:7.1}  {reused:6}  {bytes}");
    }
    std::fs::remove_dir_all(&store).expect("the folder is ours");
}

fn open(blueprint: &Blueprint, longest: usize, disk: &DiskSettings) -> Engine<ModelRunner> {
    let mut backend: Box<dyn Backend> = Box::new(tuned(None));
    let model = Model::load(blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let settings = Settings {
        context: longest + 64,
        speculation: Speculation::mtp(4),
        cache: CacheSettings { bytes: 4 << 30, interval: None },
        ..Settings::default()
    };
    let mut engine = Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"));
    engine.open_disk_cache(disk).expect("a folder");
    engine
}

/// Milliseconds to the first token, and what the cache had.
fn first_token(engine: &mut Engine<ModelRunner>, prompt: &[Token]) -> (f64, CacheReport) {
    let start = Instant::now();
    engine.submit(Request::greedy(prompt.to_vec(), 1)).expect("accepted");
    let mut events = Vec::new();
    let mut report = CacheReport::default();
    loop {
        engine.step(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Started { cached, .. } => report = *cached,
                Event::Finished { .. } => return (start.elapsed().as_secs_f64() * 1e3, report),
                Event::Token { .. } => {}
            }
        }
    }
}
