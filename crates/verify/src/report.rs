//! What was verified as JSON.

use crate::compare::AnswerDifference;
use crate::verification::{ArmOutcome, ArmResult, Verification};
use serde::Serialize;

/// What [`Verification::report`] gives.
#[derive(Serialize)]
pub struct VerifyReport<'a> {
    identical: bool,
    arms: Vec<VerifyArmReport<'a>>,
    requests: Vec<RequestReport>,
    model: &'a str,
    device: &'a str,
    settings: SettingsReport,
    seconds: f64,
}

#[derive(Serialize)]
struct VerifyArmReport<'a> {
    arm: &'a str,
    prefill_chunk: usize,
    /// `same`, `differs` or `not applicable`.
    verdict: &'static str,
    /// Why it is not applicable.
    reason: Option<&'static str>,
    requests: usize,
    tokens: usize,
    logits_rows: usize,
    /// Null where no drafts are made.
    drafted: Option<u64>,
    accepted: Option<u64>,
    difference: Option<&'a AnswerDifference>,
    seconds: f64,
}

#[derive(Serialize)]
struct RequestReport {
    name: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
}

#[derive(Serialize)]
struct SettingsReport {
    tokens: usize,
    seed: u64,
    quick: bool,
    context: usize,
    sequences: usize,
    prefill_chunk: usize,
    kv: String,
    threads: Option<usize>,
}

impl<'a> VerifyReport<'a> {
    pub(crate) fn new(verification: &'a Verification) -> Self {
        let options = &verification.options;
        let requests = verification.baseline.cases.iter().zip(&verification.baseline.answers);
        let requests = requests.map(|(case, answer)| RequestReport {
            name: case.name,
            prompt_tokens: case.prompt.len(),
            completion_tokens: answer.tokens.len(),
        });
        Self {
            identical: verification.differing() == 0,
            arms: verification.results.iter().map(VerifyArmReport::new).collect(),
            requests: requests.collect(),
            model: &verification.model,
            device: &verification.device,
            settings: SettingsReport {
                tokens: options.tokens,
                seed: options.seed,
                quick: options.quick,
                context: verification.settings.context,
                sequences: verification.settings.sequences,
                prefill_chunk: verification.settings.prefill_chunk,
                kv: format!("{:?}", verification.settings.kv).to_lowercase(),
                threads: options.threads,
            },
            seconds: verification.seconds,
        }
    }
}

impl<'a> VerifyArmReport<'a> {
    fn new(result: &'a ArmResult) -> Self {
        let none = Self {
            arm: &result.name,
            prefill_chunk: result.prefill_chunk,
            verdict: "not applicable",
            reason: None,
            requests: 0,
            tokens: 0,
            logits_rows: 0,
            drafted: None,
            accepted: None,
            difference: None,
            seconds: result.seconds,
        };
        match &result.finding {
            ArmOutcome::NotApplicable(why) => Self { reason: Some(why), ..none },
            ArmOutcome::Compared { requests, comparison, drafts } => Self {
                verdict: if comparison.difference.is_none() { "same" } else { "differs" },
                requests: *requests,
                tokens: comparison.tokens,
                logits_rows: comparison.rows,
                drafted: drafts.map(|g| g.drafted),
                accepted: drafts.map(|g| g.accepted),
                difference: comparison.difference.as_ref(),
                ..none
            },
        }
    }
}
