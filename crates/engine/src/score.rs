//! Probabilities of a given text.

use crate::{Admission, Engine, EngineError, ModelRunner, RejectError, StepPlan, check_tokens};
use forerun_base::Token;

impl Engine<ModelRunner> {
    /// Runs `tokens` through the model and hands each row of logits to `sink`, in order: row `i`
    /// predicts token `i + 1`.
    pub fn score(
        &mut self,
        tokens: &[Token],
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        let limits = *self.runner.limits();
        if tokens.is_empty() {
            return Err(RejectError::EmptyPrompt.into());
        }
        if tokens.len() > limits.context {
            let (prompt, context) = (tokens.len(), limits.context);
            return Err(RejectError::PromptTooLong { prompt, context }.into());
        }
        check_tokens(tokens, self.runner.model().spec.vocabulary)?;
        let Admission::Ready(lease) = self.states.acquire(tokens.len()) else {
            return Err(EngineError::Settings("every sequence is taken; try later".to_owned()));
        };
        let mut plan = StepPlan::default();
        let mut done = Ok(());
        for chunk in tokens.chunks(limits.sampled.min(limits.rows)) {
            let state = self.states.lease(lease);
            plan.set_single(lease, state, chunk.iter().copied(), 0, None);
            done = self.runner.logits(&plan, sink);
            if let Err(error) = &done {
                self.recover_device(&error.to_string());
                break;
            }
            self.states.commit(lease, chunk.len(), chunk.len());
        }
        self.states.release(lease);
        done
    }
}
