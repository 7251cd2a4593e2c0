//! Everything decided before weights are read.

use crate::arm::{ArmDrafters, BenchArm};
use crate::prompts::{BenchPrompt, prompts};
use crate::{BenchError, BenchModel, BenchOptions};
use forerun_engine::{Sampling, ScriptedAcceptance, Settings, Speculation};
use forerun_model::ModelSpec;

/// Prompts of these lengths are read where the model reaches that far.
const READ_LENGTHS: [usize; 2] = [512, 1024];

pub(crate) struct BenchPlan {
    pub(crate) prompts: Vec<BenchPrompt>,
    pub(crate) arms: Vec<BenchArm>,
    pub(crate) cells: Vec<BenchCell>,
    /// Lengths of the random prompts to read.
    pub(crate) read: Vec<usize>,
    pub(crate) tokens: usize,
    pub(crate) reps: usize,
    pub(crate) sampling: Sampling,
    /// In place of the model's own acceptance.
    pub(crate) acceptance: Option<ScriptedAcceptance>,
    /// Without drafters, which differ from engine to engine.
    settings: Settings,
    max_drafts: usize,
}

/// One situation in which all arms are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BenchCell {
    /// Which prompt.
    pub(crate) prompt: usize,
    /// Random tokens before it.
    pub(crate) context: usize,
    /// Answers at a time.
    pub(crate) batch: usize,
}

impl BenchPlan {
    pub(crate) fn new(options: &BenchOptions, model: &BenchModel<'_>) -> Result<Self, BenchError> {
        let spec = model.spec;
        let arms = arms(options, spec)?;
        let prompts = prompts(options, model)?;
        let sampling = options.sampling.clone();
        sampling.check(spec.vocabulary)?;
        let read = match &options.read[..] {
            [] => READ_LENGTHS.into_iter().filter(|&n| n < spec.max_positions).collect(),
            typed => typed.to_vec(),
        };
        let longest = prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        let context = options.contexts.iter().copied().max().unwrap_or(0);
        let reach = context.saturating_add(longest).saturating_add(options.tokens);
        let reach = reach.max(read.iter().copied().max().unwrap_or(0).saturating_add(1));
        let settings = Settings {
            context: checked_context(options, spec, reach)?,
            sequences: options.batch.iter().copied().max().unwrap_or(1),
            prefill_chunk: options.prefill_chunk,
            speculation: Speculation { vocabulary: options.draft_vocabulary, ..Speculation::OFF },
            kv: options.kv,
            submission_budget: options.submission_budget,
            ..Settings::default()
        };
        Ok(Self {
            cells: cells(options, prompts.len()),
            prompts,
            max_drafts: arms.iter().map(|arm| arm.depth().max_drafts()).max().unwrap_or(0),
            arms,
            read,
            tokens: options.tokens,
            reps: options.reps,
            sampling,
            acceptance: options.acceptance.clone(),
            settings,
        })
    }

    /// The place of plain, if it is among the arms.
    pub(crate) fn baseline(&self) -> Option<usize> {
        self.arms.iter().position(|&arm| arm == BenchArm::Plain)
    }

    /// The place of the arm whose tokens all others must give.
    pub(crate) fn reference(&self) -> usize {
        self.baseline().unwrap_or(0)
    }

    /// RooflineSizes of an engine with these drafters.
    pub(crate) fn settings(&self, drafters: Option<ArmDrafters>) -> Settings {
        let speculation = drafters.map_or(Speculation::OFF, |d| d.speculation(self.max_drafts));
        let vocabulary = self.settings.speculation.vocabulary;
        Settings { speculation: Speculation { vocabulary, ..speculation }, ..self.settings }
    }
}

fn arms(options: &BenchOptions, spec: &ModelSpec) -> Result<Vec<BenchArm>, BenchError> {
    let has_head = spec.drafter.is_some();
    let arms =
        if options.arms.is_empty() { BenchArm::defaults(has_head) } else { options.arms.clone() };
    for (i, arm) in arms.iter().enumerate() {
        if arms[..i].contains(arm) {
            return Err(BenchError::ArmTwice { arm: arm.to_string() });
        }
        if arm.drafters() == Some(ArmDrafters::Mtp) && !has_head {
            return Err(BenchError::NoHead { arm: arm.to_string() });
        }
    }
    if options.min_gain.is_some() && !arms.contains(&BenchArm::Plain) {
        return Err(BenchError::NoBaseline);
    }
    if options.min_gain.is_some() && !arms.contains(&BenchArm::AUTO) {
        return Err(BenchError::NoAuto);
    }
    Ok(arms)
}

fn cells(options: &BenchOptions, prompts: usize) -> Vec<BenchCell> {
    let mut cells = Vec::new();
    for &batch in &options.batch {
        for &context in &options.contexts {
            cells.extend((0..prompts).map(|prompt| BenchCell { prompt, context, batch }));
        }
    }
    cells
}

/// The context of the engines, which have to reach `reach` positions.
pub(crate) fn checked_context(
    options: &BenchOptions,
    spec: &ModelSpec,
    reach: usize,
) -> Result<usize, BenchError> {
    match options.context {
        Some(context) if context < reach => Err(BenchError::Context { reach }),
        Some(context) => Ok(context),
        None if reach > spec.max_positions => {
            Err(BenchError::BeyondModel { reach, most: spec.max_positions })
        }
        None => Ok(reach),
    }
}
