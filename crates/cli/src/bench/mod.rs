//! `forerun bench`: speed with and without drafts, side by side; or against what the machine could do
//! ([`roofline`]), or far into a context ([`long`]).
//!
//! Everything is checked first ([`plan`]), all weights are loaded ([`engines`]), arms take turns
//! ([`session`]), and only what was measured against its baseline is called a gain ([`summary`]).

mod arm;
mod chart;
mod csv;
mod engines;
mod long;
mod measure;
mod output;
mod plan;
mod prompts;
mod resident;
mod roofline;
mod session;
mod spread;
mod summary;
mod table;

pub(crate) use arm::Arm;

use crate::args::BenchArgs;
use crate::bundled;
use crate::exit::Outcome;
use crate::load::Source;
use crate::report::SamplingReport;
use anyhow::{Context, anyhow, bail};
use engines::Engines;
use plan::Plan;
use serde_json::Value;
use session::Session;
use std::path::Path;
use summary::{CellSummary, ReadingSummary, Summary};

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<Outcome> {
    if args.json && args.csv.as_deref() == Some("-") {
        bail!("stdout holds JSON or CSV, not both; give --csv a file");
    }
    if let (Some(report), Some(chart)) = (&args.from, &args.svg) {
        redraw(report, chart)?;
        return Ok(Outcome::Done);
    }
    let model = args.model.clone().map_or_else(bundled::find, Ok)?;
    let source = Source::open(&model, &args.model_options)?;
    match args.long {
        _ if args.roofline => roofline::roofline(args, &source)?,
        Some(tokens) => long::long(args, &source, tokens)?,
        None => compare(args, &source)?,
    }
    Ok(Outcome::Done)
}

fn compare(args: &BenchArgs, source: &Source) -> anyhow::Result<()> {
    let plan = Plan::new(args, source)?;
    let engines = Engines::load(source, &plan, args.device)?;
    let mut session = Session::new(&plan, source.blueprint.spec.vocabulary, engines);
    session.warm_up()?;
    let readings = session.read()?;
    let measured = session.compare()?;
    let cells: Vec<_> = measured.iter().map(|cell| CellSummary::new(&plan, cell)).collect();
    let summary = Summary {
        version: env!("CARGO_PKG_VERSION"),
        model: &source.path,
        device: session.engines.of(0).runner().device(),
        kv: args.engine.kv.dtype().to_string(),
        tokens: plan.tokens,
        reps: plan.reps,
        sampling: SamplingReport::from(&plan.sampling),
        seed: plan.sampling.seed,
        arms: plan.arms.iter().map(Arm::to_string).collect(),
        reading: readings.iter().map(ReadingSummary::new).collect(),
        worst: summary::worst(&plan, &cells),
        cells,
        measurements: summary::measurements(&plan, &readings, &measured),
    };
    if let Some(path) = &args.svg {
        write_chart(&serde_json::to_value(&summary)?, path)?;
    }
    output::show(args, &summary, || table::text(&summary), || csv::text(&summary))?;
    check_gain(args, &summary)
}

/// The chart of a report that was written before.
fn redraw(report: &Path, path: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(report).with_context(|| report.display().to_string())?;
    let value = serde_json::from_str(&text).with_context(|| report.display().to_string())?;
    write_chart(&value, path)
}

fn write_chart(report: &Value, path: &Path) -> anyhow::Result<()> {
    let svg = chart::svg(report).map_err(|why| anyhow!("--svg: {why}"))?;
    std::fs::write(path, svg).with_context(|| path.display().to_string())
}

/// Holds auto to what was asked of it.
fn check_gain(args: &BenchArgs, summary: &Summary<'_>) -> anyhow::Result<()> {
    let Some(least) = args.min_gain else { return Ok(()) };
    let auto = Arm::AUTO.to_string();
    match summary.worst.iter().find(|worst| worst.arm == auto) {
        Some(worst) if worst.gain >= least => Ok(()),
        Some(worst) => bail!(
            "auto gained {:.3}× with the prompt `{}` (context {}, batch {}); --min-gain asks for {least}",
            worst.gain,
            worst.prompt,
            worst.context,
            worst.batch
        ),
        None => bail!("--min-gain: the gain of auto could not be measured"),
    }
}
