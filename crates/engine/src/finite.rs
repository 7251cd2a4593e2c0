//! Rows whose numbers are not finite have no logits to sample from: such an answer ends with the reason.
//!
//! Scales and small weights are searched at load. What remains is a large matrix with such numbers in it, and
//! arithmetic that overflows; the rows before the head tell, since the last norm spreads either over all of a row.

use crate::{EngineError, ModelRunner, SampledTokens, StepPlan};
use forerun_backend::{HostDataMut, View, submit_and_wait};
use forerun_model::Limits;

/// Buffers in which rows are examined on the host.
pub(crate) struct FiniteCheck {
    values: Vec<f32>,
    /// Rows that are not finite, ascending.
    bad: Vec<usize>,
}

impl FiniteCheck {
    pub(crate) fn with_capacity(limits: &Limits, hidden: usize) -> Self {
        Self { values: Vec::with_capacity(limits.sampled * hidden), bad: Vec::new() }
    }

    /// Whether that row of the last ones looked at was not finite.
    pub(crate) fn is_bad(&self, row: usize) -> bool {
        self.bad.contains(&row)
    }
}

impl ModelRunner {
    /// Examines `count` sampled rows that the device has finished; which of them are not finite.
    pub(crate) fn bad_rows(
        &mut self,
        rows: Option<View>,
        count: usize,
    ) -> Result<&[usize], EngineError> {
        let FiniteCheck { values, bad } = &mut self.finite;
        bad.clear();
        if let Some(rows) = rows.filter(|rows| rows.len > 0) {
            values.resize(rows.len, 0.0);
            self.backend.read(rows, HostDataMut::F32(values))?;
            let lines = values.chunks_exact(rows.len / count.max(1)).enumerate();
            let broken = |line: &[f32]| !line.iter().fold(true, |fine, x| fine & x.is_finite());
            bad.extend(lines.filter(|(_, line)| broken(line)).map(|(i, _)| i));
        }
        Ok(&self.finite.bad)
    }

    /// Notes the rows of a step whose logits are not finite, and in which part of the model that began.
    pub(crate) fn check_finite(
        &mut self,
        plan: &StepPlan,
        rows: Option<View>,
        sampled: &mut SampledTokens,
    ) -> Result<(), EngineError> {
        sampled.not_finite.extend_from_slice(self.bad_rows(rows, sampled.tokens.len())?);
        let Some(&first) = sampled.not_finite.first() else { return Ok(()) };
        let at = sampled.of_span.iter().position(|of| of.contains(&first));
        let span = &plan.spans[at.expect("every sampled row belongs to a span")];
        self.batch.clear();
        self.push_span(plan, span, 0);
        let inputs = self.lay_inputs();
        let (space, states, block) = (&self.buffers.space, &self.buffers.states, &self.block);
        let backend = &mut *self.backend;
        let part = self.model.first_not_finite(space, states, inputs, &mut |ops, rows| {
            block.write(backend)?;
            ops.iter().try_for_each(|op| op.apply(&mut *backend))?;
            submit_and_wait(&mut *backend)?;
            let mut values = vec![0.0; rows.len];
            backend.read(rows, HostDataMut::F32(&mut values))?;
            Ok(values.iter().all(|x| x.is_finite()))
        })?;
        let (from, to) = (span.start, span.start as usize + span.tokens.len() - 1);
        sampled.fault = format!(
            "the model's numbers are not finite from {part} on, at positions {from} to {to}: a weight there is \
             broken or too large"
        );
        Ok(())
    }
}
