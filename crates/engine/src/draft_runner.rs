//! Draft passes of the MTP head or of a separate drafter.

use crate::model_runner::{ChainScratch, ModelRunner};
use crate::programs::{Move, PassKey, PassKind};
use crate::submissions::Purpose;
use crate::{DraftEntry, DraftPlan, DraftTokens, EngineError, Follow, Span, StepPlan};
use forerun_backend::View;
use forerun_backend::op::{Sample, SampleRow};
use forerun_base::Token;
use forerun_model::{BatchShape, HiddenSource, NewSpan, PassInputs};
use std::ops::Range;

/// Rows that only have to be taken in and may come along in a pass that drafts. For more, a pass that leaves out most
/// of the head's block comes first: their work is then worth more than reading a few weights twice.
const TAKEN_ALONG: usize = 1;

impl ModelRunner {
    /// What is new is taken in and the first drafts are made, in one pass where it is little; one more pass per further
    /// draft. A drafter that remembers nothing has only the newest row of each entry to see.
    ///
    /// Where no entry has a constraint, all passes are one submission: a sampled token feeds the next pass on the
    /// device. Otherwise the host hears of each draft, to say what may come next.
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
        self.set_tables(plan)?;
        // What is too much for one pass is taken in first, all but each drafting entry's newest row.
        let remembers = self.model.drafter_remembers();
        let fits = remembers && rows <= self.limits.rows.min(drafting + TAKEN_ALONG);
        if remembers && !fits {
            passes += self.take_in(plan)?;
        }
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
        if self.batch.rows() == 0 {
            self.submit(Purpose::Other)?;
            return Ok(passes);
        }
        self.write_choices(plan.masks.words())?;
        if plan.is_constrained() {
            Ok(passes + self.followed(plan, drafts, follow)?)
        } else {
            Ok(passes + self.chain(plan, drafts)?)
        }
    }

    /// Writes the block tables that the device lacks.
    fn set_tables(&mut self, plan: &DraftPlan) -> Result<(), EngineError> {
        plan.entries
            .iter()
            .try_for_each(|entry| self.set_table(entry.lease, &plan.blocks[entry.blocks.clone()]))
    }

    /// All passes as one submission with one write, one wait and one read.
    fn chain(&mut self, plan: &DraftPlan, drafts: &mut DraftTokens) -> Result<usize, EngineError> {
        let (depth, candidates) = (plan.deepest().max(1), plan.candidates());
        self.block.clear();
        self.draft.passes.clear();
        let (mut source, mut first) = (HiddenSource::Trunk, 0);
        for number in 1..=depth {
            self.lay_sampling(plan, number);
            let mut inputs = self.block.add(&self.batch);
            let before = (number == 1).then(|| self.seed_lines(inputs.ids));
            if number > 1 {
                inputs.ids = self.next_ids(self.batch.rows());
            }
            let out = View { buffer: self.buffers.drafted, start: first, len: inputs.sampled.len };
            first += out.len;
            let after = Some(self.hand_on(plan, number, out));
            let (kind, ids) = (PassKind::Draft { source, candidates }, self.buffers.draft_ids);
            self.draft.passes.push(PassKey { kind, inputs, ids, out, before, after, taken: None });
            source = HiddenSource::LastPass;
            if number < depth {
                self.next_rows(plan, number, None);
            }
        }
        self.write_block()?;
        let passes = std::mem::take(&mut self.draft.passes);
        let done = passes.iter().try_for_each(|&pass| self.run_pass(pass));
        self.draft.passes = passes;
        done?;
        let sampled = self.drafted(first)?;
        let mut tokens = sampled.iter();
        for number in 1..=depth {
            let entries = plan.entries.iter().enumerate().filter(|(_, e)| e.depth >= number);
            for ((i, _), &token) in entries.zip(&mut tokens) {
                // Behind a row that sampled no token nothing is a draft.
                if token != Sample::NO_TOKEN && drafts.of(i).len() + 1 == number {
                    drafts.push(i, token);
                }
            }
        }
        self.draft.sampled = sampled;
        Ok(depth)
    }

    /// The newest token of each drafting entry, from the first pass's ids to the head of its line.
    fn seed_lines(&mut self, ids: View) -> Move {
        let line = self.line() as u32;
        let ChainScratch { from, to, active, .. } = &mut self.draft;
        from.clear();
        from.extend_from_slice(&self.batch.sampled);
        to.clear();
        to.extend(active.iter().map(|&i| i as u32 * line));
        self.lay_move(ids)
    }

    /// What pass `number` sampled, to the entries' lines and to the ids of the next pass.
    fn hand_on(&mut self, plan: &DraftPlan, number: usize, out: View) -> Move {
        let (line, next) = (self.line(), self.limits.sequences * self.line());
        let ChainScratch { from, to, active, .. } = &mut self.draft;
        from.clear();
        to.clear();
        let mut goes_on = 0;
        for (row, &i) in active.iter().enumerate() {
            from.push(row as u32);
            to.push((i * line + number) as u32);
            if plan.entries[i].depth > number {
                from.push(row as u32);
                to.push((next + goes_on) as u32);
                goes_on += 1;
            }
        }
        self.lay_move(out)
    }

    /// Lays the indices of a move down with the inputs.
    fn lay_move(&mut self, words: View) -> Move {
        let ChainScratch { from, to, .. } = &self.draft;
        debug_assert_eq!(from.len(), to.len(), "each word has one place");
        Move { words, from: self.block.push(from), to: self.block.push(to) }
    }

    /// Where the ids of a pass after the first lie on the device.
    fn next_ids(&self, rows: usize) -> View {
        self.buffers.draft_ids.part(self.limits.sequences * self.line(), rows)
    }

    /// Pass by pass: after each but the last, `follow` hears the drafts and lays down what may come next.
    fn followed(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        self.lay_ids(plan);
        let (mut source, mut made) = (HiddenSource::Trunk, 0);
        loop {
            made += 1;
            self.pass(plan, source, made, drafts)?;
            source = HiddenSource::LastPass;
            if plan.deepest() > made {
                follow(plan, drafts, made);
            }
            // Whoever follows may have heard enough.
            if plan.deepest() <= made {
                return Ok(made);
            }
            self.next_rows(plan, made, Some(drafts));
            self.write_choices(plan.masks.words())?;
        }
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
        self.set_tables(plan)?;
        let inputs = self.lay_inputs();
        self.write_block()?;
        self.run_pass(PassKey::without_tokens(PassKind::DraftScore, inputs))?;
        self.read_rows(sink)
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

    /// Queues a pass that leaves nothing but keys and values. Whatever comes next is queued behind it.
    fn silent_pass(&mut self) -> Result<(), EngineError> {
        let inputs = self.lay_inputs();
        self.write_block()?;
        let kind = PassKind::Draft { source: HiddenSource::Trunk, candidates: 0 };
        self.run_pass(PassKey::without_tokens(kind, inputs))?;
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
            kept: tokens.len(),
        };
        self.batch.push(new, BatchShape::of(&self.limits));
    }

    /// Lays down, behind a step's inputs, the rows of it that the head takes in: each with the token after it.
    pub(crate) fn lay_taken(&mut self, plan: &StepPlan) -> Option<PassInputs> {
        if !self.model.drafter_remembers() || plan.spans.iter().all(|span| span.taken == 0) {
            return None;
        }
        let ChainScratch { taken, next, .. } = &mut self.draft;
        taken.clear();
        let mut first_row = 0;
        for span in &plan.spans {
            let own = &plan.tokens[span.tokens.clone()];
            next.clear();
            next.extend(own.iter().skip(1).copied().chain(span.next).take(span.taken));
            if !next.is_empty() {
                let rows = taken.rows();
                taken.push(step_rows(span, plan, next), BatchShape::of(&self.limits));
                taken
                    .hidden_places
                    .extend((0..taken.rows() - rows).map(|i| (first_row + i) as u32));
            }
            first_row += own.len();
        }
        Some(self.block.add(taken))
    }

    /// The rows that go on from the last pass: each entry that still drafts, at its next position or, for a drafter
    /// that reads the trunk's cache, still at the last position the trunk has seen.
    fn next_rows(&mut self, plan: &DraftPlan, made: usize, drafts: Option<&DraftTokens>) {
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
                // In a chain the device fills in what it sampled.
                tokens: drafts.map_or(&[0], |drafts| &drafts.of(i)[made - 1..made]),
                start: entry.start + (entry.tokens.len() - 1 + moved) as u32,
                confirmed: 1,
                pending: 0,
                slot: entry.lease.0,
                blocks: &plan.blocks[entry.blocks.clone()],
                sampled: 1,
                kept: 1,
            };
            self.batch.push(new, BatchShape::of(&self.limits));
        }
        self.batch.hidden_places.copy_from_slice(&hidden);
        self.draft.hidden = hidden;
        self.draft.active.retain(|&i| plan.entries[i].depth > made);
    }

    /// One pass and its tokens: draft number `number` of every active entry. One whose row samples none goes no
    /// further.
    fn pass(
        &mut self,
        plan: &mut DraftPlan,
        source: HiddenSource,
        number: usize,
        drafts: &mut DraftTokens,
    ) -> Result<(), EngineError> {
        self.lay_sampling(plan, number);
        let inputs = self.lay_inputs();
        let ids = self.block.push(&self.draft.ids);
        self.write_block()?;
        let out = View::head(self.buffers.drafted, inputs.sampled.len);
        let kind = PassKind::Draft { source, candidates: plan.candidates() };
        self.run_pass(PassKey { kind, inputs, ids, out, before: None, after: None, taken: None })?;
        let sampled = self.drafted(self.draft.active.len())?;
        let line = self.line();
        for (&i, &token) in self.draft.active.iter().zip(&sampled) {
            if token == Sample::NO_TOKEN {
                // Nothing goes on from it.
                plan.entries[i].depth = number - 1;
                continue;
            }
            drafts.push(i, token);
            self.draft.ids[i * line + number] = token;
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
        self.batch.sample_rows.clear();
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
            self.batch.sample_rows.extend_from_slice(&row.words());
        }
    }
}

/// The leading rows of a span that the head takes in, by the tokens after them.
fn step_rows<'a>(span: &Span, plan: &'a StepPlan, tokens: &'a [Token]) -> NewSpan<'a> {
    NewSpan {
        tokens,
        start: span.start,
        confirmed: tokens.len() as u32,
        pending: 0,
        slot: span.lease.0,
        blocks: &plan.blocks[span.blocks.clone()],
        sampled: 0,
        kept: 0,
    }
}
