//! The order of measurements. Arms of one cell take turns within each repetition, and another one
//! begins each time, so that whatever else the machine does falls on all of them alike.

use crate::engines::ArmEngines;
use crate::measure::{ArmRun, ArmWork, measure};
use crate::plan::{BenchCell, BenchPlan};
use crate::prompts::random_tokens;
use crate::{BenchError, BenchEvent};
use forerun_base::Token;
use forerun_engine::Depth;

/// Answer length of the run that warms an engine.
const WARM_TOKENS: usize = 8;

/// Everything measured in one cell.
pub(crate) struct BenchCellRuns {
    pub(crate) cell: BenchCell,
    /// By arm, then by repetition.
    pub(crate) runs: Vec<Vec<ArmRun>>,
}

/// The reading of one random prompt, by repetition.
pub(crate) struct PromptReading {
    pub(crate) tokens: usize,
    pub(crate) runs: Vec<ArmRun>,
}

pub(crate) struct ArmSession<'a> {
    pub(crate) plan: &'a BenchPlan,
    pub(crate) vocabulary: usize,
    pub(crate) engines: ArmEngines,
    watch: &'a mut dyn FnMut(BenchEvent<'_>),
    done: usize,
    total: usize,
}

impl<'a> ArmSession<'a> {
    pub(crate) fn new(
        plan: &'a BenchPlan,
        vocabulary: usize,
        engines: ArmEngines,
        watch: &'a mut dyn FnMut(BenchEvent<'_>),
    ) -> Self {
        let total = plan.reps * (plan.cells.len() * plan.arms.len() + plan.read.len());
        Self { plan, vocabulary, engines, watch, done: 0, total }
    }

    /// Tells what comes next, between measurements alone.
    fn progress(&mut self, doing: &str) {
        (self.watch)(BenchEvent::Progress { done: self.done, total: self.total, doing });
    }

    /// The first steps of an engine touch memory for the first time.
    pub(crate) fn warm_up(&mut self) -> Result<(), BenchError> {
        let BenchPlan { prompts, sampling, .. } = self.plan;
        let work = ArmWork { prompt: &prompts[0].ids, batch: 1, tokens: WARM_TOKENS, sampling };
        for engine in self.engines.each() {
            for depth in [Depth::Fixed(0), Depth::Auto] {
                measure(engine, work, depth)?;
            }
        }
        Ok(())
    }

    /// Reads random prompts, one token answered.
    pub(crate) fn read(&mut self) -> Result<Vec<PromptReading>, BenchError> {
        let mut readings = Vec::new();
        for &tokens in &self.plan.read {
            let prompt = random_tokens(tokens, self.vocabulary);
            let work =
                ArmWork { prompt: &prompt, batch: 1, tokens: 1, sampling: &self.plan.sampling };
            let mut runs = Vec::new();
            for _ in 0..self.plan.reps {
                self.progress("reading");
                runs.push(measure(self.engines.of(0), work, Depth::Fixed(0))?);
                self.done += 1;
            }
            readings.push(PromptReading { tokens, runs });
        }
        Ok(readings)
    }

    /// Measures every cell.
    pub(crate) fn compare(&mut self) -> Result<Vec<BenchCellRuns>, BenchError> {
        let mut measured = Vec::new();
        for (i, &cell) in self.plan.cells.iter().enumerate() {
            let mut prompt = random_tokens(cell.context, self.vocabulary);
            prompt.extend(&self.plan.prompts[cell.prompt].ids);
            let mut runs = vec![Vec::new(); self.plan.arms.len()];
            for rep in 0..self.plan.reps {
                self.take_turns(i + rep, cell, &prompt, &mut runs)?;
            }
            self.check_tokens(cell, &runs)?;
            measured.push(BenchCellRuns { cell, runs });
        }
        self.progress("");
        Ok(measured)
    }

    /// One repetition: every arm once, beginning with number `first`.
    fn take_turns(
        &mut self,
        first: usize,
        cell: BenchCell,
        prompt: &[Token],
        runs: &mut [Vec<ArmRun>],
    ) -> Result<(), BenchError> {
        let BenchPlan { arms, tokens, sampling, .. } = self.plan;
        let work = ArmWork { prompt, batch: cell.batch, tokens: *tokens, sampling };
        for turn in 0..arms.len() {
            let arm = (first + turn) % arms.len();
            self.progress(&arms[arm].to_string());
            runs[arm].push(measure(self.engines.of(arm), work, arms[arm].depth())?);
            self.done += 1;
        }
        Ok(())
    }

    /// Speed is worth nothing while answers differ. Where a script takes drafts, they do.
    fn check_tokens(&self, cell: BenchCell, runs: &[Vec<ArmRun>]) -> Result<(), BenchError> {
        if self.plan.acceptance.is_some() {
            return Ok(());
        }
        let BenchPlan { arms, prompts, .. } = self.plan;
        let reference = self.plan.reference();
        let Some((arm, rep)) = first_difference(reference, runs) else { return Ok(()) };
        let BenchCell { context, batch, .. } = cell;
        Err(BenchError::OtherTokens {
            arm: arms[arm].to_string(),
            reference: arms[reference].to_string(),
            prompt: prompts[cell.prompt].label.clone(),
            context,
            batch,
            repetition: rep + 1,
        })
    }
}

/// The first arm and repetition that did not say what arm number `reference` said first.
fn first_difference(reference: usize, runs: &[Vec<ArmRun>]) -> Option<(usize, usize)> {
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
        let run = |last| ArmRun { answers: vec![vec![1, 2], vec![1, last]], ..ArmRun::default() };
        let same = [vec![run(3), run(3)], vec![run(3), run(3)]];
        assert_eq!(first_difference(0, &same), None);
        let other = [vec![run(3), run(3)], vec![run(3), run(4)]];
        assert_eq!(first_difference(0, &other), Some((1, 1)));
        assert_eq!(first_difference(1, &[vec![run(4)], vec![run(3)]]), Some((0, 0)));
    }
}
