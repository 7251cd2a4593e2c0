//! Arms side by side: what was measured, and what may be concluded.

use crate::arm::BenchArm;
use crate::engines::ArmEngines;
use crate::plan::BenchPlan;
use crate::report::{self, BenchReport, CellReport, MEASURED, ReadingReport, SCRIPTED};
use crate::session::{ArmSession, BenchCellRuns, PromptReading};
use crate::{BenchError, BenchEvent, BenchModel, BenchOptions, LoadModel, csv, table};
use forerun_report::SamplingReport;

/// Every measurement of every arm.
pub struct BenchComparison {
    model: String,
    device: String,
    kv: String,
    plan: BenchPlan,
    readings: Vec<PromptReading>,
    cells: Vec<BenchCellRuns>,
}

/// Measures all arms on the same prompts in turns.
///
/// # Errors
/// When the options do not fit the model, an arm gives other tokens than the baseline, or the device fails.
pub fn compare(
    options: &BenchOptions,
    model: &BenchModel<'_>,
    load: &mut dyn LoadModel,
    watch: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<BenchComparison, BenchError> {
    let plan = BenchPlan::new(options, model)?;
    let engines = ArmEngines::load(&plan, model.spec.drafter.is_some(), load)?;
    let mut session = ArmSession::new(&plan, model.spec.vocabulary, engines, watch);
    session.warm_up()?;
    let readings = session.read()?;
    let cells = session.compare()?;
    let device = session.engines.of(0).runner().device();
    let (model, kv) = (model.name.to_owned(), options.kv.to_string());
    Ok(BenchComparison { model, device, kv, plan, readings, cells })
}

impl BenchComparison {
    /// Everything as data, to be serialized.
    pub fn report(&self) -> BenchReport<'_> {
        let Self { plan, readings, .. } = self;
        let cells: Vec<_> = self.cells.iter().map(|cell| CellReport::new(plan, cell)).collect();
        BenchReport {
            version: env!("CARGO_PKG_VERSION"),
            model: &self.model,
            device: self.device.clone(),
            kv: self.kv.clone(),
            tokens: plan.tokens,
            reps: plan.reps,
            sampling: SamplingReport::from(&plan.sampling),
            seed: plan.sampling.seed,
            acceptance: if plan.acceptance.is_some() { SCRIPTED } else { MEASURED },
            scripted_acceptance: plan.acceptance.as_ref().map(|script| script.rates()),
            arms: plan.arms.iter().map(BenchArm::to_string).collect(),
            reading: readings.iter().map(ReadingReport::new).collect(),
            worst: report::worst(plan, &cells),
            cells,
            measurements: report::measurements(plan, readings, &self.cells),
        }
    }
}

impl BenchReport<'_> {
    /// Tables for people.
    pub fn table(&self) -> String {
        table::text(self)
    }

    /// A line for each measurement.
    pub fn csv(&self) -> String {
        csv::text(self)
    }

    /// Holds auto to a least gain with every prompt, context and batch.
    ///
    /// # Errors
    /// Where it gained less.
    pub fn check_gain(&self, least: f64) -> Result<(), BenchError> {
        let auto = BenchArm::AUTO.to_string();
        match self.worst.iter().find(|worst| worst.arm == auto) {
            Some(worst) if worst.gain >= least => Ok(()),
            Some(worst) => Err(BenchError::Gain {
                gain: worst.gain,
                prompt: worst.prompt.to_owned(),
                context: worst.context,
                batch: worst.batch,
                least,
            }),
            None => Err(BenchError::GainUnknown),
        }
    }
}
