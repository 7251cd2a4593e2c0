//! What a runner hands to its device: how much of it at a time, and what it has not yet waited for.
//!
//! A submission holds at most what its budget allows, so that no watchdog fires and a cancel is quick. A prompt's
//! chunks are submitted one behind the other, so that the device never waits for the host; at most
//! [`Submissions::MOST`] are in flight.

use crate::{Busy, EngineError, SubmissionBudget};
use forerun_backend::{Backend, Budget, Cost, Ticket};
use std::time::Duration;

/// What a submission belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A part of a step, or the end of one.
    Step { ends: bool },
    /// Drafts, and what the MTP head takes in.
    Other,
    /// Copies of state for the prefix cache: no price of rows, and no measure of how fast operations are.
    Copies,
}

#[derive(Debug)]
pub(crate) struct Submissions {
    rates: Rates,
    /// Work queued since the last submission.
    queued: Cost,
    /// Oldest first.
    in_flight: Vec<Submission>,
    busy: Busy,
}

#[derive(Clone, Copy, Debug)]
struct Submission {
    ticket: Ticket,
    purpose: Purpose,
    cost: Cost,
}

/// How long work takes, learned from submissions.
#[derive(Clone, Copy, Debug)]
struct Rates {
    budget: SubmissionBudget,
    /// Measured time over the time at the first rates.
    slowness: f64,
}

impl Rates {
    /// What a slow device does: the first submissions are rather too small.
    const BYTES_PER_SECOND: f64 = 8e9;
    const FLOPS_PER_SECOND: f64 = 4e10;
    /// Shorter submissions may be slow for their launch, not for their work.
    const TELLING: f64 = 1e-3;
    /// Share of a new measurement that is faster than what is known; a slower one counts sooner.
    const NEWER: f64 = 0.1;

    fn limit(&self) -> Budget {
        match self.budget {
            SubmissionBudget::Work(budget) => budget,
            SubmissionBudget::Time(Duration::ZERO) => Budget::UNLIMITED,
            SubmissionBudget::Time(time) => {
                // Bytes and flops are taken to follow each other, so each has half of the time.
                let time = time.as_secs_f64() / self.slowness / 2.0;
                Budget {
                    bytes: (time * Self::BYTES_PER_SECOND) as u64,
                    flops: (time * Self::FLOPS_PER_SECOND) as u64,
                }
            }
        }
    }

    fn note(&mut self, cost: Cost, time: Duration) {
        let first =
            cost.bytes as f64 / Self::BYTES_PER_SECOND + cost.flops as f64 / Self::FLOPS_PER_SECOND;
        let seconds = time.as_secs_f64();
        if seconds == 0.0 || first == 0.0 {
            return;
        }
        let slowness = seconds / first;
        if slowness < self.slowness {
            self.slowness += Self::NEWER * (slowness - self.slowness);
        } else if seconds >= Self::TELLING {
            // One measurement may be a thread that was put aside.
            self.slowness = slowness.min(2.0 * self.slowness);
        }
    }
}

impl Submissions {
    /// Submissions that a device may hold.
    pub(crate) const MOST: usize = 2;

    pub(crate) fn new(budget: SubmissionBudget) -> Self {
        Self {
            rates: Rates { budget, slowness: 1.0 },
            queued: Cost::default(),
            in_flight: Vec::with_capacity(Self::MOST),
            busy: Busy::default(),
        }
    }

    /// The most work that one submission may hold.
    pub(crate) fn limit(&self) -> Budget {
        self.rates.limit()
    }

    /// Whether so much more work fits the submission that is being queued.
    pub(crate) fn fits(&self, cost: Cost) -> bool {
        self.limit().holds(self.queued + cost)
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued == Cost::default()
    }

    /// Whether everything submitted was waited for.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Notes work that was queued.
    pub(crate) fn queue(&mut self, cost: Cost) {
        self.queued = self.queued + cost;
    }

    /// Hands everything queued to the device, after the oldest submission where there are too many.
    pub(crate) fn submit(
        &mut self,
        backend: &mut dyn Backend,
        purpose: Purpose,
    ) -> Result<(), EngineError> {
        let cost = std::mem::take(&mut self.queued);
        if self.in_flight.len() == Self::MOST {
            self.wait(1, backend)?;
        }
        let ticket = backend.submit()?;
        self.in_flight.push(Submission { ticket, purpose, cost });
        self.busy.most_in_flight = self.busy.most_in_flight.max(self.in_flight.len());
        Ok(())
    }

    /// Waits for everything that was submitted. Results may be read then.
    pub(crate) fn finish(&mut self, backend: &mut dyn Backend) -> Result<(), EngineError> {
        self.wait(self.in_flight.len(), backend)
    }

    /// Waits for the `count` oldest submissions.
    fn wait(&mut self, count: usize, backend: &mut dyn Backend) -> Result<(), EngineError> {
        let Self { in_flight, busy, rates, .. } = self;
        // Dropped at the end whatever the outcome: nobody waits for these again.
        for Submission { ticket, purpose, cost } in in_flight.drain(..count) {
            let time = backend.wait(ticket)?;
            busy.note(time);
            if purpose != Purpose::Copies {
                rates.note(cost, time);
            }
            match purpose {
                Purpose::Step { ends } => {
                    busy.step += time;
                    busy.steps += usize::from(ends);
                }
                Purpose::Other => busy.other += time,
                Purpose::Copies => {}
            }
        }
        Ok(())
    }

    /// Forgets everything queued and in flight: the device it was for is gone. What is known of its speed stays.
    pub(crate) fn forget(&mut self) {
        self.queued = Cost::default();
        self.in_flight.clear();
    }

    /// What the device has done since the last call.
    pub(crate) fn take_busy(&mut self) -> Busy {
        Busy { in_flight: self.in_flight.len(), ..std::mem::take(&mut self.busy) }
    }
}
