//! Many generations on one engine; fails when resident memory keeps growing.
//!
//! ```text
//! cargo run --release -p forerun-engine --example soak -- models/tales-28m 1000 verified
//! ```

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_engine::{
    Engine, Event, ModelRunner, Request, Sampling, Settings, Speculation, SpeculationMode,
};
use forerun_model::{Blueprint, Model};
use std::path::Path;
use std::process::ExitCode;

/// Growth of the second half that counts as a leak.
const ALLOWED_KIB: u64 = 1024;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| "models/tales-28m".to_owned());
    let count: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let blueprint = Blueprint::open(Path::new(&folder)).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(None));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let chain = Speculation { text: true, ..Speculation::mtp(4) };
    let speculation = match args.next().as_deref() {
        None | Some("verified") => chain,
        Some("optimistic") => {
            Speculation { mode: SpeculationMode::Optimistic, ..Speculation::mtp(4) }
        }
        Some("off") => Speculation::OFF,
        Some(other) => panic!("{other}: expected verified, optimistic or off"),
    };
    let settings = Settings { context: 512, sequences: 4, speculation, ..Settings::default() };
    let mut engine = Engine::new(ModelRunner::new(backend, model, &settings).expect("memory"));
    let vocabulary = engine.runner().model().spec.vocabulary as u32;
    let mut events = Vec::new();
    let (mut half, mut rounds) = (0, 0);
    for i in 0..count {
        let prompt = (0..20 + i as u32 % 40).map(|t| (t * 37 + i as u32) % vocabulary).collect();
        let sampling =
            Sampling { temperature: 0.8, top_p: 0.9, seed: i as u64, ..Sampling::default() };
        let request = Request { sampling, ..Request::greedy(prompt, 8 + i % 24) };
        let seq = engine.submit(request).expect("accepted");
        if i % 7 == 0 {
            engine.step(&mut events);
            engine.cancel(seq, &mut events);
        }
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        for event in events.drain(..) {
            if let Event::Finished { receipt, .. } = event {
                rounds += receipt.rounds;
            }
        }
        if i + 1 == count / 2 {
            half = resident_kib();
        }
        if (i + 1) % (count / 10).max(1) == 0 {
            println!("{} generations, {rounds} rounds: {} KiB resident", i + 1, resident_kib());
        }
    }
    let grown = resident_kib().saturating_sub(half);
    println!(
        "the second half grew by {grown} KiB; free leases and blocks: {:?}",
        engine.states().free()
    );
    if grown < ALLOWED_KIB { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Resident memory of this process, from the kernel.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
