//! What an engine holds and has done.

use crate::{Busy, BusyTimes, Engine, Receipt, Runner, StateStore};
use std::time::Duration;

/// Numbers for an operator. Counts only grow; the others are of this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that read a prompt or answer.
    pub running: usize,
    /// Sequences that wait for a lease.
    pub waiting: usize,
    /// Sequences that ended and keep their state.
    pub retained: usize,
    /// Leases nobody holds.
    pub free_leases: usize,
    /// All leases.
    pub leases: usize,
    /// Key/value blocks nobody holds.
    pub free_blocks: usize,
    /// All key/value blocks.
    pub blocks: usize,
    /// Steps that ran.
    pub steps: u64,
    /// Rows of the last step.
    pub step_rows: usize,
    /// Time of the last step, drafting included.
    pub step_time: Duration,
    /// Time of all steps.
    pub busy: Duration,
    /// Runs of the device: one a step and one a draft pass.
    pub submissions: u64,
    /// Time of all of them.
    pub submission_time: Duration,
    /// The times of each: quantiles and the longest.
    pub submission_times: BusyTimes,
    /// Times that the device was lost, with the state of every sequence on it.
    pub devices_lost: u64,
    /// Runs that the device has been given and has not passed.
    pub in_flight: usize,
    /// Most of them at a time.
    pub most_in_flight: usize,
    /// How long the longest dispatch takes, by estimate, where the device bounds them.
    pub longest_dispatch: Option<Duration>,
    /// Prompt tokens read.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub generated_tokens: u64,
    /// What speculation did, for all answers together.
    pub speculation: Receipt,
}

impl Stats {
    /// Takes runs of the device.
    pub(crate) fn note_submissions(&mut self, busy: &Busy) {
        self.submissions += busy.submissions as u64;
        self.submission_time += busy.step + busy.other;
        self.submission_times.add(&busy.times);
        self.in_flight = busy.in_flight;
        self.most_in_flight = self.most_in_flight.max(busy.most_in_flight);
        self.longest_dispatch = busy.longest_dispatch.or(self.longest_dispatch);
    }

    /// Takes a step that ran.
    pub(crate) fn note_step(&mut self, rows: usize, prompt_rows: usize, time: Duration) {
        self.steps += 1;
        (self.step_rows, self.step_time) = (rows, time);
        self.busy += time;
        self.prompt_tokens += prompt_rows as u64;
    }

    fn note_room(&mut self, states: &StateStore) {
        (self.free_leases, self.free_blocks) = states.free();
        (self.leases, self.blocks) = states.size();
    }
}

impl<R: Runner> Engine<R> {
    /// What the engine holds and has done. Cheap: a look at each sequence and lease.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            speculation: self.scheduler.speculated.clone(),
            generated_tokens: self.scheduler.generated,
            ..self.stats.clone()
        };
        [stats.running, stats.waiting, stats.retained] = self.scheduler.standings();
        stats.note_room(&self.states);
        stats
    }
}
