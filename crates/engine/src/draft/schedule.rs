//! Which sequences get drafts, from where, and how many.

use super::acceptance::Acceptance;
use super::cost::RoundCosts;
use super::decision::{Candidate, StepShape, decide};
use super::tuning::Tuning;
use super::{DraftEntry, DraftPlan, DraftTokens, DraftVocabulary};
use crate::constraint::allowed;
use crate::scheduler::{lease_of, sample_spec};
use crate::sequence::{DraftSource, Sequence, Standing};
use crate::{Depth, Event, Scheduler, SpanTokens, SpeculationMode, StateStore, StepPlan};
use forerun_base::Token;

/// What the choice of depths keeps from step to step, besides what it learns of costs and acceptance.
#[derive(Debug)]
pub(crate) struct DepthChooser {
    tuning: Tuning,
    /// Rounds that may be lost to learning.
    credit: f32,
    candidates: Vec<Candidate>,
    owners: Vec<usize>,
}

impl DepthChooser {
    pub(crate) fn with_capacity(sequences: usize) -> Self {
        let tuning = Tuning::DEFAULT;
        Self {
            tuning,
            credit: 0.5 * tuning.most_credit,
            candidates: Vec::with_capacity(sequences),
            owners: Vec::with_capacity(sequences),
        }
    }

    /// Chooses the depths of the candidates.
    fn choose(&mut self, costs: &RoundCosts, shape: StepShape) {
        if self.candidates.iter().any(Candidate::is_open) {
            let Self { tuning, credit, candidates, .. } = self;
            *credit = (*credit + tuning.exploration).min(tuning.most_credit);
            *credit -= decide(candidates, costs, shape, *credit, tuning);
        }
    }
}

#[cfg(test)]
impl DepthChooser {
    pub(super) fn credit(&self) -> f32 {
        self.credit
    }

    /// The depth of a sequence that is alone.
    pub(super) fn one(&mut self, candidate: Candidate, costs: &RoundCosts) -> usize {
        self.candidates = vec![candidate];
        self.choose(costs, StepShape { others: 0, rows: 32, context: 0 });
        self.candidates[0].depth
    }
}

impl Scheduler {
    /// Chooses drafts for the sequences of the step just settled. Those from the text are set at once;
    /// what the MTP head has to do is written into `plan`.
    pub(crate) fn plan_drafts(
        &mut self,
        step: &StepPlan,
        states: &StateStore,
        costs: &RoundCosts,
        chooser: &mut DepthChooser,
        plan: &mut DraftPlan,
    ) {
        plan.clear();
        chooser.candidates.clear();
        chooser.owners.clear();
        let mut others = 0;
        for span in &step.spans {
            let Some(at) = self.find(span.seq) else { continue };
            let runs = matches!(self.sequences[at].standing, Standing::Running(_));
            if span.sample.is_none() || !runs {
                continue;
            }
            if let Some(candidate) = self.candidate(at, states) {
                chooser.candidates.push(candidate);
                chooser.owners.push(at);
            } else {
                others += 1;
            }
        }
        // What is taken unchecked has no acceptance to go by.
        if self.speculation.mode != SpeculationMode::Optimistic {
            let (rows, context) = (self.limits.rows, step.context());
            chooser.choose(costs, StepShape { others, rows, context });
        }
        for span in &step.spans {
            let Some(at) = self.find(span.seq).filter(|&at| !self.sequences[at].failed) else {
                continue;
            };
            let chosen = chooser.owners.iter().position(|&owner| owner == at);
            let from_head = match chosen.map(|i| chooser.candidates[i]) {
                Some(candidate) if candidate.free => {
                    self.sequences[at].drafting.drafts.truncate(candidate.depth);
                    0
                }
                Some(candidate) => candidate.depth,
                None => 0,
            };
            let lag = self.lag_allowed(at, plan);
            self.add_entry(plan, at, states, from_head, lag);
        }
    }

    /// How far the MTP head may stay behind a sequence for which it does not draft. An answer grows by a span at a
    /// time, so most of the window can wait, and an answer that ends before it is full has cost nothing. From three
    /// quarters of it on one answer a step is taken in, so that many which began together are not all due together.
    /// What waits of an answer that ended is taken in when it is published or goes on.
    fn lag_allowed(&self, at: usize, plan: &DraftPlan) -> usize {
        let sequence = &self.sequences[at];
        let window = self.limits.hidden_window();
        if !matches!(sequence.standing, Standing::Running(_)) {
            return window;
        }
        let first = plan.entries.iter().all(|entry| entry.depth > 0);
        let all = window - window.min(self.max_drafts() + 1);
        if first { all.min(window / 4 * 3) } else { all }
    }

    /// A sequence that could have drafts now; n-gram drafts are laid down on the way.
    fn candidate(&mut self, at: usize, states: &StateStore) -> Option<Candidate> {
        let (most, mode) = (self.max_drafts(), self.speculation.mode);
        let head = self.head_can_draft(at, states);
        let sequence = &mut self.sequences[at];
        let fixed = match (sequence.drafting.depth, mode) {
            // Unchecked drafts have no acceptance to go by; one does the least harm.
            (Depth::Auto, SpeculationMode::Optimistic) => 1,
            (Depth::Auto, _) => usize::MAX,
            (Depth::Fixed(depth), _) => depth,
        };
        let limit = most.min(sequence.draft_capacity()).min(fixed);
        // What is taken unchecked has no row of logits to tell of.
        if limit == 0 || (mode == SpeculationMode::Optimistic && sequence.logprobs.is_some()) {
            return None;
        }
        let auto = sequence.drafting.depth == Depth::Auto;
        let sized = |candidate: Candidate| if auto { candidate } else { candidate.fixed() };
        let Sequence { tokens, drafting, constraint, .. } = sequence;
        if let Some(constraint) = constraint {
            constraint.forced(limit, &mut drafting.drafts);
            if !drafting.drafts.is_empty() {
                drafting.source = DraftSource::Constraint;
                let limit = drafting.drafts.len();
                return Some(sized(Candidate::new(Acceptance::always_accepted(), limit, true)));
            }
        }
        let agreed = drafting.text.draft(tokens, limit, &mut drafting.drafts);
        let by_source = &drafting.acceptance;
        let likelier = by_source.text.chance(0) >= by_source.head.chance(0);
        let trusted = agreed > 0 && (!head || (agreed >= Tuning::DEFAULT.long_repeat && likelier));
        if trusted {
            drafting.source = DraftSource::Text;
            let limit = drafting.drafts.len();
            return Some(sized(Candidate::new(by_source.text, limit, true)));
        }
        drafting.drafts.clear();
        head.then(|| sized(Candidate::new(by_source.head, limit, false)))
    }

