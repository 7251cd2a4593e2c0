//! What each operation achieves, beside what the machine could do at best.
//!
//! The machine is measured first ([`forerun_devices::Machine`]). Then one sequence, and as many together as the options
//! name, are driven step by step (`stepper`) through a device that can measure ([`forerun_backend::Timed`]): rates are
//! taken with the meter off, shares with it on (`phase`).

mod csv;
mod phase;
mod report;
mod stepper;
mod table;

pub(crate) use phase::StepPhase;
pub use report::RooflineReport;
pub(crate) use report::{MachineReport, PhaseReport};
pub(crate) use table::{machine_line, operations_text};

use crate::plan::checked_context;
use crate::prompts::random_tokens;
use crate::spread::Spread;
use crate::{BenchError, BenchModel, BenchOptions, LoadModel, open_measured};
use forerun_backend::Timed;
use forerun_engine::{Settings, Speculation};
use phase::RooflineSession;
use report::WidthReport;
use stepper::FixedStepRunner;

/// Prompt to read where nobody says and the model reaches that far.
const PROMPT: usize = 512;
/// Rows of the step that is taken apart.
const VERIFIED: usize = 4;
/// Rows of the steps whose cost is compared.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];
/// Rounds over all widths for each repetition.
const ROUNDS: usize = 4;

/// RooflineSizes of what is run.
struct RooflineSizes {
    prompt: usize,
    tokens: usize,
    reps: usize,
    context: usize,
    /// Sequences of each phase that decodes several together.
    batches: Vec<usize>,
}

impl RooflineSizes {
    fn new(options: &BenchOptions, model: &BenchModel<'_>) -> Result<Self, BenchError> {
        let most = model.spec.max_positions;
        let prompt = match options.read[..] {
            [] => PROMPT.min(most / 2).max(1),
            [prompt] => prompt,
            _ => return Err(BenchError::SeveralLengths),
        };
        // Decode and verify, each with the meter off and on, a step of each width in every round, and the
        // drafts of the last step.
        let steps = 2 * (options.tokens.div_ceil(4) + phase::WARM_STEPS);
        let steps = steps.saturating_add(options.tokens.saturating_mul(2));
        let compared = options.reps.saturating_mul(ROUNDS * WIDTHS.len());
        let reach = [steps, compared, WIDTHS[WIDTHS.len() - 1]]
            .into_iter()
            .fold(prompt, usize::saturating_add);
        let context = checked_context(options, model.spec, reach)?;
        let batches = options.batch.iter().copied().filter(|&batch| batch > 1).collect();
        Ok(Self { prompt, tokens: options.tokens, reps: options.reps, context, batches })
    }

    fn settings(&self, options: &BenchOptions) -> Settings {
        Settings {
            context: self.context,
            sequences: self.batches.iter().copied().max().unwrap_or(1),
            prefill_chunk: options.prefill_chunk,
            speculation: Speculation::text(WIDTHS[WIDTHS.len() - 1] - 1),
            kv: options.kv,
            submission_budget: options.submission_budget,
            ..Settings::default()
        }
    }
}

/// Measures the machine, and what each operation of the model achieves on it.
///
/// # Errors
/// When the measurements do not fit the model, the device is not the CPU, or the device fails.
pub fn roofline(
    options: &BenchOptions,
    model: &BenchModel<'_>,
    load: &mut dyn LoadModel,
) -> Result<RooflineReport, BenchError> {
    let sizes = RooflineSizes::new(options, model)?;
    let machine = forerun_devices::measure(options.device.threads)?;
    let (timed, meter) = Timed::new(open_measured(options)?);
    let settings = sizes.settings(options);
    let mut model_runner = load.runner(Box::new(timed), &settings).map_err(BenchError::Load)?;
    let device = model_runner.device();
    let prompt = random_tokens(sizes.prompt, model.spec.vocabulary);
    let runner = FixedStepRunner::new(&mut model_runner, 1, sizes.context)?;
    let mut session = RooflineSession { runner, meter: &meter };
    let most = session.runner.most_rows();
    let mut phases =
        vec![session.read(&prompt, sizes.reps)?, session.steps("decode", 1, sizes.tokens)?];
    let widths: Vec<usize> = WIDTHS.into_iter().filter(|&rows| rows <= most).collect();
    let compared = session.compare(&widths, sizes.reps * ROUNDS)?;
    phases.push(session.steps("verify", VERIFIED.min(most), sizes.tokens.div_ceil(4))?);
    for &batch in &sizes.batches {
        let mut runner = FixedStepRunner::new(&mut model_runner, batch, sizes.context)?;
        runner.read(&prompt)?;
        let mut session = RooflineSession { runner, meter: &meter };
        phases.push(session.steps("batch", 1, sizes.tokens)?);
    }
    Ok(RooflineReport {
        version: env!("CARGO_PKG_VERSION"),
        model: model.name.to_owned(),
        device,
        kv: options.kv.to_string(),
        machine: MachineReport::from(&machine),
        phases: phases.iter().map(|phase| PhaseReport::new(phase, &machine)).collect(),
        widths: width_reports(&widths, &compared),
    })
}

impl RooflineReport {
    /// Tables for people.
    pub fn table(&self) -> String {
        table::text(self)
    }

    /// A line for each operation, phase and width.
    pub fn csv(&self) -> String {
        csv::text(self)
    }
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
