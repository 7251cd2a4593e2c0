//! Constraints in a plan: what its rows may sample, and which drafts are worth a row.

use crate::constraint::walk;
use crate::sequence::{Sequence, Standing};
use crate::{DraftPlan, DraftTokens, Event, FinishReason, Scheduler, StateStore, StepPlan};
use std::time::{Duration, Instant};

impl Scheduler {
    /// Asks constraints whose masks are computed elsewhere whether they are ready; the others sit out the step. A mask
    /// is waited for once, for as long as `patience` lasts. An answer that turns out to be whole ends.
    pub(crate) fn await_masks(&mut self, mut patience: Duration, events: &mut Vec<Event>) {
        for sequence in &mut self.sequences {
            let runs = matches!(sequence.standing, Standing::Running(_));
            let Some(constraint) = sequence.constraint.as_mut().filter(|_| runs) else { continue };
            let begun = Instant::now();
            let wait = if sequence.waits { Duration::ZERO } else { patience };
            sequence.waits = !constraint.ready(wait);
            patience = patience.saturating_sub(begun.elapsed());
            if !sequence.waits
                && let Some(end) = sequence.decided()
            {
                sequence.drafting.drafts.clear();
                sequence.finish(Some(end), events);
            }
        }
    }

    /// Waits a moment for the first mask that a sequence needs to go on.
    pub(crate) fn wait_for_mask(&mut self, patience: Duration) {
        let waits = |s: &&mut Sequence| s.waits && matches!(s.standing, Standing::Running(_));
        if let Some(sequence) = self.sequences.iter_mut().find(waits)
            && let Some(constraint) = &mut sequence.constraint
        {
            sequence.waits = !constraint.ready(patience);
        }
    }

    /// Lays down what the rows of constrained sequences may sample and drops drafts that could not be sampled. A
    /// sequence whose constraint fails ends here, alone.
    pub(crate) fn constrain(
        &mut self,
        states: &mut StateStore,
        plan: &mut StepPlan,
        events: &mut Vec<Event>,
    ) {
        if self.sequences.iter().all(|sequence| sequence.constraint.is_none()) {
            return;
        }
        let mut at = 0;
        while at < plan.spans.len() {
            match self.constrain_span(plan, at) {
                Ok(()) => at += 1,
                Err(why) => {
                    let seq = plan.spans.remove(at).seq;
                    self.end(seq, FinishReason::Refused(why), states, events);
                }
            }
        }
    }

    fn constrain_span(&mut self, plan: &mut StepPlan, at: usize) -> Result<(), String> {
        let StepPlan { spans, tokens, masks, .. } = plan;
        let span = &mut spans[at];
        let Some(sample) = &mut span.sample else { return Ok(()) };
        let owner =
            self.find(span.seq).expect("a planned sequence stays until its step is applied");
        let Some(constraint) = &mut self.sequences[owner].constraint else { return Ok(()) };
        let first = masks.len();
        let drafts = &tokens[span.tokens.end - span.drafts..span.tokens.end];
        let kept = walk(&mut **constraint, drafts, self.vocabulary, masks)?;
        sample.masks = first..masks.len();
        span.tokens.end -= span.drafts - kept;
        span.drafts = kept;
        Ok(())
    }

    /// Takes draft number `made` of each constrained entry and lays down what may come after it. Where nothing can, or
    /// nobody can tell, the entry drafts no further: a draft without a mask is hardly ever one that may come.
    pub(crate) fn follow(&mut self, plan: &mut DraftPlan, drafts: &DraftTokens, made: usize) {
        let DraftPlan { entries, masks, .. } = plan;
        masks.clear();
        for (i, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| entry.depth > made) {
            let Some(at) = self.find(entry.seq) else { continue };
            let Sequence { constraint, drafting, .. } = &mut self.sequences[at];
            let Some(constraint) = constraint else { continue };
            let taken = constraint.take(drafts.of(i)[made - 1]);
            drafting.ahead += usize::from(taken);
            let row = masks.len();
            let goes_on = taken && !constraint.is_done_ahead();
            if goes_on && masks.lay_ahead(&mut **constraint, self.vocabulary).is_ok() {
                entry.sample.masks = row..row + 1;
            } else {
                entry.depth = made;
            }
        }
    }

    /// Gives back what constraints took to look ahead.
    pub(crate) fn look_back(&mut self) {
        for Sequence { constraint, drafting, .. } in &mut self.sequences {
            if let Some(constraint) = constraint {
                constraint.back(std::mem::take(&mut drafting.ahead));
            }
        }
    }

    /// Rows that constrained sequences can have in a step.
    pub(crate) fn masked_rows(&self) -> usize {
        let constrained = self.sequences.iter().filter(|s| s.constraint.is_some()).count();
        constrained * (self.max_drafts() + 1)
    }
}
