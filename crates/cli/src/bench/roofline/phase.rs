//! What is run: the same steps with the meter off, for their rate, and on, for the share of each operation.

use super::walk::Walk;
use forerun_backend::{Cost, Entry, Meter};
use forerun_base::Token;
use std::time::{Duration, Instant};

/// Steps before the first that counts.
pub(super) const WARM_STEPS: usize = 4;

/// Steps of one kind.
pub(in crate::bench) struct Phase {
    pub(in crate::bench) name: &'static str,
    pub(in crate::bench) sequences: usize,
    /// Positions of each sequence before the first step.
    pub(in crate::bench) context: usize,
    /// Rows of all steps.
    pub(in crate::bench) rows: usize,
    pub(in crate::bench) steps: usize,
    /// Of all steps, with the meter off.
    pub(in crate::bench) wall: Duration,
    /// Of as many steps, with the meter on.
    pub(in crate::bench) entries: Vec<Entry>,
}

impl Phase {
    /// What all steps cost.
    pub(in crate::bench) fn cost(&self) -> Cost {
        self.entries.iter().fold(Cost::default(), |sum, entry| sum + entry.cost)
    }
}

pub(super) struct Session<'a> {
    pub(super) walk: Walk<'a>,
    pub(super) meter: &'a Meter,
}

impl Session<'_> {
    /// Reads the prompt `reps` times and keeps the middle time; stands behind it afterwards.
    pub(super) fn read(&mut self, prompt: &[Token], reps: usize) -> anyhow::Result<Phase> {
        // The first steps of an engine touch memory for the first time.
        let steps = self.walk.read(prompt)?;
        let mut times = Vec::new();
        for _ in 0..reps {
            self.walk.restart()?;
            let start = Instant::now();
            self.walk.read(prompt)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        self.walk.restart()?;
        self.meter.start();
        let read = self.walk.read(prompt);
        let entries = self.meter.stop();
        read?;
        let wall = times[times.len() / 2];
        Ok(Phase {
            name: "prompt",
            sequences: 1,
            context: 0,
            rows: prompt.len(),
            steps,
            wall,
            entries,
        })
    }

    /// Steps of `rows` rows of each sequence, one of them confirmed.
    pub(super) fn steps(
        &mut self,
        name: &'static str,
        rows: usize,
        steps: usize,
    ) -> anyhow::Result<Phase> {
        for _ in 0..WARM_STEPS.min(steps) {
            self.walk.step(rows)?;
        }
        let context = self.walk.position();
        let start = Instant::now();
        for _ in 0..steps {
            self.walk.step(rows)?;
        }
        let wall = start.elapsed();
        self.meter.start();
        let done = (0..steps).try_for_each(|_| self.walk.step(rows));
        let entries = self.meter.stop();
        done?;
        let sequences = self.walk.sequences();
        Ok(Phase { name, sequences, context, rows: steps * rows * sequences, steps, wall, entries })
    }

    /// Milliseconds of steps of each width, in rounds over all of them.
    pub(super) fn compare(
        &mut self,
        widths: &[usize],
        rounds: usize,
    ) -> anyhow::Result<Vec<Vec<f64>>> {
        let mut ms = vec![Vec::with_capacity(rounds); widths.len()];
        for _ in 0..rounds {
            for (&rows, ms) in widths.iter().zip(&mut ms) {
                let start = Instant::now();
                self.walk.step(rows)?;
                ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(ms)
    }
}
