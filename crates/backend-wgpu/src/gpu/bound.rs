//! How much one dispatch may do: learned from how long the adapter was busy with what it was given.

use crate::gpu::launch::Call;
use forerun_backend::{Budget, Cost, Ticket};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a dispatch may take, unless told otherwise. Displays are refreshed by the same adapter, and some watchdogs
/// look at single dispatches.
const LONGEST: Duration = Duration::from_millis(50);
/// Operations and bytes a second until something was measured: what a slow integrated adapter does.
const SLOW: Rates = Rates { flops: 50e9, bytes: 10e9 };
/// Work below which a submission says more about its overhead than about the adapter.
const TELLING: Duration = Duration::from_millis(2);

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Bound {
    rates: Rates,
    /// What is queued, and what was submitted and not yet waited for.
    queued: Cost,
    submitted: VecDeque<(Ticket, Cost)>,
    /// How long a dispatch may take.
    limit: Duration,
    /// How long the longest one that was made takes, by what was known then.
    longest: Duration,
}

/// Operations and bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    flops: f64,
    bytes: f64,
}

impl Rates {
    /// How long some work takes.
    fn time(&self, work: Cost) -> Duration {
        let seconds = (work.flops as f64 / self.flops).max(work.bytes as f64 / self.bytes);
        Duration::from_secs_f64(seconds.min(1e6))
    }

    /// Whether an adapter of these rates is slower than was thought by so much that what was cut for it is to be cut
    /// again.
    pub(crate) fn is_behind(&self, thought: Self) -> bool {
        2.0 * self.flops < thought.flops
    }
}

impl Default for Bound {
    fn default() -> Self {
        let (queued, submitted) = (Cost::default(), VecDeque::new());
        Self { rates: SLOW, queued, submitted, limit: LONGEST, longest: Duration::ZERO }
    }
}

impl Bound {
    pub(crate) fn rates(&self) -> Rates {
        self.rates
    }

    /// From now on a dispatch may take so long; what was made before no longer counts as the longest.
    pub(crate) fn limit(&mut self, limit: Duration) {
        self.limit = limit;
        self.longest = Duration::ZERO;
    }

    /// What one dispatch may do.
    pub(crate) fn most(&self) -> Budget {
        let of = |rate: f64| (rate * self.limit.as_secs_f64()) as u64;
        Budget { bytes: of(self.rates.bytes), flops: of(self.rates.flops) }
    }

    /// Sees calls that were made; returns what they do together.
    pub(crate) fn note(&mut self, calls: &[Call]) -> Cost {
        let longest = calls.iter().map(|call| self.rates.time(call.work)).max();
        self.longest = self.longest.max(longest.unwrap_or_default());
        calls.iter().fold(Cost::default(), |sum, call| sum + call.work)
    }

    /// How long the longest dispatch takes, by what was known when it was made.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    pub(crate) fn queue(&mut self, work: Cost) {
        self.queued = self.queued + work;
    }

    pub(crate) fn submit(&mut self, ticket: Ticket) {
        self.submitted.push_back((ticket, std::mem::take(&mut self.queued)));
    }

    /// Learns from how long the adapter was busy with everything up to a ticket.
    pub(crate) fn wait(&mut self, ticket: Ticket, busy: Duration) {
        let mut work = Cost::default();
        while let Some(&(passed, done)) = self.submitted.front()
            && passed <= ticket
        {
            work = work + done;
            self.submitted.pop_front();
        }
        let thought = self.rates.time(work);
        if busy < TELLING || thought < TELLING / 4 {
            return;
        }
        // What was measured counts half, and never for more than a factor of two: one odd step is no law.
        let factor = (thought.as_secs_f64() / busy.as_secs_f64()).sqrt().clamp(0.5, 2.0);
        let Rates { flops, bytes } = self.rates;
        let within = |rate: f64, slow: f64| (rate * factor).clamp(slow / 200.0, slow * 1000.0);
        self.rates = Rates { flops: within(flops, SLOW.flops), bytes: within(bytes, SLOW.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a fixed work on an adapter that is `times` as fast as was thought.
    fn learned(times: f64, steps: u64) -> Bound {
        let mut bound = Bound::default();
        for step in 0..steps {
            let work = Cost { flops: 5_000_000_000, ..Cost::default() };
            bound.queue(work);
            bound.submit(Ticket(step));
            bound.wait(Ticket(step), SLOW.time(work).div_f64(times));
        }
        bound
    }

    #[test]
    fn a_dispatch_may_do_what_the_adapter_does_in_its_time() {
        for times in [0.1, 1.0, 8.0] {
            let most = learned(times, 40).most().flops as f64;
            let expected = times * SLOW.flops * LONGEST.as_secs_f64();
            assert!((most / expected - 1.0).abs() < 0.05, "{times}: {most:e}, not {expected:e}");
        }
    }

    #[test]
    fn a_slow_adapter_has_what_was_cut_for_a_fast_one_cut_again() {
        let (slow, fast) = (learned(0.2, 20).rates(), Bound::default().rates());
        assert!(slow.is_behind(fast) && !fast.is_behind(slow) && !fast.is_behind(fast));
    }

    #[test]
    fn small_submissions_teach_nothing() {
        let mut bound = Bound::default();
        bound.queue(Cost { flops: 1000, ..Cost::default() });
        bound.submit(Ticket(1));
        bound.wait(Ticket(1), Duration::from_millis(40));
        assert_eq!(bound.rates(), SLOW);
    }
}
