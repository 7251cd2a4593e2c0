//! What rounds cost: times of steps by rows and context, and of draft passes by the sequences in them, timed at load
//! and followed since. The one place that knows: depths and prompt chunks ([`crate::pace`]) are chosen by it.

use super::DraftTokens;
use super::experts::{ExpertCost, relative_work};
use super::tuning::Tuning;
use crate::StepPlan;
use std::time::Duration;

/// Contexts from which a step is priced apart from shorter ones.
const CONTEXTS: [usize; 5] = [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// Bands of prices: what was timed at load, then one for each of [`CONTEXTS`].
pub(crate) const BANDS: usize = CONTEXTS.len() + 1;

/// A time that was measured some number of times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Price {
    /// 0 is unknown.
    seconds: f32,
    times: u32,
    /// When it was last measured, in steps.
    taken: u32,
}

impl Price {
    /// Records a time: a mean at first, since the lowest of many prices that were measured once is a lucky one; later
    /// an average that follows the cost as it drifts.
    pub(crate) fn note(&mut self, seconds: f32, tuning: &Tuning) {
        self.times = self.times.saturating_add(1);
        let memory = if seconds < self.seconds { tuning.fall } else { tuning.rise };
        let weight = memory.max(1.0 / self.times as f32);
        let most = if self.times == 1 { seconds } else { 2.0 * self.seconds };
        self.seconds += weight * (seconds.min(most) - self.seconds);
    }

    /// Records a time at load. The first runs touch memory for the first time, so the least is nearest the truth.
    fn note_least(&mut self, seconds: f32) {
        self.seconds = if self.is_known() { self.seconds.min(seconds) } else { seconds };
        self.times = 1;
    }

    /// Seconds, where any were measured.
    pub(crate) fn known(&self) -> Option<f32> {
        self.is_known().then_some(self.seconds)
    }

    fn is_known(&self) -> bool {
        self.seconds > 0.0
    }
}

/// Prices of rounds, learned from rounds.
#[derive(Clone, Debug)]
pub(crate) struct RoundCosts {
    /// Times of a step by band and rows (index 0: one row). Band 0 holds what was timed at load, for
    /// proportions until requests tell; the others follow [`CONTEXTS`].
    measured: [Vec<Price>; BANDS],
    /// The same in seconds and without gaps, recomputed when a time is recorded: a decision asks for many prices.
    step: [Vec<f32>; BANDS],
    /// Work of a step by rows, as far as the network tells.
    work: Vec<f32>,
    /// Times of the first pass of a chain, which also takes in what is new, and of each further pass, by entries.
    first_pass: Vec<Price>,
    next_pass: Vec<Price>,
    /// Steps that were timed since load.
    steps: u32,
    tuning: Tuning,
}

impl RoundCosts {
    /// Prices of up to `rows` rows and `sequences` drafting sequences, of a network with these experts.
    pub(crate) fn new(rows: usize, sequences: usize, experts: Option<ExpertCost>) -> Self {
        let (rows, sequences, tuning) = (rows.max(1), sequences.max(1), Tuning::DEFAULT);
        let work = (1..=rows).map(|rows| relative_work(experts, rows, tuning.row_share)).collect();
        Self {
            measured: std::array::from_fn(|_| vec![Price::default(); rows]),
            step: std::array::from_fn(|_| vec![1.0; rows]),
            work,
            first_pass: vec![Price::default(); sequences],
            next_pass: vec![Price::default(); sequences],
            steps: 0,
            tuning,
        }
    }

    /// Records the time of a step at load.
    pub(crate) fn note_calibration(&mut self, rows: usize, time: Duration) {
        if let Some(price) = rows.checked_sub(1).and_then(|i| self.measured[0].get_mut(i)) {
            price.note_least(time.as_secs_f32());
            (0..BANDS).for_each(|band| self.fill(band));
        }
    }

