//! Prices of steps before the first request: a few timed steps on leases that are given back.

use super::cost::band;
use crate::plan::NOBODY;
use crate::{Admission, DraftEntry, Engine, EngineError, Runner, SampleSpec};
use forerun_base::{LeaseId, Token};
use std::time::{Duration, Instant};

/// A prime that spreads consecutive ids over a vocabulary.
const SPREAD: usize = 7919;
/// Draft passes that are timed together: the first alone, and with others behind it.
const CHAINS: [usize; 2] = [1, 3];
/// Rows of one sequence that are timed.
const SINGLE: [usize; 8] = [1, 2, 4, 3, 5, 6, 9, 17];
/// Rows of many sequences that are timed: both sides of where a device with tiles of sixteen rows takes one more.
const MANY: [usize; 8] = [16, 17, 32, 33, 48, 49, 64, 65];

impl<R: Runner> Engine<R> {
    /// Times steps of one sequence, then of all, up to `max_drafts + 1` rows each, and draft passes, within about
    /// `budget`. Without it the prices are learned from the first rounds.
    pub fn calibrate(&mut self, budget: Duration) -> Result<(), EngineError> {
        let (most, context) = (self.scheduler.max_drafts(), self.scheduler.limits.context);
        let mut leases = Vec::new();
        while let Admission::Ready(lease) = self.states.acquire(context.min(2 * most + 64)) {
            leases.push(lease);
        }
        let done = self.time_steps(&leases, most + 1, budget);
        leases.into_iter().for_each(|lease| self.states.release(lease));
        done
    }

    /// First untimed steps that warm caches and threads and touch the memory of all leases, then timed ones: up to
    /// three of each kind as the time allows, at least one.
    fn time_steps(
        &mut self,
        leases: &[LeaseId],
        most: usize,
        budget: Duration,
    ) -> Result<(), EngineError> {
        let Some(first) = leases.get(..1) else { return Ok(()) };
        let single = SINGLE.into_iter().filter(|&rows| rows <= most).map(|rows| (first, rows));
        // Unchecked drafts are not priced, so only the rows of one sequence are timed.
        let together = if self.scheduler.limits.log_rows > 0 { most * leases.len() } else { 0 };
        let many = MANY.into_iter().filter(|&rows| most < rows && rows <= together);
        let mut many = many.map(|rows| (leases, rows));
        let all = single.chain(many.clone());
        self.time_step(first, 1, false)?;
        if let Some((leases, rows)) = many.next_back() {
            self.time_step(leases, rows, false)?;
        }
        let started = Instant::now();
        for (i, (leases, rows)) in all.clone().chain(all.clone()).chain(all).enumerate() {
            if i > 0 && started.elapsed() > budget {
                break;
            }
            self.time_step(leases, rows, true)?;
        }
        Ok(())
    }

    /// A step of `rows` rows, shared by the leases, and draft passes for as many of them as have rows.
    fn time_step(
        &mut self,
        leases: &[LeaseId],
        rows: usize,
        counts: bool,
    ) -> Result<(), EngineError> {
        let limits = &self.scheduler.limits;
        if rows > limits.context || rows > limits.rows {
            return Ok(());
        }
        let sample = SampleSpec::GREEDY;
        let leases = &leases[..leases.len().min(rows)];
        self.plan.clear();
        for (i, &lease) in leases.iter().enumerate() {
            let own = rows / leases.len() + usize::from(i < rows % leases.len());
            // Distinct tokens: rows that are alike would choose the same experts.
            let vocabulary = self.scheduler.vocabulary.max(1);
            let first = i * own;
            let tokens = (first..first + own).map(|n| (n * SPREAD % vocabulary) as Token);
            let state = self.states.lease(lease);
            // What is taken unchecked is read as confirmed rows, and there is no log for others.
            let drafts = (own - 1).min(limits.log_rows);
            self.plan.add_nobody(lease, state, tokens, drafts, Some(sample.clone()));
        }
        let start = Instant::now();
        self.runner.run(&self.plan, &mut self.sampled)?;
        let time = self.runner.take_busy().map_or_else(|| start.elapsed(), |busy| busy.step);
        if counts {
            self.costs.note_calibration(rows, time);
            self.pace.note(rows - 1, 0, self.costs.step(1, band(0)), time);
        }
        if !self.scheduler.limits.mtp {
            return Ok(());
        }
        let depths = CHAINS.map(|depth| depth.min(self.scheduler.max_drafts()));
        depths.into_iter().try_for_each(|depth| self.time_chain(leases, &sample, depth, counts))
    }

    fn time_chain(
        &mut self,
        leases: &[LeaseId],
        sample: &SampleSpec,
        depth: usize,
        counts: bool,
    ) -> Result<(), EngineError> {
        self.draft_plan.clear();
        for (i, &lease) in leases.iter().enumerate() {
            let first = self.draft_plan.blocks.len();
            self.draft_plan.tokens.push(0);
            self.draft_plan.blocks.extend_from_slice(&self.states.lease(lease).blocks);
            self.draft_plan.entries.push(DraftEntry {
                seq: NOBODY,
                lease,
                start: 0,
                tokens: i..i + 1,
                blocks: first..self.draft_plan.blocks.len(),
                depth,
                sample: sample.clone(),
                candidates: self.scheduler.draft_candidates(&[]),
                constrained: false,
            });
        }
        let start = Instant::now();
        let passes =
            self.runner.draft(&mut self.draft_plan, &mut self.drafts, &mut |_, _, _| {})?;
        let time = self.runner.take_busy().map_or_else(|| start.elapsed(), |busy| busy.other);
        if counts {
            self.costs.note_chain_calibration(leases.len(), passes, time);
        }
        Ok(())
    }
}
