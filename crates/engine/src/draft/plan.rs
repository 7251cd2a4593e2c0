//! The plan of a draft: plain data, like the plan of a step.

use crate::{Masks, SampleSpec};
use forerun_backend::op::HistoryEntry;
use forerun_base::{LeaseId, SeqId, Token};
use forerun_model::Limits;
use std::ops::Range;

/// One sequence's part: positions its MTP cache has yet to take in, and how many drafts to make.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftEntry {
    /// Whose drafts.
    pub seq: SeqId,
    /// Whose state.
    pub lease: LeaseId,
    /// First position to take in.
    pub start: u32,
    /// Where the tokens *after* those positions lie in [`DraftPlan::tokens`]; at least one.
    pub tokens: Range<usize>,
    /// Where the lease's blocks lie in [`DraftPlan::blocks`].
    pub blocks: Range<usize>,
    /// Drafts to make; 0 only takes in.
    pub depth: usize,
    /// How the model will sample what is drafted.
    pub sample: SampleSpec,
    /// Tokens the MTP head chooses from, lowest ids first.
    pub candidates: usize,
    /// Whether the host must hear of each draft, because a constraint decides what may come next.
    pub constrained: bool,
}

/// What one draft does. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct DraftPlan {
    /// One per sequence at most.
    pub entries: Vec<DraftEntry>,
    /// Tokens of all entries.
    pub tokens: Vec<Token>,
    /// Block ids of all entries.
    pub blocks: Vec<u32>,
    /// History entries of all entries.
    pub history: Vec<HistoryEntry>,
    /// What the next draft of an entry may be.
    pub masks: Masks,
}

impl DraftPlan {
    /// An empty plan that grows for histories and masks only.
    pub fn with_capacity(limits: &Limits) -> Self {
        Self {
            entries: Vec::with_capacity(limits.sequences),
            tokens: Vec::with_capacity(limits.sequences * limits.hidden_window()),
            blocks: Vec::with_capacity(limits.blocks()),
            history: Vec::new(),
            masks: Masks::default(),
        }
    }

    /// Empties the plan and keeps its memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.history.clear();
        self.masks.clear();
    }

    /// Tokens that all entries choose from: as many as the one that asks for the most.
    pub fn candidates(&self) -> usize {
        let drafting = self.entries.iter().filter(|entry| entry.depth > 0);
        drafting.map(|entry| entry.candidates).max().unwrap_or(0)
    }

    /// Whether the host must hear of each draft of an entry.
    pub fn is_constrained(&self) -> bool {
        self.entries.iter().any(|entry| entry.constrained)
    }

    /// The deepest entry.
    pub fn deepest(&self) -> usize {
        self.entries.iter().map(|entry| entry.depth).max().unwrap_or(0)
    }
}

/// Drafts by entry. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct DraftTokens {
    tokens: Vec<Token>,
    counts: Vec<usize>,
    stride: usize,
}

impl DraftTokens {
    /// Room for `most` drafts of every sequence.
    pub fn with_capacity(limits: &Limits, most: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(limits.sequences * most),
            counts: Vec::with_capacity(limits.sequences),
            stride: 0,
        }
    }

    /// Makes room for what a plan asks for.
    pub fn reset(&mut self, plan: &DraftPlan) {
        self.stride = plan.deepest();
        self.counts.clear();
        self.counts.resize(plan.entries.len(), 0);
        self.tokens.clear();
        self.tokens.resize(plan.entries.len() * self.stride, 0);
    }

    /// Adds a draft to entry number `entry`.
    pub fn push(&mut self, entry: usize, token: Token) {
        self.tokens[entry * self.stride + self.counts[entry]] = token;
        self.counts[entry] += 1;
    }

    /// Drafts of all entries.
    pub fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drafts of the entry that has the most: as many passes drafted.
    pub fn deepest(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// Entries that have any.
    pub fn drafting(&self) -> usize {
        self.counts.iter().filter(|&&count| count > 0).count()
    }

    /// The drafts of entry number `entry`.
    pub fn of(&self, entry: usize) -> &[Token] {
        let first = entry * self.stride;
        &self.tokens[first..first + self.counts[entry]]
    }
}