    /// Whether the MTP head has, or can still be given, all it needs to know of a sequence.
    fn head_can_draft(&self, at: usize, states: &StateStore) -> bool {
        let sequence = &self.sequences[at];
        let committed = lease_of(sequence).map_or(0, |lease| states.lease(lease).committed);
        let lag = (committed - sequence.drafting.filled.min(committed)) as usize;
        self.limits.mtp && lag <= self.limits.hidden_window()
    }

    /// Whether a sequence has a use for the MTP head: one that wants no drafts and publishes nothing has none, and
    /// whoever goes on from what is published may want them.
    pub(crate) fn head_may_draft(&self, at: usize, states: &StateStore) -> bool {
        let sequence = &self.sequences[at];
        let wanted = sequence.drafting.depth != Depth::Fixed(0) || sequence.published.active;
        wanted && self.head_can_draft(at, states)
    }

    /// Tokens the MTP head is to choose from after a text.
    pub(super) fn draft_candidates(&self, text: &[Token]) -> usize {
        match (self.speculation.mode, self.speculation.vocabulary) {
            // Unchecked drafts are text, which should not lack a token because it is rare.
            (SpeculationMode::Optimistic, DraftVocabulary::Auto) => self.vocabulary,
            (_, chosen) => chosen.tokens(self.vocabulary, text),
        }
    }

    /// What the MTP head has to do for a sequence, with `depth` drafts to make: nothing while it neither drafts nor is
    /// more than `lag` positions behind.
    pub(crate) fn add_entry(
        &mut self,
        plan: &mut DraftPlan,
        at: usize,
        states: &StateStore,
        depth: usize,
        lag: usize,
    ) {
        if !self.head_may_draft(at, states) {
            return;
        }
        let sequence = &mut self.sequences[at];
        let Some(id) = lease_of(sequence) else { return };
        let lease = states.lease(id);
        let (from, to) = (sequence.drafting.filled as usize, lease.committed as usize);
        // What is published must hold something of the head's.
        let first = from == 0 && sequence.published.active;
        if depth == 0 && to - from <= lag && !first {
            return;
        }
        let (tokens, blocks) = (plan.tokens.len(), plan.blocks.len());
        plan.tokens.extend_from_slice(&sequence.tokens[from + 1..=to]);
        plan.blocks.extend_from_slice(&lease.blocks);
        sequence.drafting.filled = lease.committed;
        let mut sample = sample_spec(sequence, &mut plan.history);
        let mut depth = depth;
        if let Some(constraint) = sequence.constraint.as_mut().filter(|_| depth > 0) {
            let row = plan.masks.len();
            // A constraint that fails is heard when the next step is planned. Until then nothing is drafted: a draft
            // without a mask is hardly ever one that may come.
            if plan.masks.lay_ahead(&mut **constraint, self.vocabulary).is_ok() {
                sample.masks = row..row + 1;
            } else {
                depth = 0;
            }
        }
        let constrained = depth > 0 && sequence.constraint.is_some();
        let candidates = self.draft_candidates(&self.sequences[at].tokens);
        plan.entries.push(DraftEntry {
            seq: self.sequences[at].id,
            lease: id,
            start: from as u32,
            tokens: tokens..plan.tokens.len(),
            blocks: blocks..plan.blocks.len(),
            depth,
            sample,
            candidates,
            constrained,
        });
    }

    /// Takes the head's drafts: for the next step to check, or as text where nothing is checked.
    pub(crate) fn take_drafts(
        &mut self,
        plan: &DraftPlan,
        drafts: &DraftTokens,
        events: &mut Vec<Event>,
    ) {
        for (i, entry) in plan.entries.iter().enumerate() {
            let Some(at) = self.find(entry.seq) else { continue };
            let drafting = &mut self.sequences[at].drafting;
            drafting.drafts.extend_from_slice(drafts.of(i));
            if plan.is_constrained() && !drafts.of(i).is_empty() {
                drafting.receipt.note_host();
                self.speculated.note_host();
            }
        }
        if self.speculation.mode != SpeculationMode::Optimistic {
            return;
        }
        for sequence in &mut self.sequences {
            let mut drafts = std::mem::take(&mut sequence.drafting.drafts);
            if let Some(constraint) = &mut sequence.constraint {
                drafts.truncate(allowed(&mut **constraint, &drafts));
            }
            let (taken, end) =
                sequence.emit(SpanTokens { tokens: &drafts, logprobs: &[], fault: None }, events);
            sequence.drafting.receipt.take_unchecked(taken);
            self.speculated.take_unchecked(taken);
            self.generated += taken as u64;
            sequence.finish(end, events);
            // Back for the next round, with its room.
            drafts.clear();
            sequence.drafting.drafts = drafts;
        }
    }
}
