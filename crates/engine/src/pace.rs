//! How many rows of prompts a step may hold so that it ends in time.
//!
//! A step takes the time of its answers, which [`RoundCosts`] knows, and on top a time per prompt row that grows with
//! the context. Both come in as data, so a plan is still a function of what it is given. Rows decide when a token
//! comes, never which.

use crate::draft::{BANDS, Price, RoundCosts, Tuning, band};
use std::time::Duration;

/// Prompt rows that are always allowed: reading less at a time would cost more than it saves others.
const LEAST: usize = 32;
/// Prompt rows while nothing is known; from there a step may hold twice what one has held.
const FIRST: usize = 64;
/// Kernels take rows in tiles of so many; fewer rows tell nothing of their price.
const TILE: usize = 16;

/// What is known of the time that a step will take.
#[derive(Clone, Copy)]
pub(crate) struct StepTimes<'a> {
    pub(crate) pace: &'a Pace,
    pub(crate) costs: &'a RoundCosts,
}

/// What rows of prompts cost, and what a step may.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Seconds a step may take while others wait for its end; 0 is no limit.
    budget: f32,
    /// Seconds that each prompt row adds, by band of context.
    row: [Price; BANDS],
    /// Most prompt rows of a step so far.
    widest: usize,
}

impl Pace {
    /// Steps that should end within `budget`; zero is no limit.
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget: budget.as_secs_f32(), row: [Price::default(); BANDS], widest: 0 }
    }

    /// Rows for prompts, the longest of which stands at `context`, beside answers that take so many seconds. Whoever is
    /// alone disturbs nobody and has twice the time, which still bounds how long a newcomer or a cancel waits.
    pub(crate) fn prompt_rows(&self, context: usize, alone: bool, answers: f32) -> usize {
        if self.budget == 0.0 {
            return usize::MAX;
        }
        let fits = match self.row[..=band(context)].iter().rev().find_map(Price::known) {
            Some(row) => {
                let budget = if alone { 2.0 * self.budget } else { self.budget };
                ((budget - answers).max(0.0) / row) as usize
            }
            None => FIRST,
        };
        let rows = fits.min(FIRST.max(2 * self.widest));
        (rows - rows % TILE).max(LEAST)
    }

    /// Records the time of a step that held `prompt_rows` rows of prompts, at their longest `context`, beside answers
    /// that take so many seconds.
    pub(crate) fn note(
        &mut self,
        prompt_rows: usize,
        context: usize,
        answers: f32,
        time: Duration,
    ) {
        if prompt_rows >= TILE {
            // A row is never free, or no number of them would ever be too many.
            let each = ((time.as_secs_f32() - answers) / prompt_rows as f32).max(1e-9);
            self.row[band(context)].note(each, &Tuning::DEFAULT);
            self.widest = self.widest.max(prompt_rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(100);

    /// Reads a prompt of `tokens` on a device whose steps take `time(rows, context)` seconds; the rows of
    /// each step.
    fn read(pace: &mut Pace, tokens: usize, time: impl Fn(usize, usize) -> f32) -> Vec<usize> {
        let (mut at, mut steps) = (0, Vec::new());
        while at < tokens {
            let rows = pace.prompt_rows(at, false, 0.0).min(tokens - at).min(2048);
            pace.note(rows, at, 0.0, Duration::from_secs_f32(time(rows, at)));
            steps.push(rows);
            at += rows;
        }
        steps
    }

    #[test]
    fn no_budget_is_no_limit() {
        let mut pace = Pace::new(Duration::ZERO);
        pace.note(512, 0, 0.0, Duration::from_secs(9));
        assert_eq!(pace.prompt_rows(0, false, 0.0), usize::MAX);
    }

    #[test]
    fn chunks_begin_small_and_grow_until_a_step_fills_its_budget() {
        let mut pace = Pace::new(BUDGET);
        let steps = read(&mut pace, 4000, |rows, _| 0.010 + 0.0002 * rows as f32);
        assert_eq!(steps[..3], [64, 128, 256]);
        let later = steps[5..steps.len() - 1].iter();
        assert!(later.clone().all(|rows| (368..=456).contains(rows)), "{steps:?}");
    }

    #[test]
    fn chunks_shrink_as_the_context_makes_rows_more_expensive() {
        let mut pace = Pace::new(BUDGET);
        let time = |rows: usize, context: usize| rows as f32 * (1e-4 + 1e-8 * context as f32);
        let steps = read(&mut pace, 60_000, time);
        let mut at = 0;
        for (i, rows) in steps.into_iter().enumerate() {
            // The first step of a band has the prices of the band below.
            assert!(i < 8 || time(rows, at) < 0.2, "step {i} of {rows} rows at {at}");
            at += rows;
        }
    }

    #[test]
    fn a_device_that_never_makes_it_in_time_still_reads() {
        let mut pace = Pace::new(BUDGET);
        let steps = read(&mut pace, 400, |rows, _| 1.0 + 0.1 * rows as f32);
        assert!(steps[1..steps.len() - 1].iter().all(|&rows| rows == LEAST), "{steps:?}");
    }

    #[test]
    fn answers_take_their_time_out_of_the_budget_and_solitude_doubles_it() {
        let mut pace = Pace::new(BUDGET);
        pace.note(1024, 0, 0.0, Duration::from_millis(256));
        assert_eq!(pace.prompt_rows(0, false, 0.0), 400);
        assert_eq!(pace.prompt_rows(0, true, 0.0), 800);
        assert_eq!(pace.prompt_rows(0, false, 0.060), 160);
        pace.note(160, 0, 0.060, Duration::from_millis(100));
        assert_eq!(pace.prompt_rows(0, false, 0.060), 160, "the answers' time is not the rows'");
    }
}
