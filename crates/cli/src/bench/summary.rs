//! From measurements to what is said about them. Serialized, this is the JSON output.

use super::arm::Arm;
use super::measure::Run;
use super::plan::Plan;
use super::session::{CellRuns, Reading};
use super::spread::Spread;
use crate::report::SamplingReport;
use forerun_base::Token;
use forerun_engine::Receipt;
use serde::Serialize;

/// What a run of the command found.
#[derive(Serialize)]
pub(super) struct Summary<'a> {
    pub(super) version: &'static str,
    pub(super) model: &'a str,
    pub(super) device: String,
    pub(super) kv: String,
    pub(super) tokens: usize,
    pub(super) reps: usize,
    pub(super) sampling: SamplingReport<'a>,
    pub(super) seed: u64,
    pub(super) arms: Vec<String>,
    pub(super) reading: Vec<ReadingSummary>,
    pub(super) cells: Vec<CellSummary<'a>>,
    /// By arm, where there is a baseline.
    pub(super) worst: Vec<Worst<'a>>,
    pub(super) measurements: Vec<Measurement<'a>>,
}

#[derive(Serialize)]
pub(super) struct ReadingSummary {
    pub(super) tokens: usize,
    pub(super) tokens_per_s: Spread,
}

/// One prompt at one context and batch.
#[derive(Serialize)]
pub(super) struct CellSummary<'a> {
    pub(super) prompt: &'a str,
    pub(super) prompt_tokens: usize,
    pub(super) context: usize,
    pub(super) batch: usize,
    pub(super) arms: Vec<ArmSummary>,
    /// What every arm answered, by member of the batch.
    token_ids: &'a [Vec<Token>],
}

/// One arm in one cell. Counts are of all repetitions together.
#[derive(Serialize)]
pub(super) struct ArmSummary {
    pub(super) arm: String,
    pub(super) decode_tokens_per_s: Spread,
    pub(super) prompt_tokens_per_s: Spread,
    time_to_first_token_ms: Spread,
    pub(super) ms_per_round: Spread,
    pub(super) tokens_per_round: f64,
    pub(super) drafted: u64,
    pub(super) accepted: u64,
    drafted_from_text: u64,
    drafted_by_position: Vec<u64>,
    accepted_by_position: Vec<u64>,
    /// Accepted over drafted.
    pub(super) acceptance_by_position: Vec<f64>,
    /// Rounds by number of drafts, from 0.
    pub(super) depth_histogram: Vec<u64>,
    /// Speed over that of plain in the same repetition; null without plain.
    pub(super) gain: Option<Spread>,
}

/// Where an arm gained the least.
#[derive(Serialize)]
pub(super) struct Worst<'a> {
    pub(super) arm: String,
    pub(super) gain: f64,
    pub(super) prompt: &'a str,
    pub(super) context: usize,
    pub(super) batch: usize,
}

/// One run: a line of CSV.
#[derive(Serialize)]
pub(super) struct Measurement<'a> {
    pub(super) prompt: &'a str,
    pub(super) prompt_tokens: usize,
    pub(super) context: usize,
    pub(super) batch: usize,
    /// `read` where only a prompt was read.
    pub(super) arm: String,
    pub(super) rep: usize,
    /// Null where only a prompt was read.
    pub(super) decode_tokens_per_s: Option<f64>,
    pub(super) prompt_tokens_per_s: f64,
    pub(super) time_to_first_token_ms: f64,
    pub(super) tokens_per_round: f64,
    pub(super) accepted: u64,
    pub(super) drafted: u64,
}

impl<'a> CellSummary<'a> {
    pub(super) fn new(plan: &'a Plan, measured: &'a CellRuns) -> Self {
        let CellRuns { cell, runs } = measured;
        let prompt = &plan.prompts[cell.prompt];
        let baseline: Option<Vec<f64>> = plan.baseline().map(|plain| rates(&runs[plain]));
        let arm = |(arm, runs): (&Arm, &'a Vec<Run>)| {
            ArmSummary::new(arm.to_string(), runs, baseline.as_deref())
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

    pub(super) fn arm(&self, name: &str) -> Option<&ArmSummary> {
        self.arms.iter().find(|arm| arm.arm == name)
    }
}

impl ArmSummary {
    fn new(arm: String, runs: &[Run], baseline: Option<&[f64]>) -> Self {
        let mut receipt = Receipt::default();
        runs.iter().for_each(|run| receipt.add(&run.receipt));
        let depth_histogram = up_to_last(&receipt.depths);
        let drafted_by_position = up_to_last(&receipt.drafted_at);
        let accepted_by_position = receipt.accepted_at[..drafted_by_position.len()].to_vec();
        let share = |(accepted, drafted): (&u64, &u64)| *accepted as f64 / *drafted as f64;
        Self {
            arm,
            decode_tokens_per_s: spread(runs, Run::decode_rate),
            prompt_tokens_per_s: spread(runs, Run::prompt_rate),
            time_to_first_token_ms: spread(runs, Run::first_token_ms),
            ms_per_round: spread(runs, Run::ms_per_round),
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

impl ReadingSummary {
    pub(super) fn new(reading: &Reading) -> Self {
        let tokens_per_s = spread(&reading.runs, Run::prompt_rate);
        Self { tokens: reading.tokens, tokens_per_s }
    }
}

/// The lowest median gain of every arm but plain.
pub(super) fn worst<'a>(plan: &Plan, cells: &[CellSummary<'a>]) -> Vec<Worst<'a>> {
    let drafting = plan.arms.iter().filter(|&&arm| arm != Arm::Plain).map(Arm::to_string);
    drafting
        .filter_map(|arm| {
            let gains = cells.iter().filter_map(|cell| Some((cell.arm(&arm)?.gain?.median, cell)));
            let (gain, cell) = gains.min_by(|a, b| a.0.total_cmp(&b.0))?;
            let CellSummary { prompt, context, batch, .. } = *cell;
            Some(Worst { arm, gain, prompt, context, batch })
        })
        .collect()
}

/// Every run as a line of its own.
pub(super) fn measurements<'a>(
    plan: &'a Plan,
    readings: &[Reading],
    cells: &[CellRuns],
) -> Vec<Measurement<'a>> {
    let mut lines = Vec::new();
    for Reading { tokens, runs } in readings {
        for (rep, run) in runs.iter().enumerate() {
            let line = Measurement::new("random tokens", *tokens, ("read", rep), run);
            lines.push(Measurement { decode_tokens_per_s: None, ..line });
        }
    }
    for CellRuns { cell, runs } in cells {
        let prompt = &plan.prompts[cell.prompt];
        for (arm, runs) in plan.arms.iter().zip(runs) {
            for (rep, run) in runs.iter().enumerate() {
                let (arm, tokens) = (arm.to_string(), prompt.ids.len());
                let line = Measurement::new(&prompt.label, tokens, (&arm, rep), run);
                lines.push(Measurement { context: cell.context, batch: cell.batch, ..line });
            }
        }
    }
    lines
}

impl<'a> Measurement<'a> {
    fn new(prompt: &'a str, prompt_tokens: usize, (arm, rep): (&str, usize), run: &Run) -> Self {
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

fn rates(runs: &[Run]) -> Vec<f64> {
    runs.iter().map(Run::decode_rate).collect()
}

fn spread(runs: &[Run], of: fn(&Run) -> f64) -> Spread {
    Spread::of(runs.iter().map(of)).expect("there is at least one repetition")
}

/// Without the zeros at the end.
fn up_to_last(counts: &[u64]) -> Vec<u64> {
    let len = counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
    counts[..len].to_vec()
}
