//! Rows whose numbers are not finite have no logits to sample from: such an answer ends with the reason.
//!
//! Scales and small weights are searched at load. What remains is a large matrix with such numbers in it, and
//! arithmetic that overflows. The last norm spreads either over all of a row, so that no logit is a number, and the
//! operation that samples says so in the place of the token ([`Sample::NO_TOKEN`]): the host reads nothing more for it.

use crate::{EngineError, ModelRunner, SampledTokens, StepPlan};
use forerun_backend::op::{Sample, SampleRow};
use forerun_backend::{HostDataMut, submit_and_wait};

impl ModelRunner {
    /// Notes the rows of a step that sampled no token because their logits are not finite.
    pub(crate) fn note_not_finite(&self, plan: &StepPlan, sampled: &mut SampledTokens) {
        for (row, token) in sampled.tokens.iter_mut().enumerate() {
            if *token != Sample::NO_TOKEN {
                continue;
            }
            // Whoever made a mask that allows nothing does not ask what was sampled.
            *token = 0;
            if !self.allows_nothing(plan, row) {
                sampled.not_finite.push(row);
            }
        }
    }

    /// Finds in which part of the model such numbers began, where there are any.
    pub(crate) fn find_not_finite(
        &mut self,
        plan: &StepPlan,
        sampled: &mut SampledTokens,
    ) -> Result<(), EngineError> {
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

    /// Whether the mask of a sampled row leaves no token.
    fn allows_nothing(&self, plan: &StepPlan, row: usize) -> bool {
        let row = &self.batch.sample_rows[row * SampleRow::WORDS..][..SampleRow::WORDS];
        let words = Sample::mask_words(self.model.spec.vocabulary);
        let mask = SampleRow::from_words(row).mask.checked_sub(1).map(|mask| mask as usize * words);
        mask.is_some_and(|first| plan.masks.words()[first..][..words].iter().all(|&bits| bits == 0))
    }
}