    /// Records the time of a step that only decoded, at the longest `context` in it.
    pub(crate) fn note_step(&mut self, rows: usize, context: usize, time: Duration) {
        let first = band(context);
        self.steps = self.steps.wrapping_add(1);
        for price in &mut self.measured[first] {
            if self.steps.wrapping_sub(price.taken) > self.tuning.stale_after {
                *price = Price { taken: self.steps, ..Price::default() };
            }
        }
        if let Some(price) = rows.checked_sub(1).and_then(|i| self.measured[first].get_mut(i)) {
            price.note(time.as_secs_f32(), &self.tuning);
            price.taken = self.steps;
            (first..BANDS).for_each(|band| self.fill(band));
        }
    }

    /// Makes the prices of a band: measured, or as much higher than at shorter contexts as the nearest that was
    /// measured here, or between its measured neighbours by the work of the rows.
    fn fill(&mut self, band: usize) {
        let (shorter, rest) = self.step.split_at_mut(band);
        let (measured, step) = (&self.measured[band], &mut rest[0]);
        let is_measured = |b: &usize| self.measured[*b].iter().any(Price::is_known);
        let shorter = (0..band).rev().find(is_measured).map(|b| &shorter[b]);
        let mut below = None;
        let mut above = next_known(measured, 0);
        for at in 0..step.len() {
            if above == Some(at) {
                (below, above) = (above, next_known(measured, at + 1));
            }
            step[at] = match shorter {
                None => between(measured, at, below, above, |at| self.work[at]),
                Some(shorter) => {
                    let near = match (below, above) {
                        (Some(b), Some(a)) if at - b > a - at => Some(a),
                        (b, a) => b.or(a),
                    };
                    shorter[at] * near.map_or(1.0, |k| measured[k].seconds / shorter[k])
                }
            };
        }
    }

    /// Records the time of a chain at load.
    pub(crate) fn note_chain_calibration(&mut self, entries: usize, passes: usize, time: Duration) {
        if passes == 0 || !(1..=self.first_pass.len()).contains(&entries) {
            return;
        }
        let (seconds, i) = (time.as_secs_f32(), entries - 1);
        if passes == 1 {
            self.first_pass[i].note_least(seconds);
        } else {
            let first = self.first_pass[i].known().unwrap_or(seconds / passes as f32);
            // A further pass is never free, or no number of them would ever be too many.
            let least = seconds / (4 * passes) as f32;
            let next = ((seconds - first) / (passes - 1) as f32).max(least);
            self.next_pass[i].note_least(next);
        }
    }

    /// Records the time of a chain. What it took more or less than predicted is spread over its passes in proportion.
    pub(crate) fn note_chain(&mut self, made: &DraftTokens, time: Duration) {
        let (entries, passes, drafts) = (made.drafting(), made.deepest(), made.len());
        if entries == 0 {
            return;
        }
        let (seconds, tuning) = (time.as_secs_f32(), self.tuning);
        let clamp = |entries: usize| entries.clamp(1, self.first_pass.len()) - 1;
        let (first, further) = (clamp(entries), passes - 1);
        let next = clamp((drafts.saturating_sub(entries)).div_ceil(further.max(1)));
        let thought = self.pass(1, entries) + further as f32 * self.pass(2, next + 1);
        let [was_first, was_next] = [self.pass(1, entries), self.pass(2, next + 1)];
        let ratio = if thought > 0.0 { seconds / thought } else { 0.0 };
        let even = seconds / passes as f32;
        let of = |was: f32| if ratio > 0.0 && was > 0.0 { ratio * was } else { even };
        self.first_pass[first].note(of(was_first), &tuning);
        if further > 0 {
            self.next_pass[next].note(of(was_next), &tuning);
        }
    }

    /// Seconds of pass number `number` (from 1) with so many entries; nothing while none is known.
    pub(super) fn pass(&self, number: usize, entries: usize) -> f32 {
        let prices = if number == 1 { &self.first_pass } else { &self.next_pass };
        let prices = if prices.iter().any(Price::is_known) { prices } else { &self.first_pass };
        match entries.min(prices.len()) {
            0 => 0.0,
            _ if !prices.iter().any(Price::is_known) => 0.0,
            entries => {
                let (at, line) = (entries - 1, |at: usize| 1.0 + self.tuning.row_share * at as f32);
                let below = prices[..=at].iter().rposition(Price::is_known);
                between(prices, at, below, next_known(prices, at), line)
            }
        }
    }

