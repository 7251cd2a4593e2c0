//! `forerun bench`: speed with and without drafts, side by side; or against what the machine could do; or far into a
//! context.

use crate::args::BenchArgs;
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::{generation, ids, synth, terminal};
use anyhow::{Context, anyhow, bail};
use forerun::PromptKind;
use forerun_backend::Backend;
use forerun_bench::{
    BenchEvent, BenchModel, BenchOptions, BenchPrompt, LoadError, LoadModel, chart_svg, compare,
    long, roofline,
};
use forerun_engine::{Engine, ModelRunner, Sampling, ScriptedAcceptance, Settings};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// The noise of a run that does not name a seed: two runs measure the same text.
const SEED: u64 = 1;

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<Outcome> {
    if args.json && args.csv.as_deref() == Some("-") {
        bail!("stdout holds JSON or CSV, not both; give --csv a file");
    }
    if let (Some(report), Some(chart)) = (&args.from, &args.svg) {
        redraw(report, chart)?;
        return Ok(Outcome::Done);
    }
    let source = synth::source(args.model.as_deref(), &args.synth, &args.model_options)?;
    let options = options(args, &source)?;
    let model = BenchModel {
        name: &source.path,
        spec: &source.blueprint.spec,
        tokenizer: source.text.tokenizer.as_ref(),
    };
    let mut load = BenchLoader { source: &source, args };
    if args.roofline {
        let report = roofline(&options, &model, &mut load)?;
        show(args, &report, || report.table(), || report.csv())?;
    } else if let Some(tokens) = args.long {
        let mut bar = BenchBar::new("reading {wide_bar} {pos}/{len} {eta}");
        let report = long(&options, &model, tokens, &mut load, &mut |event| bar.show(event))?;
        show(args, &report, || report.table(), || report.csv())?;
    } else {
        let mut bar = BenchBar::new("{wide_bar} {pos}/{len} {msg} {eta}");
        let comparison = compare(&options, &model, &mut load, &mut |event| bar.show(event))?;
        let report = comparison.report();
        if let Some(path) = &args.svg {
            write_chart(&serde_json::to_value(&report)?, path)?;
        }
        show(args, &report, || report.table(), || report.csv())?;
        args.min_gain.map_or(Ok(()), |least| report.check_gain(least))?;
    }
    Ok(Outcome::Done)
}

/// The chart of a report that was written before.
fn redraw(report: &Path, path: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(report).with_context(|| report.display().to_string())?;
    let value = serde_json::from_str(&text).with_context(|| report.display().to_string())?;
    write_chart(&value, path)
}

fn write_chart(report: &Value, path: &Path) -> anyhow::Result<()> {
    let svg = chart_svg(report).map_err(|why| anyhow!("--svg: {why}"))?;
    std::fs::write(path, svg).with_context(|| path.display().to_string())
}

fn options(args: &BenchArgs, source: &ModelSource) -> anyhow::Result<BenchOptions> {
    Ok(BenchOptions {
        prompts: prompts(args, source)?,
        arms: args.arms.clone(),
        tokens: args.tokens,
        reps: args.reps,
        contexts: args.contexts.clone(),
        batch: args.batch.clone(),
        read: args.read.clone(),
        sampling: sampling(args),
        min_gain: args.min_gain,
        acceptance: match &args.accept[..] {
            [] => None,
            rates => Some(ScriptedAcceptance::new(rates.to_vec()).context("--accept")?),
        },
        draft_vocabulary: args.vocabulary.draft_vocabulary,
        context: args.engine.ctx,
        prefill_chunk: args.engine.prefill_chunk,
        kv: args.engine.kv.dtype(),
        submission_budget: args.engine.submission_budget(),
        device: args.device.options(),
    })
}

/// Greedy unless a temperature was typed: what a model's files ask for would make two models
/// hard to compare.
fn sampling(args: &BenchArgs) -> Sampling {
    let mut typed = args.sampling.clone();
    typed.seed.get_or_insert(SEED);
    generation::sampling(Some(&typed), &Default::default(), PromptKind::Text)
}

/// The prompts that were typed.
fn prompts(args: &BenchArgs, source: &ModelSource) -> anyhow::Result<Vec<BenchPrompt>> {
    let mut prompts = Vec::new();
    for text in &args.prompt {
        prompts.push(BenchPrompt::of_text(text, source.text.encode_raw(text)?));
    }
    for path in &args.file {
        let label = path.display().to_string();
        let text = forerun_base::read_regular_text(path).with_context(|| label.clone())?;
        prompts.push(BenchPrompt { label, ids: source.text.encode_raw(&text)? });
    }
    for (i, given) in args.ids.iter().enumerate() {
        prompts.push(BenchPrompt { label: format!("ids {}", i + 1), ids: ids::read(given)? });
    }
    Ok(prompts)
}

struct BenchLoader<'a> {
    source: &'a ModelSource,
    args: &'a BenchArgs,
}

impl LoadModel for BenchLoader<'_> {
    fn engine(&mut self, settings: &Settings) -> Result<Engine<ModelRunner>, LoadError> {
        Ok(self.source.load(settings, self.args.device)?.engine)
    }

    fn runner(
        &mut self,
        device: Box<dyn Backend>,
        settings: &Settings,
    ) -> Result<ModelRunner, LoadError> {
        Ok(self.source.runner(device, settings)?)
    }
}

/// A bar on stderr; hidden where stderr is not a terminal. It is drawn between measurements alone.
struct BenchBar(ProgressBar);

impl BenchBar {
    fn new(template: &str) -> Self {
        Self(terminal::bar(0, template))
    }

    fn show(&mut self, event: BenchEvent<'_>) {
        match event {
            BenchEvent::Note(line) => terminal::note(line),
            BenchEvent::Progress { done, total, .. } if done == total => self.0.finish_and_clear(),
            BenchEvent::Progress { done, total, doing } => {
                self.0.set_length(total as u64);
                self.0.set_position(done as u64);
                self.0.set_message(doing.to_owned());
            }
        }
    }
}

/// Where results go: a table or JSON to stdout, CSV to a file or in their place.
fn show(
    args: &BenchArgs,
    report: &impl Serialize,
    table: impl FnOnce() -> String,
    csv: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match args.csv.as_deref() {
        Some("-") => return Ok(terminal::show(&csv())?),
        Some(path) => std::fs::write(path, csv()).with_context(|| path.to_owned())?,
        None => {}
    }
    if args.json { terminal::show_json(report) } else { Ok(terminal::show(&table())?) }
}
