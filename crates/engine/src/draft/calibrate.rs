//! Prices of steps before the first request: a few timed steps on a lease that is given back.

use crate::plan::NOBODY;
use crate::{Admission, DraftEntry, Engine, EngineError, Runner, SampleSpec};
use forerun_base::LeaseId;
use std::time::{Duration, Instant};

impl<R: Runner> Engine<R> {
    /// Times steps of one to `max_drafts + 1` rows, and a draft pass, within about `budget`. Without it the
    /// prices are learned from the first rounds.
    pub fn calibrate(&mut self, budget: Duration) -> Result<(), EngineError> {
        let (most, context) = (self.scheduler.max_drafts(), self.scheduler.limits.context);
        let Admission::Ready(lease) = self.states.acquire(context.min(2 * most + 64)) else {
            return Ok(());
        };
        let done = self.time_steps(lease, most + 1, budget);
        self.states.release(lease);
        done
    }

    /// One step to warm caches and threads, then as many priced ones as the time allows, one at least.
    fn time_steps(
        &mut self,
        lease: LeaseId,
        most: usize,
        budget: Duration,
    ) -> Result<(), EngineError> {
        let started = Instant::now();
        self.time_step(lease, 1, false)?;
        let widths = [1, 2, 3, 5, 9, 17].into_iter().filter(|&rows| rows <= most);
        for (i, rows) in widths.clone().chain(widths).enumerate() {
            if i > 0 && started.elapsed() > budget {
                break;
            }
            self.time_step(lease, rows, true)?;
        }
        Ok(())
    }

    fn time_step(&mut self, lease: LeaseId, rows: usize, counts: bool) -> Result<(), EngineError> {
        if rows > self.scheduler.limits.context || rows > self.scheduler.limits.rows {
            return Ok(());
        }
        let sample = SampleSpec::GREEDY;
        let tokens = std::iter::repeat_n(0, rows);
        let state = self.states.lease(lease);
        self.plan.set_single(lease, state, tokens, rows - 1, Some(sample.clone()));
        let start = Instant::now();
        self.runner.run(&self.plan, &mut self.picks)?;
        if counts {
            self.costs.note_calibration(rows, start.elapsed());
            self.pace.note(rows - 1, 0, start.elapsed());
        }
        if !self.scheduler.limits.mtp {
            return Ok(());
        }
        self.drafts.clear();
        self.drafts.tokens.push(0);
        self.drafts.blocks.extend_from_slice(&self.states.lease(lease).blocks);
        self.drafts.entries.push(DraftEntry {
            seq: NOBODY,
            lease,
            start: 0,
            tokens: 0..1,
            blocks: 0..self.drafts.blocks.len(),
            depth: self.scheduler.max_drafts().min(2),
            sample,
            candidates: self.scheduler.draft_candidates(&[]),
        });
        let start = Instant::now();
        let passes = self.runner.draft(&self.drafts, &mut self.guesses)?;
        if counts {
            self.costs.note_draft(passes, start.elapsed());
        }
        Ok(())
    }
}
