//! The boundary to the device.

use crate::{
    Busy, DraftPlan, DraftTokens, EngineError, ExpertCost, StatePart, StateShape, StepPlan,
    TokenLogprobs,
};
use forerun_backend::StashId;
use forerun_base::{Bytes, Token};
use forerun_model::Limits;
use std::ops::Range;

/// Runs plans: writes only after committed lengths, samples the rows that want it.
pub trait Runner: Send {
    /// Runs one step; `sampled` is overwritten.
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError>;

    /// Makes drafts; `drafts` is overwritten. After each but the last of a round it asks `follow` what may come next.
    /// Returns the draft passes it took.
    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError>;

    /// How long the device was busy since the last call, and how many steps it has passed in that time. A runner
    /// without a clock of the device's says nothing, and the host's is taken.
    fn take_busy(&mut self) -> Option<Busy> {
        None
    }

    /// The mixture of experts that it runs, where it does: rows are priced by the experts they choose.
    fn experts(&self) -> Option<ExpertCost> {
        None
    }

    /// Forgets what an error or a panic left half done on the device, for the next plan to begin anew.
    fn recover(&mut self) -> Recovery {
        Recovery::Kept
    }

    /// Why the device is lost, where a call has found it so since it last recovered.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// Sizes of what a lease holds.
    fn shape(&self) -> StateShape;

    /// Copies of that, for the prefix cache.
    fn copies(&mut self) -> &mut dyn StateCopies;
}

/// Parts of leases' state that a device puts aside, and copies back perhaps into another lease. Copies are queued like
/// steps: they see what was queued before, and nobody waits for them.
pub trait StateCopies {
    /// Sets the most bytes that may be put aside.
    fn limit(&mut self, bytes: u64);

    /// Bytes that are put aside.
    fn bytes(&self) -> u64;

    /// Queues putting aside a part of a lease's state.
    fn stash(&mut self, part: StatePart) -> Result<StashId, EngineError>;

    /// The same of bytes that are on the host.
    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, EngineError>;

    /// Queues copying stashes into leases, and hands that to the device.
    fn unstash(&mut self, parts: &[(StatePart, StashId)]) -> Result<(), EngineError>;

    /// Hands what was queued to the device.
    fn submit(&mut self) -> Result<(), EngineError>;

    /// The bytes of a stash that was submitted. Waits for it alone.
    fn read(&mut self, stash: StashId) -> Result<Bytes, EngineError>;

    /// Forgets a stash.
    fn release(&mut self, stash: StashId);

    /// Forgets every stash, whoever knows of it.
    fn release_all(&mut self);

    /// Whether the device is known to have passed everything that was submitted.
    fn is_settled(&self) -> bool;
}

/// What is left on the device behind a step that broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// State of leases that no plan held stays as it was.
    Kept,
    /// Nothing: the device was lost.
    Lost,
}

/// Hears the drafts made so far, the latest of which has this number (from 1), and lays down in the plan what the next
/// one of each entry may be. An entry that should go no further gets that number as its depth.
pub type Follow<'a> = dyn FnMut(&mut DraftPlan, &DraftTokens, usize) + 'a;

/// Sampled tokens of a step, by span. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct SampledTokens {
    /// All tokens, spans in order.
    pub tokens: Vec<Token>,
    /// Each span's part of `tokens`.
    pub of_span: Vec<Range<usize>>,
    /// By token, where a span of the plan asks for it; empty where none does.
    pub logprobs: Vec<Option<Box<TokenLogprobs>>>,
    /// Rows, by their place in `tokens`, whose logits are not finite: what was sampled there is no token. Ascending.
    pub not_finite: Vec<usize>,
    /// Where the first of them went wrong.
    pub fault: String,
}

/// What was sampled in the rows of one span.
#[derive(Clone, Copy, Debug)]
pub struct SpanTokens<'a> {
    /// One per sampled row.
    pub tokens: &'a [Token],
    /// As many, or none.
    pub logprobs: &'a [Option<Box<TokenLogprobs>>],
    /// The first token that is none, and why.
    pub fault: Option<(usize, &'a str)>,
}

impl SampledTokens {
    /// Room for every sampled row of a step.
    pub fn with_capacity(limits: &Limits) -> Self {
        Self {
            tokens: Vec::with_capacity(limits.sampled),
            of_span: Vec::with_capacity(limits.sequences),
            logprobs: Vec::new(),
            not_finite: Vec::new(),
            fault: String::new(),
        }
    }

    /// Makes room for the plan's sampled rows, all token 0.
    pub fn reset(&mut self, plan: &StepPlan) {
        self.tokens.clear();
        self.of_span.clear();
        for span in &plan.spans {
            let first = self.tokens.len();
            self.tokens.resize(first + span.sampled_rows(), 0);
            self.of_span.push(first..self.tokens.len());
        }
        self.not_finite.clear();
        self.fault.clear();
        self.logprobs.clear();
        if plan.wants_logprobs() {
            self.logprobs.resize(self.tokens.len(), None);
        }
    }

    /// Puts tokens in the place of the first ones of a span.
    pub(crate) fn put(&mut self, span: usize, tokens: &[Token]) {
        let first = self.of_span[span].start;
        self.tokens[first..first + tokens.len()].copy_from_slice(tokens);
    }

    /// The sampled tokens of span number `span`.
    pub fn of(&self, span: usize) -> SpanTokens<'_> {
        let part = self.of_span[span].clone();
        let logprobs = self.logprobs.get(part.clone()).unwrap_or_default();
        let bad = self.not_finite.iter().find(|row| part.contains(row));
        let fault = bad.map(|row| (row - part.start, &*self.fault));
        SpanTokens { tokens: &self.tokens[part], logprobs, fault }
    }
}
