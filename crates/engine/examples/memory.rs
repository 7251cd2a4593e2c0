//! Memory besides weights that networks of published shapes need, by context, as rows of a table.
//!
//! ```text
//! cargo run --release -p forerun-engine --example memory -- docs/models/shapes/*.json
//! ```

use forerun_backend::MemoryPlan;
use forerun_base::DType;
use forerun_engine::{ModelRunner, Settings, Speculation};
use forerun_model::{ModelSpec, spec_from_config};
use std::error::Error;

const CONTEXTS: [usize; 4] = [4096, 32768, 131_072, 262_144];

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let spec = spec_from_config(&serde_json::from_slice(&std::fs::read(&path)?)?, true)?;
        println!("{path}\n\n| context | caches, f16 | caches, f32 | state and logs | scratch |");
        println!("|---|---|---|---|---|");
        for context in CONTEXTS.into_iter().filter(|&n| n <= spec.max_positions) {
            let (half, whole) =
                (plan(&spec, context, DType::F16)?, plan(&spec, context, DType::F32)?);
            println!(
                "| {context} | {} | {} | {} | {} |",
                sum(&half, &["kv cache", "kv cache, windows"]),
                sum(&whole, &["kv cache", "kv cache, windows"]),
                sum(&half, &["recurrent state", "draft log", "hidden window"]),
                sum(&half, &["scratch"]),
            );
        }
        println!();
    }
    Ok(())
}

fn plan(spec: &ModelSpec, context: usize, kv: DType) -> Result<MemoryPlan, Box<dyn Error>> {
    let speculation = Speculation { text: true, ..Speculation::mtp(8) };
    let settings = Settings { context, kv, speculation, ..Settings::default() };
    Ok(ModelRunner::memory_plan(spec, &settings)?)
}

fn sum(plan: &MemoryPlan, lines: &[&str]) -> String {
    let wanted = plan.items.iter().filter(|item| lines.contains(&item.label.as_str()));
    let mib = wanted.map(|item| item.bytes).sum::<u64>() as f64 / f64::from(1 << 20);
    if mib >= 1024.0 { format!("{:.1} GiB", mib / 1024.0) } else { format!("{mib:.0} MiB") }
}
