//! Experts: stored one by one, or with gate and up fused, and written as one stack for each
//! projection.

use super::names::NewName;
use super::{JobSource, ModuleJob, StoredRows, row_count};
use crate::QuantizeError;
use forerun_weights::Checkpoint;
use forerun_weights::quantize::logical_shape;
use std::collections::BTreeMap;
use std::ops::Range;

/// Experts seen so far.
#[derive(Default)]
pub(super) struct ExpertStacks {
    jobs: Vec<ModuleJob>,
    /// Target of a stack -> expert -> module.
    single: BTreeMap<String, BTreeMap<usize, StoredRows>>,
}

impl ExpertStacks {
    /// Takes a module that is an expert's; false when it is not.
    pub(super) fn take(
        &mut self,
        checkpoint: &Checkpoint,
        module: &str,
        new: &NewName,
    ) -> Result<bool, QuantizeError> {
        let target = new.target.strip_suffix(".weight").unwrap_or(&new.target);
        let Some((block, rest)) = target.split_once(".experts.") else { return Ok(false) };
        let stack = match block.ends_with(".mlp") {
            true => format!("{block}.switch_mlp"),
            false => format!("{block}.experts.switch_glu"),
        };
        let one = rest.split_once('.').and_then(|(e, name)| Some((e.parse::<usize>().ok()?, name)));
        match (one, rest) {
            (Some((expert, name)), _) if is_projection(name) => {
                let part = StoredRows::all_rows(module, &logical_shape(checkpoint, module)?)?;
                self.single.entry(format!("{stack}.{name}")).or_default().insert(expert, part);
            }
            (None, "gate_up_proj") => self.split(checkpoint, module, &stack)?,
            (None, "down_proj") => {
                let shape = logical_shape(checkpoint, module)?;
                let part = StoredRows::all_rows(module, &shape)?;
                self.push(format!("{stack}.down_proj"), shape, vec![part]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Gate rows first, then up rows, in every expert.
    fn split(
        &mut self,
        checkpoint: &Checkpoint,
        module: &str,
        stack: &str,
    ) -> Result<(), QuantizeError> {
        let shape = logical_shape(checkpoint, module)?;
        row_count(module, &shape)?;
        let [experts, both, cols] = shape[..] else {
            let problem = "; expected [experts, gate and up, columns]";
            return Err(QuantizeError::shape(module, &shape, problem));
        };
        if !both.is_multiple_of(2) {
            return Err(QuantizeError::GateUp { module: module.to_owned(), rows: both });
        }
        let rows = both / 2;
        for (name, first) in [("gate_proj", 0), ("up_proj", rows)] {
            let range = |e: usize| -> Range<usize> { e * both + first..e * both + first + rows };
            let part = StoredRows {
                path: module.to_owned(),
                shape: shape.clone(),
                rows: (0..experts).map(range).collect(),
            };
            self.push(format!("{stack}.{name}"), vec![experts, rows, cols], vec![part]);
        }
        Ok(())
    }

    fn push(&mut self, target: String, shape: Vec<usize>, parts: Vec<StoredRows>) {
        self.jobs.push(ModuleJob { target, source: JobSource::Matrix { shape, parts } });
    }

    /// Whole stacks; an error where an expert is missing or of another shape.
    pub(super) fn into_jobs(mut self) -> Result<Vec<ModuleJob>, QuantizeError> {
        for (target, experts) in std::mem::take(&mut self.single) {
            let count = experts.len();
            if let Some(missing) = (0..count).find(|e| !experts.contains_key(e)) {
                return Err(QuantizeError::MissingExpert { stack: target, expert: missing, count });
            }
            let parts: Vec<StoredRows> = experts.into_values().collect();
            let first = parts.first().expect("a stack is made for its first expert");
            if let Some(other) = parts.iter().find(|part| part.shape != first.shape) {
                let (module, shape) = (other.path.clone(), other.shape.clone());
                let others = first.shape.clone();
                return Err(QuantizeError::UnlikeExperts { module, shape, others });
            }
            let shape = [&[count], &first.shape[..]].concat();
            self.push(target, shape, parts);
        }
        Ok(self.jobs)
    }
}

fn is_projection(name: &str) -> bool {
    matches!(name, "gate_proj" | "up_proj" | "down_proj")
}
