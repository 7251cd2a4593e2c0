//! Dispatches, submissions and bytes of a decoded token for networks of published shapes, as rows of a table. No device
//! is needed: the
//! program is lowered as it is for an adapter, and counted.
//!
//! ```text
//! cargo run --release -p forerun-backend-wgpu --features device --example dispatches
//! ```

use forerun_backend_wgpu::{Counts, Planned, PlannedLimits};
use forerun_base::{Codes, Format, ScaleKind};
use forerun_engine::{Engine, ModelRunner, Request, Settings};
use forerun_model::{Blueprint, Model};
use forerun_testkit::tiny::{Family, Tiny, TinyExperts, TinyLinear};
use std::error::Error;

/// Codes of four bits with a scale and an offset for 64 columns, as MLX quantises.
const FOUR_BITS: Format = Format::Grouped {
    codes: Codes::Uint { bits: 4 },
    group: 64,
    scale: ScaleKind::BF16,
    offset: true,
};

/// docs/models/shapes/qwen3.5-27b.json
fn dense() -> Tiny {
    let (key_heads, value_heads, key_dim, value_dim) = (16, 48, 128, 128);
    Tiny {
        hidden: 5120,
        layers: 64,
        heads: 24,
        kv_heads: 4,
        head_dim: 256,
        ffn: 17408,
        linear: TinyLinear { key_heads, value_heads, key_dim, value_dim, taps: 4, interval: 4 },
        vocabulary: 248_320,
        mtp: false,
        ..Tiny::new(Family::Qwen35)
    }
}

/// docs/models/shapes/qwen3.5-35b-a3b.json
fn sparse() -> Tiny {
    let (key_heads, value_heads, key_dim, value_dim) = (16, 32, 128, 128);
    Tiny {
        hidden: 2048,
        layers: 40,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        linear: TinyLinear { key_heads, value_heads, key_dim, value_dim, taps: 4, interval: 4 },
        experts: TinyExperts { count: 256, top_k: 8, ffn: 512, shared_ffn: 512 },
        vocabulary: 248_320,
        mtp: false,
        ..Tiny::new(Family::Qwen35Moe)
    }
}

/// Bytes a second of an adapter with which a runner learns how much fits a submission: an Apple chip of the middle
/// class.
const SPEED: u64 = 250_000_000_000;
/// Tokens after which it has learned.
const LEARNED: usize = 100;
/// Layers after which a network repeats itself.
const PERIOD: usize = 4;

/// Counts of so many tokens of a network with so many layers.
fn counts(tiny: &Tiny, layers: usize, tokens: u64) -> Result<[Counts; 2], Box<dyn Error>> {
    let (format, speed) = (Some(FOUR_BITS), SPEED);
    let limits = PlannedLimits { format, speed, ..PlannedLimits::default() };
    let tiny = Tiny { layers, ..tiny.clone() };
    let folder = tempfile::tempdir()?;
    tiny.write_hollow(folder.path());
    let blueprint = Blueprint::open(folder.path())?;
    let mut device = Box::new(Planned::new(limits));
    let counts = device.counts();
    let model = Model::load(&blueprint, &mut *device, &mut |_| {})?;
    let settings = Settings { context: 1024, prefill_chunk: 1, ..Settings::default() };
    let mut engine = Engine::new(ModelRunner::new(device, model, &settings)?);
    let mut seen = [Counts::default(); 3];
    for (seen, tokens) in seen.iter_mut().zip([LEARNED, 2, 2 + tokens as usize]) {
        let before = counts.get();
        engine.submit(Request::greedy(vec![1], tokens))?;
        while !engine.is_idle() {
            engine.step(&mut Vec::new());
        }
        *seen = since(before, counts.get());
    }
    Ok([seen[1], seen[2]])
}

fn since(before: Counts, now: Counts) -> Counts {
    let mut since = now;
    since.dispatches -= before.dispatches;
    since.submissions -= before.submissions;
    since.work.weights -= before.work.weights;
    since
}

/// Dispatches, submissions and bytes of weights of a decoded token. A period of layers is what eight have more than
/// four.
fn of_a_token(tiny: &Tiny) -> Result<[f64; 3], Box<dyn Error>> {
    const TOKENS: u64 = 4;
    let each = |[few, many]: [Counts; 2]| {
        let of = |few: u64, many: u64| (many - few) as f64 / TOKENS as f64;
        [
            of(few.dispatches, many.dispatches),
            of(few.submissions, many.submissions),
            of(few.work.weights, many.work.weights),
        ]
    };
    let one = each(counts(tiny, PERIOD, TOKENS)?);
    let two = each(counts(tiny, 2 * PERIOD, TOKENS)?);
    let periods = (tiny.layers / PERIOD) as f64;
    Ok(std::array::from_fn(|i| one[i] + (periods - 1.0) * (two[i] - one[i])))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("| shape | dispatches a token | submissions | GB of weights |");
    println!("|---|---|---|---|");
    for (name, tiny) in [("27B", dense()), ("35B-A3B", sparse())] {
        let [dispatches, submissions, bytes] = of_a_token(&tiny)?;
        println!("| {name}, 4 bits | {dispatches} | {submissions} | {:.1} |", bytes / 1e9);
    }
    Ok(())
}
