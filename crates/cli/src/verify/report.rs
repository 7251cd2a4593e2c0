//! The proof as JSON.

use super::compare::Difference;
use super::proof::{ArmResult, Finding, Proof};
use crate::args::VerifyArgs;
use crate::load::Source;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    identical: bool,
    arms: Vec<ArmReport<'a>>,
    requests: Vec<RequestReport>,
    model: &'a str,
    device: &'a str,
    settings: SettingsReport,
    seconds: f64,
}

#[derive(Serialize)]
struct ArmReport<'a> {
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
    difference: Option<&'a Difference>,
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

impl<'a> Report<'a> {
    pub(super) fn new(args: &VerifyArgs, source: &'a Source, proof: &'a Proof) -> Self {
        let asked = proof.baseline.cases.iter().zip(&proof.baseline.answers);
        let requests = asked.map(|(case, answer)| RequestReport {
            name: case.name,
            prompt_tokens: case.prompt.len(),
            completion_tokens: answer.tokens.len(),
        });
        Self {
            identical: proof.differing() == 0,
            arms: proof.results.iter().map(ArmReport::new).collect(),
            requests: requests.collect(),
            model: &source.path,
            device: &proof.device,
            settings: SettingsReport {
                tokens: args.tokens,
                seed: args.seed,
                quick: args.quick,
                context: proof.settings.context,
                sequences: proof.settings.sequences,
                prefill_chunk: proof.settings.prefill_chunk,
                kv: format!("{:?}", proof.settings.kv).to_lowercase(),
                threads: args.device.threads,
            },
            seconds: proof.seconds,
        }
    }
}

impl<'a> ArmReport<'a> {
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
            Finding::NotApplicable(why) => Self { reason: Some(why), ..none },
            Finding::Compared { requests, comparison, drafts } => Self {
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
