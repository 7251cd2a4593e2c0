//! Sequences driven by hand, all alike: every step has exactly the rows of each that it is asked to have.

use crate::bench::prompts::random_tokens;
use anyhow::bail;
use forerun_base::{LeaseId, SeqId, Token};
use forerun_engine::{
    Admission, ModelRunner, Runner, SampleSpec, SampledTokens, Span, StateStore, StepPlan,
};

/// See the module's text.
pub(super) struct Walk<'a> {
    runner: &'a mut ModelRunner,
    states: StateStore,
    walkers: Vec<Walker>,
    positions: usize,
    plan: StepPlan,
    sampled: SampledTokens,
    /// What stands for drafts: none of them is ever kept.
    drafts: Vec<Token>,
}

/// One sequence.
#[derive(Clone, Copy)]
struct Walker {
    lease: LeaseId,
    /// The token sampled last.
    sampled: Token,
}

impl Walker {
    fn new(states: &mut StateStore, positions: usize) -> anyhow::Result<Self> {
        match states.acquire(positions) {
            Admission::Ready(lease) => Ok(Self { lease, sampled: 0 }),
            Admission::Wait => bail!("the engine has no room for {positions} positions"),
        }
    }
}

impl<'a> Walk<'a> {
    /// At the beginning of `sequences` with room for `positions` each.
    pub(super) fn new(
        runner: &'a mut ModelRunner,
        sequences: usize,
        positions: usize,
    ) -> anyhow::Result<Self> {
        let limits = *runner.limits();
        let mut states = StateStore::new(&limits);
        let walkers = (0..sequences).map(|_| Walker::new(&mut states, positions));
        Ok(Self {
            walkers: walkers.collect::<anyhow::Result<_>>()?,
            states,
            positions,
            plan: StepPlan::with_capacity(&limits),
            sampled: SampledTokens::with_capacity(&limits),
            drafts: random_tokens(limits.log_rows, runner.model().spec.vocabulary),
            runner,
        })
    }

    pub(super) fn sequences(&self) -> usize {
        self.walkers.len()
    }

    /// The most rows of a sequence in a step that decodes.
    pub(super) fn most_rows(&self) -> usize {
        self.drafts.len() + 1
    }

    /// Positions of each sequence whose state is real.
    pub(super) fn position(&self) -> usize {
        self.states.lease(self.walkers[0].lease).committed as usize
    }

    /// Back to the beginning.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        for walker in &mut self.walkers {
            self.states.release(walker.lease);
            *walker = Walker::new(&mut self.states, self.positions)?;
        }
        Ok(())
    }

    /// Every sequence, one after the other, reads the prompt in steps as long as the engine's and samples its last
    /// row; returns the steps of one.
    pub(super) fn read(&mut self, prompt: &[Token]) -> anyhow::Result<usize> {
        let chunks = prompt.chunks(self.runner.limits().rows);
        let steps = chunks.len();
        for walker in 0..self.walkers.len() {
            for (i, chunk) in chunks.clone().enumerate() {
                self.plan.clear();
                self.add(walker, chunk, 0, i + 1 == steps);
                self.run(walker)?;
            }
        }
        Ok(steps)
    }

    /// Of every sequence the token sampled last, and `rows - 1` drafts, which are rejected.
    pub(super) fn step(&mut self, rows: usize) -> anyhow::Result<()> {
        let mut tokens = vec![0];
        tokens.extend_from_slice(&self.drafts[..rows - 1]);
        self.plan.clear();
        for walker in 0..self.walkers.len() {
            tokens[0] = self.walkers[walker].sampled;
            self.add(walker, &tokens, rows - 1, true);
        }
        self.run(0)
    }

    /// Plans the next tokens of a sequence.
    fn add(&mut self, walker: usize, tokens: &[Token], drafts: usize, sampled: bool) {
        let id = self.walkers[walker].lease;
        let lease = self.states.lease(id);
        let (token, block) = (self.plan.tokens.len(), self.plan.blocks.len());
        self.plan.tokens.extend_from_slice(tokens);
        self.plan.blocks.extend_from_slice(&lease.blocks);
        self.plan.spans.push(Span {
            seq: SeqId(walker as u64),
            lease: id,
            start: lease.committed,
            tokens: token..self.plan.tokens.len(),
            drafts,
            pending: lease.pending,
            blocks: block..self.plan.blocks.len(),
            sample: sampled.then_some(SampleSpec::GREEDY),
        });
    }

    /// Runs what is planned, which begins with sequence `first`, and keeps all but drafts.
    fn run(&mut self, first: usize) -> anyhow::Result<()> {
        self.runner.run(&self.plan, &mut self.sampled)?;
        let spans = self.plan.spans.iter().zip(&self.sampled.of_span);
        for ((span, sampled), walker) in spans.zip(&mut self.walkers[first..]) {
            let confirmed = span.tokens.len() - span.drafts;
            self.states.commit(span.lease, confirmed, confirmed);
            if let Some(&token) = self.sampled.tokens[sampled.clone()].first() {
                walker.sampled = token;
            }
        }
        Ok(())
    }
}
