//! One sequence driven by hand: every step has exactly the rows it is asked to have.

use crate::bench::prompts::random_tokens;
use anyhow::bail;
use forerun_base::{LeaseId, SeqId, Token};
use forerun_engine::{
    Admission, ModelRunner, Picks, Runner, SampleSpec, Span, StateStore, StepPlan,
};

/// See the module's text.
pub(super) struct Walk<'a> {
    runner: &'a mut ModelRunner,
    states: StateStore,
    lease: LeaseId,
    positions: usize,
    plan: StepPlan,
    picks: Picks,
    /// What stands for guesses: none of them is ever kept.
    guesses: Vec<Token>,
}

impl<'a> Walk<'a> {
    /// At the beginning of a sequence with room for `positions`.
    pub(super) fn new(runner: &'a mut ModelRunner, positions: usize) -> anyhow::Result<Self> {
        let limits = *runner.limits();
        let mut states = StateStore::new(&limits);
        Ok(Self {
            lease: acquire(&mut states, positions)?,
            states,
            positions,
            plan: StepPlan::with_room(&limits),
            picks: Picks::with_room(&limits),
            guesses: random_tokens(limits.log_rows, runner.model().spec.vocabulary),
            runner,
        })
    }

    /// The most rows of a step that decodes.
    pub(super) fn most_rows(&self) -> usize {
        self.guesses.len() + 1
    }

    /// Positions whose state is real.
    pub(super) fn position(&self) -> usize {
        self.states.lease(self.lease).committed as usize
    }

    /// Back to the beginning.
    pub(super) fn restart(&mut self) -> anyhow::Result<()> {
        self.states.release(self.lease);
        self.lease = acquire(&mut self.states, self.positions)?;
        Ok(())
    }

    /// Reads a prompt in steps as long as the engine's and samples its last row; returns the steps.
    pub(super) fn read(&mut self, prompt: &[Token]) -> anyhow::Result<usize> {
        let chunks = prompt.chunks(self.runner.limits().rows);
        let steps = chunks.len();
        for (i, chunk) in chunks.enumerate() {
            self.run(chunk, 0, i + 1 == steps)?;
        }
        Ok(steps)
    }

    /// The token picked last, and `rows - 1` guesses, which are rejected.
    pub(super) fn step(&mut self, rows: usize) -> anyhow::Result<()> {
        let mut tokens = vec![self.picks.tokens.first().copied().unwrap_or(0)];
        tokens.extend_from_slice(&self.guesses[..rows - 1]);
        self.run(&tokens, rows - 1, true)
    }

    fn run(&mut self, tokens: &[Token], drafts: usize, sampled: bool) -> anyhow::Result<()> {
        let lease = self.states.lease(self.lease);
        self.plan.clear();
        self.plan.tokens.extend_from_slice(tokens);
        self.plan.blocks.extend_from_slice(&lease.blocks);
        let sample = SampleSpec::GREEDY;
        self.plan.spans.push(Span {
            seq: SeqId(0),
            lease: self.lease,
            start: lease.committed,
            tokens: 0..tokens.len(),
            drafts,
            pending: lease.pending,
            blocks: 0..lease.blocks.len(),
            sample: sampled.then_some(sample),
        });
        self.runner.run(&self.plan, &mut self.picks)?;
        let certain = tokens.len() - drafts;
        self.states.commit(self.lease, certain, certain);
        Ok(())
    }
}

fn acquire(states: &mut StateStore, positions: usize) -> anyhow::Result<LeaseId> {
    match states.acquire(positions) {
        Admission::Ready(lease) => Ok(lease),
        Admission::Wait => bail!("the engine has no room for {positions} positions"),
    }
}
