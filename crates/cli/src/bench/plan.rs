//! Everything decided before weights are read.

use super::arm::{Arm, Drafters};
use super::prompts::{Prompt, prompts};
use crate::args::BenchArgs;
use crate::generation;
use crate::load::Source;
use anyhow::bail;
use forerun_engine::{Sampling, Settings, Speculation};
use forerun_model::ModelSpec;
use forerun_server::PromptKind;

/// Prompts of these lengths are read where the model reaches that far.
const READ_LENGTHS: [usize; 2] = [512, 1024];
/// The noise of a run that does not name a seed: two runs measure the same text.
const SEED: u64 = 1;

pub(super) struct Plan {
    pub(super) prompts: Vec<Prompt>,
    pub(super) arms: Vec<Arm>,
    pub(super) cells: Vec<Cell>,
    /// Lengths of the random prompts to read.
    pub(super) read: Vec<usize>,
    pub(super) tokens: usize,
    pub(super) reps: usize,
    pub(super) sampling: Sampling,
    /// Without drafters, which differ from engine to engine.
    settings: Settings,
    max_drafts: usize,
}

/// One situation in which all arms are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Which prompt.
    pub(super) prompt: usize,
    /// Random tokens before it.
    pub(super) context: usize,
    /// Answers at a time.
    pub(super) batch: usize,
}

impl Plan {
    pub(super) fn new(args: &BenchArgs, source: &Source) -> anyhow::Result<Self> {
        let spec = &source.blueprint.spec;
        let arms = arms(args, spec)?;
        let prompts = prompts(args, source)?;
        let sampling = sampling(args);
        sampling.check(spec.vocabulary)?;
        let read = match &args.read[..] {
            [] => READ_LENGTHS.into_iter().filter(|&n| n < spec.max_positions).collect(),
            typed => typed.to_vec(),
        };
        let longest = prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        let context = args.contexts.iter().copied().max().unwrap_or(0);
        let reach = context.saturating_add(longest).saturating_add(args.tokens);
        let reach = reach.max(read.iter().copied().max().unwrap_or(0).saturating_add(1));
        let settings = Settings {
            context: checked_context(args, spec, reach)?,
            sequences: args.batch.iter().copied().max().unwrap_or(1),
            prefill_chunk: args.engine.prefill_chunk,
            speculation: Speculation {
                vocabulary: args.vocabulary.draft_vocabulary,
                ..Speculation::OFF
            },
            kv: args.engine.kv.dtype(),
            submission_budget: args.engine.submission_budget(),
            ..Settings::default()
        };
        Ok(Self {
            cells: cells(args, prompts.len()),
            prompts,
            max_drafts: arms.iter().map(|arm| arm.depth().max_drafts()).max().unwrap_or(0),
            arms,
            read,
            tokens: args.tokens,
            reps: args.reps,
            sampling,
            settings,
        })
    }

    /// The place of plain, if it is among the arms.
    pub(super) fn baseline(&self) -> Option<usize> {
        self.arms.iter().position(|&arm| arm == Arm::Plain)
    }

    /// The place of the arm whose tokens all others must give.
    pub(super) fn reference(&self) -> usize {
        self.baseline().unwrap_or(0)
    }

    /// Sizes of an engine with these drafters.
    pub(super) fn settings(&self, drafters: Option<Drafters>) -> Settings {
        let speculation = drafters.map_or(Speculation::OFF, |d| d.speculation(self.max_drafts));
        let vocabulary = self.settings.speculation.vocabulary;
        Settings { speculation: Speculation { vocabulary, ..speculation }, ..self.settings }
    }
}

fn arms(args: &BenchArgs, spec: &ModelSpec) -> anyhow::Result<Vec<Arm>> {
    let has_head = spec.drafter.is_some();
    let arms = if args.arms.is_empty() { Arm::defaults(has_head) } else { args.arms.clone() };
    for (i, arm) in arms.iter().enumerate() {
        if arms[..i].contains(arm) {
            bail!("--arms names {arm} twice");
        }
        if arm.drafters() == Some(Drafters::Mtp) && !has_head {
            bail!("arm {arm}: the model has no MTP head and no drafter was given");
        }
    }
    if args.min_gain.is_some() && !arms.contains(&Arm::Plain) {
        bail!("a gain needs its baseline: add plain to --arms");
    }
    if args.min_gain.is_some() && !arms.contains(&Arm::AUTO) {
        bail!("--min-gain is about auto: add auto to --arms");
    }
    Ok(arms)
}

/// Greedy unless a temperature was typed: what a model's files ask for would make two models
/// hard to compare.
fn sampling(args: &BenchArgs) -> Sampling {
    let mut typed = args.sampling.clone();
    typed.seed.get_or_insert(SEED);
    generation::sampling(Some(&typed), &Default::default(), PromptKind::Text)
}

fn cells(args: &BenchArgs, prompts: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &batch in &args.batch {
        for &context in &args.contexts {
            cells.extend((0..prompts).map(|prompt| Cell { prompt, context, batch }));
        }
    }
    cells
}

/// The context of the engines, which have to reach `reach` positions.
pub(super) fn checked_context(
    args: &BenchArgs,
    spec: &ModelSpec,
    reach: usize,
) -> anyhow::Result<usize> {
    match args.engine.ctx {
        Some(context) if context < reach => bail!(
            "the longest measurement needs {reach} positions; give a larger --ctx, or smaller \
             --contexts, --tokens or --read"
        ),
        Some(context) => Ok(context),
        None if reach > spec.max_positions => bail!(
            "the longest measurement needs {reach} positions; this model was made for {}; give \
             smaller --contexts, --tokens or --read, or --ctx {reach} to go beyond anyway",
            spec.max_positions
        ),
        None => Ok(reach),
    }
}
