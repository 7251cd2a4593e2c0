//! From measurements to what is said about them. Serialized, this is the JSON output.

use crate::arm::BenchArm;
use crate::measure::ArmRun;
use crate::plan::BenchPlan;
use crate::session::{BenchCellRuns, PromptReading};
use crate::spread::Spread;
use forerun_base::Token;
use forerun_engine::Receipt;
use forerun_report::SamplingReport;
use serde::Serialize;

/// Drafts were taken where the model agreed.
pub(crate) const MEASURED: &str = "measured";
/// Drafts were taken as a script says.
pub(crate) const SCRIPTED: &str = "scripted";

/// What [`Comparison::report`](crate::BenchComparison::report) gives.
#[derive(Serialize)]
pub struct BenchReport<'a> {
    pub(crate) version: &'static str,
    pub(crate) model: &'a str,
    pub(crate) device: String,
    pub(crate) kv: String,
    pub(crate) tokens: usize,
    pub(crate) reps: usize,
    pub(crate) sampling: SamplingReport<'a>,
    pub(crate) seed: u64,
    /// `measured`, or `scripted` where the model did not judge drafts.
    pub(crate) acceptance: &'static str,
    /// The script: the share of drafts taken at each place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scripted_acceptance: Option<&'a [f32]>,
    pub(crate) arms: Vec<String>,
    pub(crate) reading: Vec<ReadingReport>,
    pub(crate) cells: Vec<CellReport<'a>>,
    /// By arm, where there is a baseline.
    pub(crate) worst: Vec<WorstGain<'a>>,
    pub(crate) measurements: Vec<MeasurementRow<'a>>,
}

#[derive(Serialize)]
pub(crate) struct ReadingReport {
    pub(crate) tokens: usize,
    pub(crate) tokens_per_s: Spread,
}

/// One prompt at one context and batch.
#[derive(Serialize)]
pub(crate) struct CellReport<'a> {
    pub(crate) prompt: &'a str,
    pub(crate) prompt_tokens: usize,
    pub(crate) context: usize,
    pub(crate) batch: usize,
    pub(crate) arms: Vec<BenchArmReport>,
    /// What every arm answered, by member of the batch.
    token_ids: &'a [Vec<Token>],
}

/// One arm in one cell. Counts are of all repetitions together.
#[derive(Serialize)]
pub(crate) struct BenchArmReport {
    pub(crate) arm: String,
    pub(crate) decode_tokens_per_s: Spread,
    pub(crate) prompt_tokens_per_s: Spread,
    time_to_first_token_ms: Spread,
    pub(crate) ms_per_round: Spread,
    pub(crate) tokens_per_round: f64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    drafted_from_text: u64,
    drafted_by_position: Vec<u64>,
    accepted_by_position: Vec<u64>,
    /// Accepted over drafted.
    pub(crate) acceptance_by_position: Vec<f64>,
    /// Rounds by number of drafts, from 0.
    pub(crate) depth_histogram: Vec<u64>,
    /// Speed over that of plain in the same repetition; null without plain.
    pub(crate) gain: Option<Spread>,
}

/// Where an arm gained the least.
#[derive(Serialize)]
pub(crate) struct WorstGain<'a> {
    pub(crate) arm: String,
    pub(crate) gain: f64,
    pub(crate) prompt: &'a str,
    pub(crate) context: usize,
    pub(crate) batch: usize,
}

/// One run: a line of CSV.
#[derive(Serialize)]
pub(crate) struct MeasurementRow<'a> {
    pub(crate) prompt: &'a str,
    pub(crate) prompt_tokens: usize,
    pub(crate) context: usize,
    pub(crate) batch: usize,
    /// `read` where only a prompt was read.
    pub(crate) arm: String,
    pub(crate) rep: usize,
    /// Null where only a prompt was read.
    pub(crate) decode_tokens_per_s: Option<f64>,
    pub(crate) prompt_tokens_per_s: f64,
    pub(crate) time_to_first_token_ms: f64,
    pub(crate) tokens_per_round: f64,
    pub(crate) accepted: u64,
    pub(crate) drafted: u64,
}

impl<'a> CellReport<'a> {
    pub(crate) fn new(plan: &'a BenchPlan, measured: &'a BenchCellRuns) -> Self {
        let BenchCellRuns { cell, runs } = measured;
        let prompt = &plan.prompts[cell.prompt];
        let baseline: Option<Vec<f64>> = plan.baseline().map(|plain| rates(&runs[plain]));
        let arm = |(arm, runs): (&BenchArm, &'a Vec<ArmRun>)| {
            BenchArmReport::new(arm.to_string(), runs, baseline.as_deref())
        };
        Self {
            prompt: &prompt.label,
            prompt_tokens: prompt.ids.len(),
            context: cell.context,
            batch: cell.batch,
            arms: plan.arms.iter().zip(runs).map(arm).collect(),
            token_ids: &runs[plan.reference()][0].answers,
        }
    }

