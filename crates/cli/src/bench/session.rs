//! The order of measurements. Arms of one cell take turns within each repetition, and another one
//! begins each time, so that whatever else the machine does falls on all of them alike.

use super::engines::Engines;
use super::measure::{Run, Work, measure};
use super::plan::{Cell, Plan};
use super::prompts::random_tokens;
use crate::terminal;
use anyhow::bail;
use forerun_base::Token;
use forerun_engine::Depth;
use indicatif::ProgressBar;

/// Answer length of the run that warms an engine.
const WARM_TOKENS: usize = 8;

/// Everything measured in one cell.
pub(super) struct CellRuns {
    pub(super) cell: Cell,
    /// By arm, then by repetition.
    pub(super) runs: Vec<Vec<Run>>,
}

/// The reading of one random prompt, by repetition.
pub(super) struct Reading {
    pub(super) tokens: usize,
    pub(super) runs: Vec<Run>,
}

pub(super) struct Session<'a> {
    pub(super) plan: &'a Plan,
    pub(super) vocabulary: usize,
    pub(super) engines: Engines,
    progress: ProgressBar,
}

impl<'a> Session<'a> {
    pub(super) fn new(plan: &'a Plan, vocabulary: usize, engines: Engines) -> Self {
        let runs = plan.reps * (plan.cells.len() * plan.arms.len() + plan.read.len());
        // Drawn between measurements alone.
        let progress = terminal::bar(runs as u64, "{wide_bar} {pos}/{len} {msg} {eta}");
        Self { plan, vocabulary, engines, progress }
    }

    /// The first steps of an engine touch memory for the first time.
    pub(super) fn warm_up(&mut self) -> anyhow::Result<()> {
        let Plan { prompts, sampling, .. } = self.plan;
        let work = Work { prompt: &prompts[0].ids, batch: 1, tokens: WARM_TOKENS, sampling };
        for engine in self.engines.each() {
            for depth in [Depth::Fixed(0), Depth::Auto] {
                measure(engine, work, depth)?;
            }
        }
        Ok(())
    }

    /// Reads random prompts, one token answered.
    pub(super) fn read(&mut self) -> anyhow::Result<Vec<Reading>> {
        let mut readings = Vec::new();
        for &tokens in &self.plan.read {
            let prompt = random_tokens(tokens, self.vocabulary);
            let work = Work { prompt: &prompt, batch: 1, tokens: 1, sampling: &self.plan.sampling };
            let mut runs = Vec::new();
            for _ in 0..self.plan.reps {
                self.progress.set_message("reading");
                runs.push(measure(self.engines.of(0), work, Depth::Fixed(0))?);
                self.progress.inc(1);
            }
            readings.push(Reading { tokens, runs });
        }
        Ok(readings)
    }

    /// Measures every cell.
    pub(super) fn compare(&mut self) -> anyhow::Result<Vec<CellRuns>> {
        let mut measured = Vec::new();
        for (i, &cell) in self.plan.cells.iter().enumerate() {
            let mut prompt = random_tokens(cell.context, self.vocabulary);
            prompt.extend(&self.plan.prompts[cell.prompt].ids);
            let mut runs = vec![Vec::new(); self.plan.arms.len()];
            for rep in 0..self.plan.reps {
                self.take_turns(i + rep, cell, &prompt, &mut runs)?;
            }
            self.check_tokens(cell, &runs)?;
            measured.push(CellRuns { cell, runs });
        }
        self.progress.finish_and_clear();
        Ok(measured)
    }

    /// One repetition: every arm once, beginning with number `first`.
    fn take_turns(
        &mut self,
        first: usize,
        cell: Cell,
        prompt: &[Token],
        runs: &mut [Vec<Run>],
    ) -> anyhow::Result<()> {
        let Plan { arms, tokens, sampling, .. } = self.plan;
        let work = Work { prompt, batch: cell.batch, tokens: *tokens, sampling };
        for turn in 0..arms.len() {
            let arm = (first + turn) % arms.len();
            self.progress.set_message(arms[arm].to_string());
            runs[arm].push(measure(self.engines.of(arm), work, arms[arm].depth())?);
            self.progress.inc(1);
        }
        Ok(())
    }

    /// Speed is worth nothing while answers differ.
    fn check_tokens(&self, cell: Cell, runs: &[Vec<Run>]) -> anyhow::Result<()> {
        let Plan { arms, prompts, .. } = self.plan;
        let reference = self.plan.reference();
        let Some((arm, rep)) = first_difference(reference, runs) else { return Ok(()) };
        let Cell { context, batch, .. } = cell;
        bail!(
            "arm {} gave other tokens than {} for the prompt `{}` (context {context}, batch {batch}, \
             repetition {})",
            arms[arm],
            arms[reference],
            prompts[cell.prompt].label,
            rep + 1,
        )
    }
}

/// The first arm and repetition that did not say what arm number `reference` said first.
fn first_difference(reference: usize, runs: &[Vec<Run>]) -> Option<(usize, usize)> {
    let expected = &runs[reference][0].answers;
    runs.iter()
        .enumerate()
        .find_map(|(arm, runs)| Some((arm, runs.iter().position(|run| run.answers != *expected)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_other_token_in_any_arm_repetition_or_member_is_found() {
        let run = |last| Run { answers: vec![vec![1, 2], vec![1, last]], ..Run::default() };
        let same = [vec![run(3), run(3)], vec![run(3), run(3)]];
        assert_eq!(first_difference(0, &same), None);
        let other = [vec![run(3), run(3)], vec![run(3), run(4)]];
        assert_eq!(first_difference(0, &other), Some((1, 1)));
        assert_eq!(first_difference(1, &[vec![run(4)], vec![run(3)]]), Some((0, 0)));
    }
}
