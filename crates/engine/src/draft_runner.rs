//! Draft passes of the MTP head or of a separate drafter.

use crate::model_runner::ModelRunner;
use crate::{DraftEntry, DraftPlan, DraftTokens, EngineError, Follow};
use forerun_backend::op::SampleRow;
use forerun_backend::{HostData, View};
use forerun_model::{BatchShape, Head, HiddenSource, NewSpan};
use std::ops::Range;

/// Rows that only have to be taken in and may come along in a pass that drafts. For more, a pass that leaves out most of the head's
/// block comes first: their work is then worth more than reading a few weights twice.
const TAKEN_ALONG: usize = 1;

impl ModelRunner {
    /// What is new is taken in and the first drafts are made, in one pass where it is little; one more pass per further
    /// draft. A drafter that remembers nothing has only the newest row of each entry to see.
    pub(crate) fn run_draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        drafts.reset(plan);
        let rows = plan.entries.iter().map(|entry| entry.tokens.len()).sum::<usize>();
        let drafting = plan.entries.iter().filter(|entry| entry.depth > 0).count();
        let mut passes = 0;
        // What is too much for one pass is taken in first, all but each drafting entry's newest row.
        let remembers = self.model.drafter_remembers();
        let fits = remembers && rows <= self.limits.rows.min(drafting + TAKEN_ALONG);
        if remembers && !fits {
            passes += self.take_in(plan)?;
        }
        self.lay_ids(plan);
        self.lay_history(&plan.history);
        self.batch.clear();
        self.draft.active.clear();
        for (i, entry) in plan.entries.iter().enumerate() {
            let newest = entry.tokens.len() - 1;
            if entry.depth > 0 {
                self.draft.active.push(i);
            } else if !fits {
                continue;
            }
            let rows = if fits { 0..newest + 1 } else { newest..newest + 1 };
            self.push_rows(plan, entry, rows, usize::from(entry.depth > 0));
        }
        if self.batch.rows() > 0 {
            self.pass(plan, HiddenSource::Trunk, 1, drafts)?;
            passes += 1;
        }
        for made in 1.. {
            if plan.deepest() > made {
                follow(plan, drafts, made);
            }
            // Whoever follows may have heard enough.
            if plan.deepest() <= made {
                break;
            }
            self.next_rows(plan, drafts, made);
            self.pass(plan, HiddenSource::LastPass, made + 1, drafts)?;
            passes += 1;
        }
        Ok(passes)
    }

    /// Takes in every entry's rows in one pass and hands the draft logits of each row to `sink`.
    pub fn draft_logits(
        &mut self,
        plan: &DraftPlan,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        self.batch.clear();
        for entry in &plan.entries {
            self.push_rows(plan, entry, 0..entry.tokens.len(), entry.tokens.len());
        }
        let head = self.queue_pass(HiddenSource::Trunk)?;
        self.read_rows(head, sink)
    }

    /// Takes in rows without drafting, as many to a pass as a step holds.
    fn take_in(&mut self, plan: &DraftPlan) -> Result<usize, EngineError> {
        let mut passes = 0;
        self.batch.clear();
        for entry in &plan.entries {
            let mut from = 0;
            let to = entry.tokens.len() - usize::from(entry.depth > 0);
            while from < to {
                let room = self.limits.rows - self.batch.rows();
                let end = to.min(from + room);
                self.push_rows(plan, entry, from..end, 0);
                from = end;
                if self.batch.rows() == self.limits.rows {
                    self.silent_pass()?;
                    passes += 1;
                }
            }
        }
        if self.batch.rows() > 0 {
            self.silent_pass()?;
            passes += 1;
        }
        Ok(passes)
    }

    fn silent_pass(&mut self) -> Result<(), EngineError> {
        self.queue_pass(HiddenSource::Trunk)?;
        forerun_backend::submit_and_wait(&mut *self.backend)?;
        self.batch.clear();
        Ok(())
    }

    /// Adds some of an entry's rows to the batch, the last `sampled` of them with logits.
    fn push_rows(
        &mut self,
        plan: &DraftPlan,
        entry: &DraftEntry,
        rows: Range<usize>,
        sampled: usize,
    ) {
        let tokens = &plan.tokens[entry.tokens.clone()][rows.clone()];
        let new = NewSpan {
            tokens,
            start: entry.start + rows.start as u32,
            confirmed: tokens.len() as u32,
            pending: 0,
            slot: entry.lease.0,
            blocks: &plan.blocks[entry.blocks.clone()],
            sampled,
        };
        self.batch.push(new, BatchShape::of(&self.limits));
    }

    /// The rows that go on from the last pass: each entry that still drafts, at its next position or, for a drafter
    /// that reads the trunk's cache, still at the last position the trunk has seen.
    fn next_rows(&mut self, plan: &DraftPlan, drafts: &DraftTokens, made: usize) {
        let moved = if self.model.drafter_remembers() { made } else { 0 };
        self.batch.clear();
        let mut hidden = std::mem::take(&mut self.draft.hidden);
        hidden.clear();
        for (row, &i) in self.draft.active.iter().enumerate() {
            let entry = &plan.entries[i];
            if entry.depth <= made {
                continue;
            }
            hidden.push(row as u32);
            let new = NewSpan {
                tokens: &drafts.of(i)[made - 1..made],
                start: entry.start + (entry.tokens.len() - 1 + moved) as u32,
                confirmed: 1,
                pending: 0,
                slot: entry.lease.0,
                blocks: &plan.blocks[entry.blocks.clone()],
                sampled: 1,
            };
            self.batch.push(new, BatchShape::of(&self.limits));
        }
        self.batch.hidden_places.copy_from_slice(&hidden);
        self.draft.hidden = hidden;
        self.draft.active.retain(|&i| plan.entries[i].depth > made);
    }

    /// One pass and its sampled tokens: draft number `number` of every active entry. One whose row is not finite goes no further.
    fn pass(
        &mut self,
        plan: &mut DraftPlan,
        source: HiddenSource,
        number: usize,
        drafts: &mut DraftTokens,
    ) -> Result<(), EngineError> {
        let head = self.queue_pass(source)?.first(plan.candidates());
        let rows = head.rows();
        self.lay_sampling(plan, number);
        let ids = View::head(self.buffers.draft_ids, self.draft.ids.len());
        self.backend.write(ids, HostData::U32(&self.draft.ids))?;
        let mut sampled = std::mem::take(&mut self.draft.sampled);
        sampled.clear();
        sampled.resize(self.draft.active.len(), 0);
        self.sample(head, ids, plan.masks.words(), &mut sampled)?;
        self.bad_rows(rows, sampled.len())?;
        let line = self.line();
        for (row, (&i, &pick)) in self.draft.active.iter().zip(&sampled).enumerate() {
            if self.finite.is_bad(row) {
                // What was sampled there is no token, and nothing goes on from it.
                plan.entries[i].depth = number - 1;
                continue;
            }
            drafts.push(i, pick);
            self.draft.ids[i * line + number] = pick;
        }
        self.draft.sampled = sampled;
        Ok(())
    }

    /// Drafts of a line of ids, its newest token included.
    fn line(&self) -> usize {
        self.speculation.max_drafts + 1
    }

    /// Each entry's newest token, with room for its drafts behind it.
    fn lay_ids(&mut self, plan: &DraftPlan) {
        let line = self.line();
        self.draft.ids.clear();
        self.draft.ids.resize(plan.entries.len() * line, 0);
        for (entry, ids) in plan.entries.iter().zip(self.draft.ids.chunks_exact_mut(line)) {
            ids[0] = plan.tokens[entry.tokens.end - 1];
        }
    }

    /// Draft number `number` is sampled as the model will sample its position: same noise, same
    /// filters, and a history of everything before it.
    fn lay_sampling(&mut self, plan: &DraftPlan, number: usize) {
        self.sample_words.clear();
        let line = self.line();
        for &i in &self.draft.active {
            let entry = &plan.entries[i];
            let row = SampleRow {
                position: entry.start + (entry.tokens.len() + number) as u32,
                history_first: entry.sample.history.start as u32,
                history_len: entry.sample.history.len() as u32,
                ids_first: (i * line) as u32,
                ids_len: number as u32,
                ids_prompt: 0,
                mask: plan.masks.number(&entry.sample.masks, 0),
                ..entry.sample.row
            };
            self.sample_words.extend_from_slice(&row.words());
        }
    }

    fn queue_pass(&mut self, source: HiddenSource) -> Result<Head, EngineError> {
        let (space, states) = (&self.buffers.space, &self.buffers.states);
        Ok(self.model.draft(&mut *self.backend, space, states, &self.batch, source)?)
    }
}
