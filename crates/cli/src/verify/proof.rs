//! Running every arm against the baseline.

use super::arm::{self, Arm, Group, Play};
use super::baseline::{Baseline, Opening};
use super::compare::{Comparison, compare};
use super::record::DraftTokens;
use super::witness::Witness;
use crate::args::VerifyArgs;
use crate::load::Source;
use crate::terminal;
use forerun_engine::{Settings, Speculation};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// Sequences of a batch: fewer than requests, so that some wait for others to end.
const SEQUENCES: usize = 4;

/// Everything that was found.
pub(super) struct Proof {
    pub(super) device: String,
    /// Of the baseline's engine.
    pub(super) settings: Settings,
    pub(super) baseline: Baseline,
    pub(super) results: Vec<ArmResult>,
    pub(super) seconds: f64,
}

/// What one arm came to.
pub(super) struct ArmResult {
    pub(super) name: String,
    pub(super) prefill_chunk: usize,
    pub(super) finding: Finding,
    pub(super) seconds: f64,
}

pub(super) enum Finding {
    /// The model cannot do this.
    NotApplicable(&'static str),
    Compared {
        requests: usize,
        comparison: Comparison,
        /// `None` where no drafts are made.
        drafts: Option<DraftTokens>,
    },
}

impl Proof {
    pub(super) fn find(args: &VerifyArgs, source: &Source) -> anyhow::Result<Self> {
        let started = Instant::now();
        let opening = Opening::new(args, source)?;
        let groups = arm::groups(args.quick);
        let bar = progress_bar(groups.iter().map(|group| group.arms.len()).sum());
        let settings = Settings {
            context: opening.context,
            sequences: SEQUENCES,
            prefill_chunk: arm::CHUNK,
            kv: args.kv.dtype(),
            ..Settings::default()
        };
        let load = |settings: &Settings| -> anyhow::Result<Witness> {
            bar.set_message("loading");
            let loaded = bar.suspend(|| source.load(settings, args.device))?;
            Ok(Witness::new(loaded.engine))
        };
        let mut witness = load(&settings)?;
        bar.set_message("plain answers");
        let baseline = Baseline::new(opening, &mut witness, args.seed)?;
        let device = witness.device();
        // The baseline's engine serves the first group; no two engines are in memory at a time.
        let mut at_hand = Some(witness);
        let mut results = Vec::new();
        for group in &groups {
            if group.needs_head() && source.blueprint.spec.drafter.is_none() {
                results.extend(group.arms.iter().map(|arm| not_applicable(group, arm)));
                bar.inc(group.arms.len() as u64);
                continue;
            }
            let vocabulary = args.vocabulary.draft_vocabulary;
            let speculation = Speculation { vocabulary, ..group.speculation };
            let prefill_chunk = group.prefill_chunk;
            let mut witness = match at_hand.take() {
                Some(witness) => witness,
                None => load(&Settings { speculation, prefill_chunk, ..settings })?,
            };
            for arm in &group.arms {
                bar.set_message(arm.name.clone());
                results.push(run(group, arm, &baseline, &mut witness)?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(Self { device, settings, baseline, results, seconds: started.elapsed().as_secs_f64() })
    }

    /// Arms that could be run.
    pub(super) fn compared(&self) -> impl Iterator<Item = &Comparison> {
        self.results.iter().filter_map(|result| match &result.finding {
            Finding::Compared { comparison, .. } => Some(comparison),
            Finding::NotApplicable(_) => None,
        })
    }

    /// How many arms differ.
    pub(super) fn differing(&self) -> usize {
        self.compared().filter(|comparison| comparison.difference.is_some()).count()
    }
}

fn not_applicable(group: &Group, arm: &Arm) -> ArmResult {
    ArmResult {
        name: arm.name.clone(),
        prefill_chunk: group.prefill_chunk,
        finding: Finding::NotApplicable("no MTP head"),
        seconds: 0.0,
    }
}

fn run(
    group: &Group,
    arm: &Arm,
    baseline: &Baseline,
    witness: &mut Witness,
) -> anyhow::Result<ArmResult> {
    let started = Instant::now();
    let Baseline { cases, answers, turns, turn_answers, scores } = baseline;
    let (expected, found) = match arm.play {
        Play::Alone(depth) => (answers, witness.alone(cases, depth)?),
        Play::Together => (answers, witness.together(cases)?),
        Play::Continued(depth) => (turn_answers, witness.continued(turns, depth)?),
        Play::Scored => (scores, witness.scored(cases, answers)?),
    };
    let sum =
        |count: fn(&DraftTokens) -> u64| found.iter().map(|record| count(&record.drafts)).sum();
    let drafts = DraftTokens { drafted: sum(|g| g.drafted), accepted: sum(|g| g.accepted) };
    Ok(ArmResult {
        name: arm.name.clone(),
        prefill_chunk: group.prefill_chunk,
        finding: Finding::Compared {
            requests: found.len(),
            comparison: compare(expected, &found),
            drafts: group.speculates().then_some(drafts),
        },
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// A bar on stderr; hidden where stderr is not a terminal.
fn progress_bar(arms: usize) -> ProgressBar {
    let bar = terminal::bar(arms as u64, "verifying {bar:24} {pos}/{len} {msg} {elapsed}");
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