    /// Whether a step of so many rows was timed lately, at a context of the band.
    pub(super) fn knows(&self, rows: usize, band: usize) -> bool {
        rows.checked_sub(1).and_then(|i| self.measured[band].get(i)).is_some_and(Price::is_known)
    }

    /// Seconds of a step.
    pub(crate) fn step(&self, rows: usize, band: usize) -> f32 {
        let step = &self.step[band];
        step[rows.clamp(1, step.len()) - 1]
    }
}

impl RoundCosts {
    /// Seconds that the answers of a step take, with as many drafts made for the next one.
    pub(crate) fn answers(&self, plan: &StepPlan) -> f32 {
        let rows = plan.rows() - plan.prompt_rows;
        if rows == 0 {
            return 0.0;
        }
        let deepest = plan.spans.iter().map(|span| span.drafts).max().unwrap_or(0);
        let entries = |pass: usize| plan.spans.iter().filter(|span| span.drafts >= pass).count();
        let drafting: f32 = (1..=deepest).map(|pass| self.pass(pass, entries(pass))).sum();
        self.step(rows, band(plan.context())) + drafting
    }
}

/// Which prices a context belongs to.
pub(crate) fn band(context: usize) -> usize {
    CONTEXTS.iter().rposition(|&from| context >= from).map_or(1, |i| i + 1)
}

/// The first known price from `from` on.
fn next_known(known: &[Price], from: usize) -> Option<usize> {
    known[from..].iter().position(Price::is_known).map(|i| from + i)
}

