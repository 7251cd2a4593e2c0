//! `forerun bench --roofline`: what each operation achieves, beside what the machine could do at best.
//!
//! The machine is measured first ([`forerun_backend_cpu::Machine`] by way of [`crate::device`]). Then one sequence,
//! and as many together as `--batch` asks for, are driven step by step ([`walk`]) through a device that can measure ([`forerun_backend::Timed`]): rates are
//! taken with the meter off, shares with it on ([`phase`]).

mod csv;
mod phase;
mod report;
mod table;
mod walk;

pub(super) use phase::Phase;
pub(super) use report::{MachineReport, PhaseReport};
pub(super) use table::{machine_line, operations_text};

use super::plan::checked_context;
use super::prompts::random_tokens;
use super::{output, spread::Spread};
use crate::args::BenchArgs;
use crate::device;
use crate::load::Source;
use anyhow::bail;
use forerun_backend::Timed;
use forerun_engine::{Settings, Speculation};
use phase::Session;
use report::{Roofline, WidthReport};
use walk::Walk;

/// Prompt to read where nobody says and the model reaches that far.
const PROMPT: usize = 512;
/// Rows of the step that is taken apart.
const VERIFIED: usize = 4;
/// Rows of the steps whose cost is compared.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];
/// Rounds over all widths for each repetition.
const ROUNDS: usize = 4;

/// Sizes of what is run.
struct Sizes {
    prompt: usize,
    tokens: usize,
    reps: usize,
    context: usize,
    /// Sequences of each phase that decodes several together.
    batches: Vec<usize>,
}

impl Sizes {
    fn new(args: &BenchArgs, source: &Source) -> anyhow::Result<Self> {
        let most = source.blueprint.spec.max_positions;
        let prompt = match args.read[..] {
            [] => PROMPT.min(most / 2).max(1),
            [prompt] => prompt,
            _ => bail!("--roofline reads one prompt: give --read one length"),
        };
        // Decode and verify, each with the meter off and on, a step of each width in every round, and the
        // drafts of the last step.
        let steps = 2 * (args.tokens.div_ceil(4) + phase::WARM_STEPS);
        let steps = steps.saturating_add(args.tokens.saturating_mul(2));
        let compared = args.reps.saturating_mul(ROUNDS * WIDTHS.len());
        let reach = [steps, compared, WIDTHS[WIDTHS.len() - 1]]
            .into_iter()
            .fold(prompt, usize::saturating_add);
        let context = checked_context(args, &source.blueprint.spec, reach)?;
        let batches = args.batch.iter().copied().filter(|&batch| batch > 1).collect();
        Ok(Self { prompt, tokens: args.tokens, reps: args.reps, context, batches })
    }

    fn settings(&self, args: &BenchArgs) -> Settings {
        Settings {
            context: self.context,
            sequences: self.batches.iter().copied().max().unwrap_or(1),
            prefill_chunk: args.engine.prefill_chunk,
            speculation: Speculation::text(WIDTHS[WIDTHS.len() - 1] - 1),
            kv: args.engine.kv.dtype(),
            submission_budget: args.engine.submission_budget(),
            ..Settings::default()
        }
    }
}

pub(super) fn roofline(args: &BenchArgs, source: &Source) -> anyhow::Result<()> {
    let sizes = Sizes::new(args, source)?;
    let machine = device::measure(args.device)?;
    let (timed, meter) = Timed::new(device::open_measured(args.device)?);
    let mut runner = source.runner(Box::new(timed), &sizes.settings(args))?;
    let device = runner.device();
    let prompt = random_tokens(sizes.prompt, source.blueprint.spec.vocabulary);
    let walk = Walk::new(&mut runner, 1, sizes.context)?;
    let mut session = Session { walk, meter: &meter };
    let most = session.walk.most_rows();
    let mut phases =
        vec![session.read(&prompt, sizes.reps)?, session.steps("decode", 1, sizes.tokens)?];
    let widths: Vec<usize> = WIDTHS.into_iter().filter(|&rows| rows <= most).collect();
    let compared = session.compare(&widths, sizes.reps * ROUNDS)?;
    phases.push(session.steps("verify", VERIFIED.min(most), sizes.tokens.div_ceil(4))?);
    for &batch in &sizes.batches {
        let mut walk = Walk::new(&mut runner, batch, sizes.context)?;
        walk.read(&prompt)?;
        phases.push(Session { walk, meter: &meter }.steps("batch", 1, sizes.tokens)?);
    }
    let report = Roofline {
        version: env!("CARGO_PKG_VERSION"),
        model: &source.path,
        device,
        kv: args.engine.kv.dtype().to_string(),
        machine: MachineReport::from(&machine),
        phases: phases.iter().map(|phase| PhaseReport::new(phase, &machine)).collect(),
        widths: width_reports(&widths, &compared),
    };
    output::show(args, &report, || table::text(&report), || csv::text(&report))
}

/// Of each width the time, and the cost relative to one row in the same round.
fn width_reports(widths: &[usize], ms: &[Vec<f64>]) -> Vec<WidthReport> {
    let report = |(&rows, times): (&usize, &Vec<f64>)| WidthReport {
        rows,
        ms: Spread::of(times.iter().copied()).expect("there is at least one round"),
        cost: Spread::of_ratios(times, &ms[0]).expect("a step takes time"),
    };
    widths.iter().zip(ms).map(report).collect()
}
