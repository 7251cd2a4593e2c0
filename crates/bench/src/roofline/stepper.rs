//! Sequences driven by hand, all alike: every step has exactly the given rows of each.

use crate::BenchError;
use crate::prompts::random_tokens;
use forerun_base::{LeaseId, SeqId, Token};
use forerun_engine::{
    Admission, ModelRunner, Runner, SampleSpec, SampledTokens, Span, StateStore, StepPlan,
};

/// See the module's text.
pub(crate) struct FixedStepRunner<'a> {
    runner: &'a mut ModelRunner,
    states: StateStore,
    steppers: Vec<SteppedSequence>,
    positions: usize,
    plan: StepPlan,
    sampled: SampledTokens,
    /// What stands for drafts: none of them is ever kept.
    drafts: Vec<Token>,
}

/// One sequence.
#[derive(Clone, Copy)]
struct SteppedSequence {
    lease: LeaseId,
    /// The token sampled last.
    sampled: Token,
}

impl SteppedSequence {
    fn new(states: &mut StateStore, positions: usize) -> Result<Self, BenchError> {
        match states.acquire(positions) {
            Admission::Ready(lease) => Ok(Self { lease, sampled: 0 }),
            Admission::Wait => Err(BenchError::DoesNotFit { positions }),
        }
    }
}

impl<'a> FixedStepRunner<'a> {
    /// At the beginning of `sequences` of `positions` each at most.
    pub(crate) fn new(
        runner: &'a mut ModelRunner,
        sequences: usize,
        positions: usize,
    ) -> Result<Self, BenchError> {
        let limits = *runner.limits();
        let mut states = StateStore::new(&limits);
        let steppers = (0..sequences).map(|_| SteppedSequence::new(&mut states, positions));
        Ok(Self {
            steppers: steppers.collect::<Result<_, BenchError>>()?,
            states,
            positions,
            plan: StepPlan::with_capacity(&limits),
            sampled: SampledTokens::with_capacity(&limits),
            drafts: random_tokens(limits.log_rows, runner.model().spec.vocabulary),
            runner,
        })
    }

    pub(crate) fn sequences(&self) -> usize {
        self.steppers.len()
    }

    /// The most rows of a sequence in a step that decodes.
    pub(crate) fn most_rows(&self) -> usize {
        self.drafts.len() + 1
    }

    /// Positions of each sequence whose state is real.
    pub(crate) fn position(&self) -> usize {
        self.states.lease(self.steppers[0].lease).committed as usize
    }

    /// Back to the beginning.
    pub(crate) fn restart(&mut self) -> Result<(), BenchError> {
        for stepper in &mut self.steppers {
            self.states.release(stepper.lease);
            *stepper = SteppedSequence::new(&mut self.states, self.positions)?;
        }
        Ok(())
    }

    /// Every sequence, one after the other, reads the prompt in steps as long as the engine's and samples its last
    /// row; returns the steps of one.
    pub(crate) fn read(&mut self, prompt: &[Token]) -> Result<usize, BenchError> {
        let chunks = prompt.chunks(self.runner.limits().rows);
        let steps = chunks.len();
        for stepper in 0..self.steppers.len() {
            for (i, chunk) in chunks.clone().enumerate() {
                self.plan.clear();
                self.add(stepper, chunk, 0, i + 1 == steps);
                self.run(stepper)?;
            }
        }
        Ok(steps)
    }

    /// Of every sequence the token sampled last, and `rows - 1` drafts, which are rejected.
    pub(crate) fn step(&mut self, rows: usize) -> Result<(), BenchError> {
        let mut tokens = vec![0];
        tokens.extend_from_slice(&self.drafts[..rows - 1]);
        self.plan.clear();
        for stepper in 0..self.steppers.len() {
            tokens[0] = self.steppers[stepper].sampled;
            self.add(stepper, &tokens, rows - 1, true);
        }
        self.run(0)
    }

    /// Plans the next tokens of a sequence.
    fn add(&mut self, stepper: usize, tokens: &[Token], drafts: usize, sampled: bool) {
        let id = self.steppers[stepper].lease;
        let lease = self.states.lease(id);
        let (token, block) = (self.plan.tokens.len(), self.plan.blocks.len());
        self.plan.tokens.extend_from_slice(tokens);
        self.plan.blocks.extend_from_slice(&lease.blocks);
        self.plan.spans.push(Span {
            seq: SeqId(stepper as u64),
            lease: id,
            start: lease.committed,
            tokens: token..self.plan.tokens.len(),
            drafts,
            pending: lease.pending,
            blocks: block..self.plan.blocks.len(),
            sample: sampled.then_some(SampleSpec::GREEDY),
            next: None,
            taken: 0,
        });
    }

    /// Runs what is planned, which begins with sequence `first`, and keeps all but drafts.
    fn run(&mut self, first: usize) -> Result<(), BenchError> {
        self.runner.run(&self.plan, &mut self.sampled)?;
        let spans = self.plan.spans.iter().zip(&self.sampled.of_span);
        for ((span, sampled), stepper) in spans.zip(&mut self.steppers[first..]) {
            let confirmed = span.tokens.len() - span.drafts;
            self.states.commit(span.lease, confirmed, confirmed);
            if let Some(&token) = self.sampled.tokens[sampled.clone()].first() {
                stepper.sampled = token;
            }
        }
        Ok(())
    }
}
