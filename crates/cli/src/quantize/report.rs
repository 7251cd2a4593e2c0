//! What was done, as data: printed as JSON or as a page.

use super::check::Comparison;
use super::folder::Folder;
use super::layout::Shard;
use super::plan::{Plan, Source};
use super::policy::Choice;
use crate::report::bytes_text;
use forerun_weights::config::Scheme;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) source: String,
    pub(super) target: String,
    /// As written to the config.
    pub(super) quantization: Value,
    pub(super) bytes_before: u64,
    pub(super) bytes_after: u64,
    pub(super) parameters: u64,
    pub(super) bits_per_weight: f64,
    pub(super) files: usize,
    pub(super) resumed_files: usize,
    /// Modules that differ from the default scheme on purpose.
    pub(super) kept: Vec<Modules>,
    /// Modules whose width the group does not divide.
    pub(super) unquantized: Vec<Modules>,
    /// Whether weights of the source were codes already.
    pub(super) repacked: bool,
    /// Tensors that do not belong to the text model.
    pub(super) dropped: usize,
    /// Why the new model has no tokenizer, where a GGUF file's could not be written.
    pub(super) no_tokenizer: Option<String>,
    pub(super) check: Option<Comparison>,
    pub(super) seconds: f64,
}

/// Modules of one kind.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Modules {
    /// Their path, with `*` for numbers.
    pub(super) modules: String,
    pub(super) count: usize,
    pub(super) scheme: String,
}

/// Numbers in the new checkpoint: those of the model and those of the MTP head.
pub(super) fn parameters(plan: &Plan) -> [u64; 2] {
    let numbers = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
    let job = |source: &Source| match source {
        Source::Tensor { shape, .. } | Source::Matrix { shape, .. } => numbers(shape),
    };
    [false, true]
        .map(|mtp| plan.jobs.iter().filter(|j| j.is_mtp() == mtp).map(|j| job(&j.source)).sum())
}

/// Kinds of modules that differ from the default, and kinds that could not be quantised.
pub(super) fn exceptions(
    plan: &Plan,
    choices: &[Option<Choice>],
    base: Scheme,
) -> (Vec<Modules>, Vec<Modules>) {
    let mut kept: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut unquantized = kept.clone();
    for (job, choice) in plan.jobs.iter().zip(choices) {
        let (kinds, scheme) = match choice {
            Some(Choice::Encode(scheme)) if *scheme != base => (&mut kept, scheme.to_string()),
            Some(Choice::Full) => (&mut kept, "full".to_owned()),
            Some(Choice::Indivisible) => (&mut unquantized, "full".to_owned()),
            _ => continue,
        };
        *kinds.entry((without_numbers(&job.target), scheme)).or_default() += 1;
    }
    let list = |kinds: BTreeMap<(String, String), usize>| {
        let modules = kinds.into_iter();
        modules.map(|((modules, scheme), count)| Modules { modules, count, scheme }).collect()
    };
    (list(kept), list(unquantized))
}

fn without_numbers(path: &str) -> String {
    let segment =
        |s: &'_ str| if s.parse::<usize>().is_ok() { "*".to_owned() } else { s.to_owned() };
    path.split('.').map(segment).collect::<Vec<String>>().join(".")
}

/// Said before work begins.
pub(super) fn opening(plan: &Plan, shards: &[Shard<'_>], folder: &Folder) -> Vec<String> {
    let mut lines = Vec::new();
    if plan.repacked {
        lines.push("the source is packed already: its weights are decoded and encoded anew".into());
    }
    if plan.dropped > 0 {
        lines.push(format!("tensors outside the text model, left out: {}", plan.dropped));
    }
    if folder.resumes {
        let done = shards.iter().filter(|s| super::write::is_written(&folder.path, s)).count();
        lines.push(format!("going on after {done} of {} files", shards.len()));
    }
    lines
}

/// The report for people.
pub(super) fn page(report: &Report) -> String {
    let (before, after) = (bytes_text(report.bytes_before), bytes_text(report.bytes_after));
    let bits = report.bits_per_weight;
    let mut page = format!("{before} -> {after}, {bits:.2} bits per weight\n");
    let mut list = |title: &str, kinds: &[Modules]| {
        if !kinds.is_empty() {
            page += &format!("{title}\n");
        }
        for Modules { modules, count, scheme } in kinds {
            page += &format!("  {modules} ({count}): {scheme}\n");
        }
    };
    list("kept apart", &report.kept);
    list("not quantised: the group does not divide the width", &report.unquantized);
    if let Some(Comparison { tokens, before, after }) = &report.check {
        let change = (after / before - 1.0) * 100.0;
        page +=
            &format!("perplexity of {tokens} tokens: {before:.4} -> {after:.4} ({change:+.2} %)\n");
    }
    if let Some(why) = &report.no_tokenizer {
        page += &format!("no tokenizer.json was written: {why}\n");
    }
    page + &format!("run it: forerun run {}\n", report.target)
}
