//! Running every arm against the baseline.

use crate::arm::{self, ArmGroup, ArmMethod, VerifyArm};
use crate::baseline::{OpeningRequests, PlainAnswers};
use crate::compare::{AnswerComparison, compare};
use crate::record::DraftCounts;
use crate::recording::RecordingEngine;
use crate::report::VerifyReport;
use crate::{LoadEngine, VerifiedModel, VerifyError, VerifyOptions, VerifyProgress, table};
use forerun_engine::{Settings, Speculation};
use std::time::Instant;

/// Sequences of a batch: fewer than requests, so that some wait for others to end.
const SEQUENCES: usize = 4;

/// Everything that was found.
pub struct Verification {
    pub(crate) model: String,
    pub(crate) options: VerifyOptions,
    pub(crate) device: String,
    /// Of the baseline's engine.
    pub(crate) settings: Settings,
    pub(crate) baseline: PlainAnswers,
    pub(crate) results: Vec<ArmResult>,
    pub(crate) seconds: f64,
}

/// What one arm came to.
pub(crate) struct ArmResult {
    pub(crate) name: String,
    pub(crate) prefill_chunk: usize,
    pub(crate) finding: ArmOutcome,
    pub(crate) seconds: f64,
}

pub(crate) enum ArmOutcome {
    /// The model cannot do this.
    NotApplicable(&'static str),
    Compared {
        requests: usize,
        comparison: AnswerComparison,
        /// `None` where no drafts are made.
        drafts: Option<DraftCounts>,
    },
}

/// Tells whoever watches.
struct Steps<'a> {
    watch: &'a mut dyn FnMut(VerifyProgress<'_>),
    done: usize,
    total: usize,
}

impl Steps<'_> {
    fn begin(&mut self, doing: &str) {
        (self.watch)(VerifyProgress { done: self.done, total: self.total, doing });
    }
}

impl Verification {
    pub(crate) fn run(
        options: &VerifyOptions,
        model: &VerifiedModel<'_>,
        load: &mut LoadEngine<'_>,
        watch: &mut dyn FnMut(VerifyProgress<'_>),
    ) -> Result<Self, VerifyError> {
        let started = Instant::now();
        let opening = OpeningRequests::new(options, model)?;
        let groups = arm::groups(options.quick);
        let total = groups.iter().map(|group| group.arms.len()).sum();
        let mut steps = Steps { watch, done: 0, total };
        let settings = Settings {
            context: opening.context,
            sequences: SEQUENCES,
            prefill_chunk: arm::CHUNK,
            kv: options.kv,
            ..Settings::default()
        };
        let mut open = |settings: &Settings, steps: &mut Steps<'_>| {
            steps.begin("loading");
            load(settings).map(RecordingEngine::new).map_err(VerifyError::Load)
        };
        let mut engine = open(&settings, &mut steps)?;
        steps.begin("plain answers");
        let baseline = PlainAnswers::new(opening, &mut engine, options.seed)?;
        let device = engine.device();
        // The baseline's engine serves the first group; no two engines are in memory at a time.
        let mut at_hand = Some(engine);
        let mut results = Vec::new();
        for group in &groups {
            if group.needs_head() && model.spec.drafter.is_none() {
                results.extend(group.arms.iter().map(|arm| not_applicable(group, arm)));
                steps.done += group.arms.len();
                continue;
            }
            let speculation =
                Speculation { vocabulary: options.draft_vocabulary, ..group.speculation };
            let prefill_chunk = group.prefill_chunk;
            let mut engine = match at_hand.take() {
                Some(engine) => engine,
                None => open(&Settings { speculation, prefill_chunk, ..settings }, &mut steps)?,
            };
            for arm in &group.arms {
                steps.begin(&arm.name);
                results.push(run(group, arm, &baseline, &mut engine)?);
                steps.done += 1;
            }
        }
        let (model, options) = (model.name.to_owned(), options.clone());
        let seconds = started.elapsed().as_secs_f64();
        Ok(Self { model, options, device, settings, baseline, results, seconds })
    }

    /// The device, in words.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Arms that were compared.
    pub fn arms(&self) -> usize {
        self.compared().count()
    }

    /// A difference is an error, so that scripts see it.
    ///
    /// # Errors
    /// The number of arms that differ.
    pub fn conclude(&self) -> Result<(), VerifyError> {
        match self.differing() {
            0 => Ok(()),
            differing => Err(VerifyError::Differs { differing, arms: self.arms() }),
        }
    }

