//! Experts: stored one by one, or with gate and up fused, and written as one stack for each
//! projection.

use super::names::Place;
use super::{Job, Part, Source, row_count};
use anyhow::{anyhow, bail};
use forerun_weights::Checkpoint;
use forerun_weights::quantize::logical_shape;
use std::collections::BTreeMap;
use std::ops::Range;

/// Experts seen so far.
#[derive(Default)]
pub(super) struct Experts {
    jobs: Vec<Job>,
    /// Target of a stack -> expert -> module.
    single: BTreeMap<String, BTreeMap<usize, Part>>,
}

impl Experts {
    /// Takes a module that is an expert's; false when it is not.
    pub(super) fn take(
        &mut self,
        checkpoint: &Checkpoint,
        module: &str,
        place: &Place,
    ) -> anyhow::Result<bool> {
        let target = place.target.strip_suffix(".weight").unwrap_or(&place.target);
        let Some((block, rest)) = target.split_once(".experts.") else { return Ok(false) };
        let stack = match block.ends_with(".mlp") {
            true => format!("{block}.switch_mlp"),
            false => format!("{block}.experts.switch_glu"),
        };
        let one = rest.split_once('.').and_then(|(e, name)| Some((e.parse::<usize>().ok()?, name)));
        match (one, rest) {
            (Some((expert, name)), _) if is_projection(name) => {
                let part = Part::whole(module, &logical_shape(checkpoint, module)?)?;
                self.single.entry(format!("{stack}.{name}")).or_default().insert(expert, part);
            }
            (None, "gate_up_proj") => self.split(checkpoint, module, &stack)?,
            (None, "down_proj") => {
                let shape = logical_shape(checkpoint, module)?;
                let part = Part::whole(module, &shape)?;
                self.push(format!("{stack}.down_proj"), shape, vec![part]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Gate rows first, then up rows, in every expert.
    fn split(&mut self, checkpoint: &Checkpoint, module: &str, stack: &str) -> anyhow::Result<()> {
        let shape = logical_shape(checkpoint, module)?;
        row_count(module, &shape)?;
        let [experts, both, cols] = shape[..] else {
            bail!("{module}: shape {shape:?}; expected [experts, gate and up, columns]");
        };
        if !both.is_multiple_of(2) {
            bail!("{module}: {both} rows do not divide into gate and up");
        }
        let rows = both / 2;
        for (name, first) in [("gate_proj", 0), ("up_proj", rows)] {
            let range = |e: usize| -> Range<usize> { e * both + first..e * both + first + rows };
            let part = Part {
                path: module.to_owned(),
                shape: shape.clone(),
                rows: (0..experts).map(range).collect(),
            };
            self.push(format!("{stack}.{name}"), vec![experts, rows, cols], vec![part]);
        }
        Ok(())
    }

    fn push(&mut self, target: String, shape: Vec<usize>, parts: Vec<Part>) {
        self.jobs.push(Job { target, source: Source::Matrix { shape, parts } });
    }

    /// Whole stacks; an error where an expert is missing or of another shape.
    pub(super) fn into_jobs(mut self) -> anyhow::Result<Vec<Job>> {
        for (target, experts) in std::mem::take(&mut self.single) {
            let count = experts.len();
            if let Some(missing) = (0..count).find(|e| !experts.contains_key(e)) {
                bail!("{target}: expert {missing} is missing, though there are {count}");
            }
            let parts: Vec<Part> = experts.into_values().collect();
            let first = parts.first().ok_or_else(|| anyhow!("{target}: no experts"))?;
            if let Some(other) = parts.iter().find(|part| part.shape != first.shape) {
                bail!("{}: shape {:?}; others have {:?}", other.path, other.shape, first.shape);
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
