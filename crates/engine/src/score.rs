//! Probabilities of a given text.

use crate::{Admission, Engine, EngineError, ModelRunner, RejectError, Span, StepPlan};
use forerun_base::{SeqId, Token};

/// `ln p(token)` under a row of logits, in f64.
pub fn log_probability(logits: &[f32], token: Token) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

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
        let vocabulary = self.runner.model().spec.vocabulary;
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(RejectError::UnknownToken { token, vocabulary }.into());
        }
        let Admission::Ready(lease) = self.states.acquire(tokens.len()) else {
            return Err(EngineError::Settings("every sequence is taken; try later".to_owned()));
        };
        let mut plan = StepPlan::default();
        let mut done = Ok(());
        for chunk in tokens.chunks(limits.sampled.min(limits.rows)) {
            plan.clear();
            plan.tokens.extend_from_slice(chunk);
            plan.blocks.extend_from_slice(&self.states.lease(lease).blocks);
            plan.spans.push(Span {
                seq: SeqId(u64::MAX),
                lease,
                start: self.states.lease(lease).committed,
                tokens: 0..chunk.len(),
                drafts: 0,
                pending: 0,
                blocks: 0..plan.blocks.len(),
                sample: None,
            });
            done = self.runner.logits(&plan, sink);
            if done.is_err() {
                break;
            }
            self.states.commit(lease, chunk.len(), chunk.len());
        }
        self.states.release(lease);
        done
    }
}
