//! What was done, as data: printed as JSON or as a page.

use super::files;
use super::layout::Shard;
use super::plan::{CheckpointPlan, JobSource};
use super::policy::ModulePrecision;
use forerun_report::bytes_text;
use forerun_weights::Checkpoint;
use forerun_weights::config::Scheme;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A finished quantisation.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizeReport {
    /// What was read.
    pub source: String,
    /// What was written.
    pub target: String,
    /// As written to the config.
    pub quantization: Value,
    /// Of the source.
    pub bytes_before: u64,
    /// Of the new weight files.
    pub bytes_after: u64,
    /// Those of the MTP head included.
    pub parameters: u64,
    /// Over everything that was written.
    pub bits_per_weight: f64,
    /// Weight files.
    pub files: usize,
    /// Weight files of an earlier run.
    pub resumed_files: usize,
    /// Modules that differ from the default scheme on purpose.
    pub kept: Vec<Modules>,
    /// Modules whose width the group does not divide.
    pub unquantized: Vec<Modules>,
    /// Whether weights of the source were codes already.
    pub repacked: bool,
    /// Tensors that do not belong to the text model.
    pub dropped: usize,
    /// Why the new model has no tokenizer, where a GGUF file's could not be written.
    pub no_tokenizer: Option<String>,
    /// Where the caller compared the two models.
    pub check: Option<PerplexityChange>,
    /// From planning to the last file.
    pub seconds: f64,
}

/// Perplexities of the same tokens.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PerplexityChange {
    /// Of the text.
    pub tokens: usize,
    /// By the source.
    pub before: f64,
    /// By the new model.
    pub after: f64,
}

/// Modules of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Modules {
    /// Their path, with `*` for numbers.
    pub modules: String,
    /// How many there are.
    pub count: usize,
    /// What became of them.
    pub scheme: String,
}

/// Parameters of the new checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) trunk: u64,
    pub(super) mtp_head: u64,
}

/// Counts them.
pub(super) fn parameters(plan: &CheckpointPlan) -> Parameters {
    let numbers = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
    let job = |source: &JobSource| match source {
        JobSource::Tensor { shape, .. } | JobSource::Matrix { shape, .. } => numbers(shape),
    };
    let sum = |mtp| plan.jobs.iter().filter(|j| j.is_mtp() == mtp).map(|j| job(&j.source)).sum();
    Parameters { trunk: sum(false), mtp_head: sum(true) }
}

/// Kinds of modules that differ from the default, and kinds that could not be quantised.
fn exceptions(
    plan: &CheckpointPlan,
    choices: &[Option<ModulePrecision>],
    base: Scheme,
) -> (Vec<Modules>, Vec<Modules>) {
    let mut kept: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut unquantized = kept.clone();
    for (job, choice) in plan.jobs.iter().zip(choices) {
        let (kinds, scheme) = match choice {
            Some(ModulePrecision::Encode(scheme)) if *scheme != base => {
                (&mut kept, scheme.to_string())
            }
            Some(ModulePrecision::Full) => (&mut kept, "full".to_owned()),
            Some(ModulePrecision::Indivisible) => (&mut unquantized, "full".to_owned()),
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

impl QuantizeReport {
    /// What is known once everything is settled.
    pub(super) fn planned(
        checkpoint: &Checkpoint,
        plan: &CheckpointPlan,
        choices: &[Option<ModulePrecision>],
        base: Scheme,
        parameters: Parameters,
    ) -> Self {
        let (kept, unquantized) = exceptions(plan, choices, base);
        Self {
            source: checkpoint.folder().display().to_string(),
            target: String::new(),
            quantization: files::quantization(plan, choices, base),
            bytes_before: checkpoint.total_bytes(),
            bytes_after: 0,
            parameters: parameters.trunk.saturating_add(parameters.mtp_head),
            bits_per_weight: 0.0,
            files: 0,
            resumed_files: 0,
            kept,
            unquantized,
            repacked: plan.repacked,
            dropped: plan.dropped,
            no_tokenizer: None,
            check: None,
            seconds: 0.0,
        }
    }

    /// Counts the files and their bytes.
    pub(super) fn set_files(&mut self, shards: &[Shard]) {
        self.files = shards.len();
        self.bytes_after = shards.iter().map(|shard| shard.bytes).sum();
        self.bits_per_weight = self.bytes_after as f64 * 8.0 / self.parameters.max(1) as f64;
    }

    /// What to know before work begins.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.repacked {
            lines.push(
                "the source is packed already: its weights are decoded and encoded anew".into(),
            );
        }
        if self.dropped > 0 {
            lines.push(format!("tensors outside the text model, left out: {}", self.dropped));
        }
        lines
    }

    /// The report for people.
    pub fn page(&self) -> String {
        let (before, after) = (bytes_text(self.bytes_before), bytes_text(self.bytes_after));
        let bits = self.bits_per_weight;
        let mut page = format!("{before} -> {after}, {bits:.2} bits per weight\n");
        let mut list = |title: &str, kinds: &[Modules]| {
            if !kinds.is_empty() {
                page += &format!("{title}\n");
            }
            for Modules { modules, count, scheme } in kinds {
                page += &format!("  {modules} ({count}): {scheme}\n");
            }
        };
        list("kept apart", &self.kept);
        list("not quantised: the group does not divide the width", &self.unquantized);
        if let Some(PerplexityChange { tokens, before, after }) = &self.check {
            let change = (after / before - 1.0) * 100.0;
            page += &format!(
                "perplexity of {tokens} tokens: {before:.4} -> {after:.4} ({change:+.2} %)\n"
            );
        }
        if let Some(why) = &self.no_tokenizer {
            page += &format!("no tokenizer.json was written: {why}\n");
        }
        page + &format!("run it: forerun run {}\n", self.target)
    }
}
