//! The plan of a step: plain data, everything a runner needs and nothing it must look up.

use crate::{Lease, Masks};
use forerun_backend::op::{HistoryEntry, SampleRow};
use forerun_base::{LeaseId, SeqId, Token};
use forerun_model::Limits;
use std::ops::Range;

/// Stands for a sequence where rows are run that belong to no request.
pub(crate) const NOBODY: SeqId = SeqId(u64::MAX);

/// The new tokens of one sequence in one step: a prefill chunk, one decode token, or one decode token
/// followed by drafts. Only the lengths differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Whose tokens.
    pub seq: SeqId,
    /// Whose state.
    pub lease: LeaseId,
    /// Position of the first token: the committed length of the lease.
    pub start: u32,
    /// Where the tokens lie in [`StepPlan::tokens`].
    pub tokens: Range<usize>,
    /// How many trailing tokens are drafts.
    pub drafts: usize,
    /// Accepted drafts that the recurrent state has yet to fold.
    pub pending: u32,
    /// Where the lease's blocks lie in [`StepPlan::blocks`].
    pub blocks: Range<usize>,
    /// How to sample; `None` while the prompt is still being read.
    pub sample: Option<SampleSpec>,
    /// The token after the span, where that is known.
    pub next: Option<Token>,
    /// Leading rows that the drafter takes in with the step: none, or all whose next token is known.
    pub taken: usize,
}

impl Span {
    /// Tokens that are not drafts.
    pub fn confirmed(&self) -> usize {
        self.tokens.len() - self.drafts
    }

    /// Last rows whose hidden states are kept for the drafter, in a window of so many. Of what it takes in at once the
    /// last row is enough, which is published before its successor is known.
    pub(crate) fn kept(&self, window: usize) -> usize {
        let wanted = if self.taken > 0 { 1 } else { self.tokens.len() };
        wanted.min(window)
    }

    /// Rows whose successor is sampled: the last confirmed one and every draft.
    pub fn sampled_rows(&self) -> usize {
        if self.sample.is_some() { self.drafts + 1 } else { 0 }
    }
}

/// How the rows of a span are sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleSpec {
    /// Parameters; positions and ranges are filled in per row.
    pub row: SampleRow,
    /// Tokens of the prompt, which repeat but were not generated.
    pub prompt_len: u32,
    /// Where the history lies in [`StepPlan::history`].
    pub history: Range<usize>,
    /// Where the masks of the sampled rows lie in [`StepPlan::masks`], one after the other; empty where any token may
    /// come.
    pub masks: Range<usize>,
    /// Whether log-probabilities are requested, and of how many tokens besides the sampled one.
    pub logprobs: Option<usize>,
}

impl SampleSpec {
    /// The largest logit, nothing else.
    pub const GREEDY: Self =
        Self { row: SampleRow::GREEDY, prompt_len: 0, history: 0..0, masks: 0..0, logprobs: None };
}

/// What one step does. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// One per sequence at most.
    pub spans: Vec<Span>,
    /// Tokens of all spans.
    pub tokens: Vec<Token>,
    /// Block ids of all spans.
    pub blocks: Vec<u32>,
    /// History entries of all spans.
    pub history: Vec<HistoryEntry>,
    /// How many of the rows read a prompt.
    pub prompt_rows: usize,
    /// Which tokens rows may sample.
    pub masks: Masks,
}

impl StepPlan {
    /// An empty plan that grows for histories and masks only.
    pub fn with_capacity(limits: &Limits) -> Self {
        Self {
            spans: Vec::with_capacity(limits.sequences),
            tokens: Vec::with_capacity(limits.rows),
            blocks: Vec::with_capacity(limits.blocks()),
            history: Vec::new(),
            prompt_rows: 0,
            masks: Masks::default(),
        }
    }

    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
        self.prompt_rows = 0;
        self.masks.clear();
    }

    /// Makes this the plan of one span that belongs to no request: `tokens` after what the lease holds.
    pub(crate) fn set_single(
        &mut self,
        id: LeaseId,
        lease: &Lease,
        tokens: impl IntoIterator<Item = Token>,
        drafts: usize,
        sample: Option<SampleSpec>,
    ) {
        self.clear();
        self.add_nobody(id, lease, tokens, drafts, sample);
    }

    /// Adds a span that belongs to no request.
    pub(crate) fn add_nobody(
        &mut self,
        id: LeaseId,
        lease: &Lease,
        tokens: impl IntoIterator<Item = Token>,
        drafts: usize,
        sample: Option<SampleSpec>,
    ) {
        let (first_token, first_block) = (self.tokens.len(), self.blocks.len());
        self.tokens.extend(tokens);
        self.blocks.extend_from_slice(&lease.blocks);
        self.spans.push(Span {
            seq: NOBODY,
            lease: id,
            start: lease.committed,
            tokens: first_token..self.tokens.len(),
            drafts,
            pending: lease.pending,
            blocks: first_block..self.blocks.len(),
            sample,
            next: None,
            taken: 0,
        });
    }

    /// Rows of all spans.
    pub fn rows(&self) -> usize {
        self.spans.iter().map(|span| span.tokens.len()).sum()
    }

    /// Whether any span asks for log-probabilities.
    pub fn wants_logprobs(&self) -> bool {
        let asks = |span: &Span| span.sample.as_ref().is_some_and(|s| s.logprobs.is_some());
        self.spans.iter().any(asks)
    }

    /// The longest context of its spans.
    pub fn context(&self) -> usize {
        self.spans.iter().map(|span| span.start as usize).max().unwrap_or(0)
    }

    /// The drafts of a span.
    pub fn drafts(&self, span: &Span) -> &[Token] {
        &self.tokens[span.tokens.end - span.drafts..span.tokens.end]
    }
}
