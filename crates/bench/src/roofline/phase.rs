//! What is run: the same steps with the meter off, for their rate, and on, for the share of each operation.

use super::stepper::FixedStepRunner;
use crate::BenchError;
use forerun_backend::{Cost, Meter, TimedEntry};
use forerun_base::Token;
use std::time::{Duration, Instant};

/// Steps before the first that counts.
pub(crate) const WARM_STEPS: usize = 4;

/// Steps of one kind.
pub(crate) struct StepPhase {
    pub(crate) name: &'static str,
    pub(crate) sequences: usize,
    /// Positions of each sequence before the first step.
    pub(crate) context: usize,
    /// Rows of all steps.
    pub(crate) rows: usize,
    pub(crate) steps: usize,
    /// Of all steps, with the meter off.
    pub(crate) wall: Duration,
    /// Of as many steps, with the meter on.
    pub(crate) entries: Vec<TimedEntry>,
}

impl StepPhase {
    /// What all steps cost.
    pub(crate) fn cost(&self) -> Cost {
        self.entries.iter().fold(Cost::default(), |sum, entry| sum + entry.cost)
    }
}

pub(crate) struct RooflineSession<'a> {
    pub(crate) runner: FixedStepRunner<'a>,
    pub(crate) meter: &'a Meter,
}

impl RooflineSession<'_> {
    /// Reads the prompt `reps` times and keeps the middle time; stands behind it afterwards.
    pub(crate) fn read(&mut self, prompt: &[Token], reps: usize) -> Result<StepPhase, BenchError> {
        // The first steps of an engine touch memory for the first time.
        let steps = self.runner.read(prompt)?;
        let mut times = Vec::new();
        for _ in 0..reps {
            self.runner.restart()?;
            let start = Instant::now();
            self.runner.read(prompt)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        self.runner.restart()?;
        self.meter.start();
        let read = self.runner.read(prompt);
        let entries = self.meter.stop();
        read?;
        let wall = times[times.len() / 2];
        Ok(StepPhase {
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
    pub(crate) fn steps(
        &mut self,
        name: &'static str,
        rows: usize,
        steps: usize,
    ) -> Result<StepPhase, BenchError> {
        for _ in 0..WARM_STEPS.min(steps) {
            self.runner.step(rows)?;
        }
        let context = self.runner.position();
        let start = Instant::now();
        for _ in 0..steps {
            self.runner.step(rows)?;
        }
        let wall = start.elapsed();
        self.meter.start();
        let done = (0..steps).try_for_each(|_| self.runner.step(rows));
        let entries = self.meter.stop();
        done?;
        let sequences = self.runner.sequences();
        Ok(StepPhase {
            name,
            sequences,
            context,
            rows: steps * rows * sequences,
            steps,
            wall,
            entries,
        })
    }

    /// Milliseconds of steps of each width, in rounds over all of them.
    pub(crate) fn compare(
        &mut self,
        widths: &[usize],
        rounds: usize,
    ) -> Result<Vec<Vec<f64>>, BenchError> {
        let mut ms = vec![Vec::with_capacity(rounds); widths.len()];
        for _ in 0..rounds {
            for (&rows, ms) in widths.iter().zip(&mut ms) {
                let start = Instant::now();
                self.runner.step(rows)?;
                ms.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(ms)
    }
}