    /// Everything as data, to be serialized.
    pub fn report(&self) -> VerifyReport<'_> {
        VerifyReport::new(self)
    }

    /// A table for people, with a line that sums it up.
    pub fn table(&self) -> String {
        table::page(self)
    }

    /// Arms that could be run.
    pub(crate) fn compared(&self) -> impl Iterator<Item = &AnswerComparison> {
        self.results.iter().filter_map(|result| match &result.finding {
            ArmOutcome::Compared { comparison, .. } => Some(comparison),
            ArmOutcome::NotApplicable(_) => None,
        })
    }

    /// How many arms differ from plain decoding.
    pub fn differing(&self) -> usize {
        self.compared().filter(|comparison| comparison.difference.is_some()).count()
    }
}

fn not_applicable(group: &ArmGroup, arm: &VerifyArm) -> ArmResult {
    ArmResult {
        name: arm.name.clone(),
        prefill_chunk: group.prefill_chunk,
        finding: ArmOutcome::NotApplicable("no MTP head"),
        seconds: 0.0,
    }
}

fn run(
    group: &ArmGroup,
    arm: &VerifyArm,
    baseline: &PlainAnswers,
    engine: &mut RecordingEngine,
) -> Result<ArmResult, VerifyError> {
    let started = Instant::now();
    let PlainAnswers { cases, answers, turns, turn_answers, scores } = baseline;
    let (expected, found) = match arm.play {
        ArmMethod::Alone(depth) => (answers, engine.alone(cases, depth)?),
        ArmMethod::Together => (answers, engine.together(cases)?),
        ArmMethod::Continued(depth) => (turn_answers, engine.continued(turns, depth)?),
        ArmMethod::Scored => (scores, engine.scored(cases, answers)?),
    };
    let sum =
        |count: fn(&DraftCounts) -> u64| found.iter().map(|record| count(&record.drafts)).sum();
    let drafts = DraftCounts { drafted: sum(|g| g.drafted), accepted: sum(|g| g.accepted) };
    Ok(ArmResult {
        name: arm.name.clone(),
        prefill_chunk: group.prefill_chunk,
        finding: ArmOutcome::Compared {
            requests: found.len(),
            comparison: compare(expected, &found),
            drafts: group.speculates().then_some(drafts),
        },
        seconds: started.elapsed().as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AnswerRecord;
    use forerun_base::DType;
    use forerun_engine::DraftVocabulary;

    fn record(token: u32, row: u64) -> AnswerRecord {
        let (name, tokens, rows) = ("greedy", vec![token], vec![row]);
        let drafts = DraftCounts::default();
        AnswerRecord { name, tokens, ending: None, first_row: 4, rows, drafts }
    }

    /// One arm as it should be and one that found this.
    fn verification(found: AnswerRecord) -> Verification {
        let arm = |found: AnswerRecord| ArmResult {
            name: "arm".to_owned(),
            prefill_chunk: 1,
            finding: ArmOutcome::Compared {
                requests: 1,
                comparison: compare(&[record(7, 70)], &[found]),
                drafts: None,
            },
            seconds: 0.0,
        };
        Verification {
            model: String::new(),
            options: VerifyOptions {
                tokens: 1,
                seed: 1,
                quick: true,
                kv: DType::F16,
                draft_vocabulary: DraftVocabulary::Auto,
                threads: None,
            },
            device: String::new(),
            settings: Settings::default(),
            baseline: PlainAnswers {
                cases: Vec::new(),
                answers: Vec::new(),
                turns: Vec::new(),
                turn_answers: Vec::new(),
                scores: Vec::new(),
            },
            results: vec![arm(record(7, 70)), arm(found)],
            seconds: 0.0,
        }
    }

    #[test]
    fn one_different_arm_spoils_the_proof_and_is_shown() {
        for (found, words) in [
            (record(8, 70), "token 0: expected 7, found 8"),
            (record(7, 71), "first logits difference at position 4"),
        ] {
            let verification = verification(found);
            let page = verification.table();
            assert!(page.contains(words) && page.contains("1 of 2 arms differ"), "{page}");
            assert_eq!((verification.differing(), verification.arms()), (1, 2));
            assert!(verification.conclude().is_err());
        }
        let same = verification(record(7, 70));
        assert!(same.table().contains("all 2 arms identical: 2 tokens, 2 rows"));
        assert!(same.conclude().is_ok());
    }
}