    pub(crate) fn arm(&self, name: &str) -> Option<&BenchArmReport> {
        self.arms.iter().find(|arm| arm.arm == name)
    }
}

impl BenchArmReport {
    fn new(arm: String, runs: &[ArmRun], baseline: Option<&[f64]>) -> Self {
        let mut receipt = Receipt::default();
        runs.iter().for_each(|run| receipt.add(&run.receipt));
        let depth_histogram = up_to_last(&receipt.depths);
        let drafted_by_position = up_to_last(&receipt.drafted_at);
        let accepted_by_position = receipt.accepted_at[..drafted_by_position.len()].to_vec();
        let share = |(accepted, drafted): (&u64, &u64)| *accepted as f64 / *drafted as f64;
        Self {
            arm,
            decode_tokens_per_s: spread(runs, ArmRun::decode_rate),
            prompt_tokens_per_s: spread(runs, ArmRun::prompt_rate),
            time_to_first_token_ms: spread(runs, ArmRun::first_token_ms),
            ms_per_round: spread(runs, ArmRun::ms_per_round),
            tokens_per_round: receipt.tokens_per_round(),
            drafted: receipt.drafted,
            accepted: receipt.accepted,
            drafted_from_text: receipt.from_text,
            acceptance_by_position: accepted_by_position
                .iter()
                .zip(&drafted_by_position)
                .map(share)
                .collect(),
            drafted_by_position,
            accepted_by_position,
            depth_histogram,
            gain: baseline.and_then(|baseline| Spread::of_ratios(&rates(runs), baseline)),
        }
    }
}

impl ReadingReport {
    pub(crate) fn new(reading: &PromptReading) -> Self {
        let tokens_per_s = spread(&reading.runs, ArmRun::prompt_rate);
        Self { tokens: reading.tokens, tokens_per_s }
    }
}

/// The lowest median gain of every arm but plain.
pub(crate) fn worst<'a>(plan: &BenchPlan, cells: &[CellReport<'a>]) -> Vec<WorstGain<'a>> {
    let drafting = plan.arms.iter().filter(|&&arm| arm != BenchArm::Plain).map(BenchArm::to_string);
    drafting
        .filter_map(|arm| {
            let gains = cells.iter().filter_map(|cell| Some((cell.arm(&arm)?.gain?.median, cell)));
            let (gain, cell) = gains.min_by(|a, b| a.0.total_cmp(&b.0))?;
            let CellReport { prompt, context, batch, .. } = *cell;
            Some(WorstGain { arm, gain, prompt, context, batch })
        })
        .collect()
}

/// Every run as a line of its own.
pub(crate) fn measurements<'a>(
    plan: &'a BenchPlan,
    readings: &[PromptReading],
    cells: &[BenchCellRuns],
) -> Vec<MeasurementRow<'a>> {
    let mut lines = Vec::new();
    for PromptReading { tokens, runs } in readings {
        for (rep, run) in runs.iter().enumerate() {
            let line = MeasurementRow::new("random tokens", *tokens, ("read", rep), run);
            lines.push(MeasurementRow { decode_tokens_per_s: None, ..line });
        }
    }
    for BenchCellRuns { cell, runs } in cells {
        let prompt = &plan.prompts[cell.prompt];
        for (arm, runs) in plan.arms.iter().zip(runs) {
            for (rep, run) in runs.iter().enumerate() {
                let (arm, tokens) = (arm.to_string(), prompt.ids.len());
                let line = MeasurementRow::new(&prompt.label, tokens, (&arm, rep), run);
                lines.push(MeasurementRow { context: cell.context, batch: cell.batch, ..line });
            }
        }
    }
    lines
}

impl<'a> MeasurementRow<'a> {
    fn new(prompt: &'a str, prompt_tokens: usize, (arm, rep): (&str, usize), run: &ArmRun) -> Self {
        Self {
            prompt,
            prompt_tokens,
            context: 0,
            batch: 1,
            arm: arm.to_owned(),
            rep: rep + 1,
            decode_tokens_per_s: Some(run.decode_rate()),
            prompt_tokens_per_s: run.prompt_rate(),
            time_to_first_token_ms: run.first_token_ms(),
            tokens_per_round: run.receipt.tokens_per_round(),
            accepted: run.receipt.accepted,
            drafted: run.receipt.drafted,
        }
    }
}

fn rates(runs: &[ArmRun]) -> Vec<f64> {
    runs.iter().map(ArmRun::decode_rate).collect()
}

fn spread(runs: &[ArmRun], of: fn(&ArmRun) -> f64) -> Spread {
    Spread::of(runs.iter().map(of)).expect("there is at least one repetition")
}

/// Without the zeros at the end.
fn up_to_last(counts: &[u64]) -> Vec<u64> {
    let len = counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
    counts[..len].to_vec()
}