/// A price between or beyond the nearest known ones, in proportion to the work.
fn between(
    known: &[Price],
    at: usize,
    below: Option<usize>,
    above: Option<usize>,
    work: impl Fn(usize) -> f32,
) -> f32 {
    let seconds = |i: usize| known[i].seconds;
    match (below, above) {
        (Some(b), _) if b == at => seconds(at),
        (Some(b), Some(a)) => {
            let share = (work(at) - work(b)) / (work(a) - work(b)).max(f32::MIN_POSITIVE);
            seconds(b) + share.min(1.0) * (seconds(a) - seconds(b))
        }
        (Some(b), None) => seconds(b) * work(at) / work(b),
        (None, Some(a)) => seconds(a),
        (None, None) => work(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::NOBODY;
    use crate::{DraftEntry, DraftPlan, SampleSpec};
    use forerun_base::LeaseId;

    #[test]
    fn what_was_expensive_once_is_forgotten_and_what_is_taken_again_is_not() {
        let mut costs = RoundCosts::new(4, 1, None);
        let (fast, slow) = (Duration::from_millis(10), Duration::from_millis(90));
        (1..=4).for_each(|rows| costs.note_calibration(rows, fast));
        costs.note_step(3, 0, slow);
        assert!(costs.step(3, band(0)) > 0.08);
        (0..Tuning::DEFAULT.stale_after).for_each(|_| costs.note_step(1, 0, fast));
        assert!(costs.step(3, band(0)) > 0.08, "not yet");
        costs.note_step(1, 0, fast);
        assert!((costs.step(3, band(0)) - 0.010).abs() < 1e-6);
        assert!((costs.step(1, band(0)) - 0.010).abs() < 1e-6);
    }

    #[test]
    fn the_least_time_at_load_counts() {
        let mut costs = RoundCosts::new(2, 1, None);
        [60, 10, 20].iter().for_each(|&ms| costs.note_calibration(2, Duration::from_millis(ms)));
        assert!((costs.step(2, 0) - 0.010).abs() < 1e-6);
    }

    #[test]
    fn a_lucky_first_time_is_soon_put_right() {
        let mut costs = RoundCosts::new(2, 1, None);
        [10, 20, 30].iter().for_each(|&ms| costs.note_step(2, 0, Duration::from_millis(ms)));
        assert!((costs.step(2, band(0)) - 0.020).abs() < 1e-6);
    }

    #[test]
    fn unknown_prices_are_read_off_their_neighbours() {
        let mut costs = RoundCosts::new(8, 1, None);
        costs.note_step(1, 0, Duration::from_millis(10));
        costs.note_step(5, 0, Duration::from_millis(14));
        assert!((costs.step(3, band(0)) - 0.012).abs() < 1e-6);
        assert!((costs.step(8, band(0)) - 0.014 * 1.7 / 1.4).abs() < 1e-6);
    }

    #[test]
    fn a_longer_context_costs_more_in_proportion_until_it_is_known() {
        let mut costs = RoundCosts::new(8, 1, None);
        costs.note_step(1, 0, Duration::from_millis(10));
        costs.note_step(5, 0, Duration::from_millis(15));
        assert!((costs.step(5, band(5000)) - 0.015).abs() < 1e-6, "nothing known there yet");
        costs.note_step(1, 5000, Duration::from_millis(20));
        assert!((costs.step(5, band(5000)) - 0.030).abs() < 1e-6);
        costs.note_step(5, 5000, Duration::from_millis(40));
        assert!((costs.step(5, band(5000)) - 0.040).abs() < 1e-6);
        assert!((costs.step(5, band(100)) - 0.015).abs() < 1e-6);
    }

    #[test]
    fn between_measured_rows_a_mixture_is_priced_by_the_experts_they_touch() {
        let experts = ExpertCost { experts: 64, top_k: 8, share: 0.9 };
        let (mut dense, mut mixture) =
            (RoundCosts::new(64, 1, None), RoundCosts::new(64, 1, Some(experts)));
        for costs in [&mut dense, &mut mixture] {
            costs.note_calibration(1, Duration::from_millis(10));
        }
        assert!(mixture.step(4, 0) > 2.2 * dense.step(4, 0), "before anything else is measured");
        for costs in [&mut dense, &mut mixture] {
            costs.note_calibration(64, Duration::from_millis(80));
        }
        // Sixteen rows touch most experts already.
        assert!((dense.step(16, 0) - 0.0267).abs() < 1e-3, "{}", dense.step(16, 0));
        assert!(mixture.step(16, 0) > 0.055, "{}", mixture.step(16, 0));
        mixture.note_step(16, 0, Duration::from_millis(30));
        assert!((mixture.step(16, band(0)) - 0.030).abs() < 1e-6, "what is measured comes first");
    }

    fn one_entry(depth: usize) -> DraftPlan {
        let entry = DraftEntry {
            seq: NOBODY,
            lease: LeaseId(0),
            start: 0,
            tokens: 0..1,
            blocks: 0..0,
            depth,
            sample: SampleSpec::GREEDY,
            candidates: 1,
            constrained: false,
        };
        DraftPlan { entries: vec![entry], ..DraftPlan::default() }
    }

    #[test]
    fn the_first_pass_and_the_others_have_prices_of_their_own() {
        let mut costs = RoundCosts::new(8, 2, None);
        let chain = |passes: usize| Duration::from_micros(100 + 60 * (passes as u64 - 1));
        [1, 4].iter().for_each(|&n| costs.note_chain_calibration(1, n, chain(n)));
        assert!(
            (costs.pass(1, 1) - 100e-6).abs() < 1e-8 && (costs.pass(2, 1) - 60e-6).abs() < 1e-8
        );
        let mut made = DraftTokens::default();
        made.reset(&one_entry(3));
        (0..3).for_each(|token| made.push(0, token));
        (0..50).for_each(|_| costs.note_chain(&made, 2 * chain(3)));
        assert!(
            (costs.pass(1, 1) - 200e-6).abs() < 2e-6 && (costs.pass(2, 1) - 120e-6).abs() < 2e-6
        );
        assert!(
            costs.pass(1, 2) >= costs.pass(1, 1),
            "more entries are never cheaper unless measured"
        );
    }
}
