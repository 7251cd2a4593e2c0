//! What a runner has handed to its device and not yet waited for.
//!
//! A prompt's chunks are submitted one behind the other, so that the device never waits for the host. At most
//! [`Submissions::MOST`] are in flight: that bounds how long a newcomer or a cancel waits.

use crate::{Busy, EngineError};
use forerun_backend::{Backend, Ticket};

#[derive(Debug, Default)]
pub(crate) struct Submissions {
    /// Oldest first.
    in_flight: Vec<Submission>,
    busy: Busy,
}

#[derive(Clone, Copy, Debug)]
struct Submission {
    ticket: Ticket,
    /// Whether a step ends with it.
    step: bool,
}

impl Submissions {
    /// Submissions that a device may hold.
    pub(crate) const MOST: usize = 2;

    pub(crate) fn new() -> Self {
        Self { in_flight: Vec::with_capacity(Self::MOST), busy: Busy::default() }
    }

    /// Hands everything queued to the device, after the oldest submission where there are too many.
    pub(crate) fn submit(
        &mut self,
        backend: &mut dyn Backend,
        step: bool,
    ) -> Result<(), EngineError> {
        if self.in_flight.len() == Self::MOST {
            self.wait(1, backend)?;
        }
        let ticket = backend.submit()?;
        self.in_flight.push(Submission { ticket, step });
        Ok(())
    }

    /// Waits for everything that was submitted. Results may be read then.
    pub(crate) fn finish(&mut self, backend: &mut dyn Backend) -> Result<(), EngineError> {
        self.wait(self.in_flight.len(), backend)
    }

    /// Waits for the `count` oldest submissions.
    fn wait(&mut self, count: usize, backend: &mut dyn Backend) -> Result<(), EngineError> {
        let Self { in_flight, busy } = self;
        // Dropped at the end whatever the outcome: nobody waits for these again.
        for Submission { ticket, step } in in_flight.drain(..count) {
            let time = backend.wait(ticket)?;
            if step {
                busy.step += time;
                busy.steps += 1;
            } else {
                busy.other += time;
            }
        }
        Ok(())
    }

    /// What the device has done since the last call.
    pub(crate) fn take_busy(&mut self) -> Busy {
        std::mem::take(&mut self.busy)
    }
}
