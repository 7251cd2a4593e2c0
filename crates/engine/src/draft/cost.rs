//! What rounds cost: times of steps by rows and context and of draft passes by entries, timed at load and followed since.

use std::time::Duration;

/// Contexts from which a step is priced apart from shorter ones.
const CONTEXTS: [usize; 5] = [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// How much a round counts that was dearer or cheaper than known: a memory of a few rounds. A price that jumped with one
/// hiccup would park a sequence, whose rounds then no longer tell that it was one.
const RISE: f32 = 0.1;
const FALL: f32 = 0.2;

/// Bands of prices: what was timed at load, then one for each of [`CONTEXTS`].
pub(crate) const BANDS: usize = CONTEXTS.len() + 1;

/// Steps after which a price that was not taken again is forgotten: the machine may have been busy with something else then,
/// and a depth that once seemed dear would never be tried again.
const FORGOTTEN: u32 = 64;

/// A time that was taken a number of times.
#[derive(Clone, Copy, Debug, Default)]
struct Price {
    /// 0 is unknown.
    seconds: f32,
    times: u32,
    /// When it was last taken, in steps.
    taken: u32,
}

impl Price {
    /// Takes a time: a mean at first, since among many prices that were taken once the lowest is a lucky one, and
    /// later one that follows the cost as it drifts. Hiccups only ever add time, so a higher time counts for less.
    fn note(&mut self, time: Duration) {
        let time = time.as_secs_f32();
        self.times = self.times.saturating_add(1);
        let memory = if time < self.seconds { FALL } else { RISE };
        let weight = memory.max(1.0 / self.times as f32);
        let most = if self.times == 1 { time } else { 2.0 * self.seconds };
        self.seconds += weight * (time.min(most) - self.seconds);
    }

    /// Takes a time at load, where the first ones touch memory for the first time: the least is the truest.
    fn note_least(&mut self, time: Duration) {
        let time = time.as_secs_f32();
        self.seconds = if self.is_known() { self.seconds.min(time) } else { time };
        self.times = 1;
    }

    fn is_known(&self) -> bool {
        self.seconds > 0.0
    }
}

/// Prices of rounds, learned from rounds.
#[derive(Clone, Debug)]
pub(crate) struct CostTable {
    /// Times of a step by band and rows (index 0: one row). Band 0 holds what was timed at load, for
    /// proportions until requests tell; the others follow [`CONTEXTS`].
    known: [Vec<Price>; BANDS],
    /// The same in seconds and without gaps, made anew when a time is taken: a choice asks for many prices.
    step: [Vec<f32>; BANDS],
    /// Times of a draft pass by entries (index 0: one).
    draft: Vec<Price>,
    /// Steps that were timed since load.
    steps: u32,
}

impl CostTable {
    /// Prices of up to `rows` rows and `sequences` drafting sequences.
    pub(crate) fn new(rows: usize, sequences: usize) -> Self {
        let (rows, sequences) = (rows.max(1), sequences.max(1));
        Self {
            known: std::array::from_fn(|_| vec![Price::default(); rows]),
            step: std::array::from_fn(|_| vec![1.0; rows]),
            draft: vec![Price::default(); sequences],
            steps: 0,
        }
    }

    /// Takes the time of a step at load.
    pub(crate) fn note_calibration(&mut self, rows: usize, time: Duration) {
        if let Some(known) = rows.checked_sub(1).and_then(|i| self.known[0].get_mut(i)) {
            known.note_least(time);
            (0..BANDS).for_each(|band| self.fill(band));
        }
    }

    /// Takes the time of draft passes at load, each of so many entries.
    pub(crate) fn note_draft_calibration(&mut self, passes: usize, entries: usize, time: Duration) {
        if passes > 0 && (1..=self.draft.len()).contains(&entries) {
            self.draft[entries - 1].note_least(time / passes as u32);
        }
    }

    /// Takes the time of a step that only decoded, at the longest `context` in it.
    pub(crate) fn note_step(&mut self, rows: usize, context: usize, time: Duration) {
        let first = band(context);
        self.steps = self.steps.wrapping_add(1);
        for known in &mut self.known[first] {
            if self.steps.wrapping_sub(known.taken) > FORGOTTEN {
                *known = Price { taken: self.steps, ..Price::default() };
            }
        }
        if let Some(known) = rows.checked_sub(1).and_then(|i| self.known[first].get_mut(i)) {
            known.note(time);
            known.taken = self.steps;
            (first..BANDS).for_each(|band| self.fill(band));
        }
    }

    /// Makes the prices of a band: measured, or as much dearer than at shorter contexts as the nearest that was
    /// measured here, or on the line through its measured neighbours.
    fn fill(&mut self, band: usize) {
        let (shorter, rest) = self.step.split_at_mut(band);
        let (known, step) = (&self.known[band], &mut rest[0]);
        let measured = |b: &usize| self.known[*b].iter().any(Price::is_known);
        let shorter = (0..band).rev().find(measured).map(|b| &shorter[b]);
        let mut below = None;
        let mut above = next_known(known, 0);
        for at in 0..step.len() {
            if above == Some(at) {
                (below, above) = (above, next_known(known, at + 1));
            }
            step[at] = match shorter {
                None => on_line(known, at, [below, above]),
                Some(shorter) => {
                    let near = match (below, above) {
                        (Some(b), Some(a)) if at - b > a - at => Some(a),
                        (b, a) => b.or(a),
                    };
                    shorter[at] * near.map_or(1.0, |k| known[k].seconds / shorter[k])
                }
            };
        }
    }

    /// Takes the time in which `passes` draft passes made `drafts` drafts.
    pub(crate) fn note_draft(&mut self, passes: usize, drafts: usize, time: Duration) {
        if passes > 0 && drafts > 0 {
            let entries = drafts.div_ceil(passes).min(self.draft.len());
            self.draft[entries - 1].note(time / passes as u32);
        }
    }

    /// Seconds of a draft pass of so many entries; nothing while none is known.
    pub(super) fn pass(&self, entries: usize) -> f32 {
        match entries {
            0 => 0.0,
            _ if !self.draft.iter().any(Price::is_known) => 0.0,
            _ => between(&self.draft, entries.min(self.draft.len()) - 1),
        }
    }

    /// Whether a step of so many rows was timed lately, at a context of the band.
    pub(super) fn knows(&self, rows: usize, band: usize) -> bool {
        rows.checked_sub(1).and_then(|i| self.known[band].get(i)).is_some_and(Price::is_known)
    }

    /// Seconds of a step.
    pub(super) fn step(&self, rows: usize, band: usize) -> f32 {
        let step = &self.step[band];
        step[rows.clamp(1, step.len()) - 1]
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

/// A price, read off its neighbours where it is unknown.
fn between(known: &[Price], at: usize) -> f32 {
    let below = known[..=at].iter().rposition(Price::is_known);
    on_line(known, at, [below, next_known(known, at)])
}

/// A price on the line through the nearest known ones: up to it, and above it.
fn on_line(known: &[Price], at: usize, [below, above]: [Option<usize>; 2]) -> f32 {
    let seconds = |i: usize| known[i].seconds;
    match (below, above) {
        (Some(b), _) if b == at => seconds(at),
        (Some(b), Some(a)) => {
            let share = (at - b) as f32 / (a - b) as f32;
            seconds(b) + share * (seconds(a) - seconds(b))
        }
        // Nothing above: hopeful, since a round of it soon tells the truth and a fear never would.
        (Some(b), None) => seconds(b) * (1.0 + 0.1 * (at - b) as f32),
        (None, Some(a)) => seconds(a),
        (None, None) => 1.0,
    }
}

/// Follows a cost as it drifts with the context. Hiccups only ever add time, so a lower time is believed
/// sooner than a higher one.
pub(crate) fn blend(known: &mut f32, time: Duration) {
    let time = time.as_secs_f32();
    let weight = if time < *known { 0.4 } else { 0.25 };
    *known = if *known == 0.0 { time } else { *known + weight * (time.min(2.0 * *known) - *known) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dear_once_is_forgotten_and_what_is_taken_again_is_not() {
        let mut costs = CostTable::new(4, 1);
        let (fast, slow) = (Duration::from_millis(10), Duration::from_millis(90));
        (1..=4).for_each(|rows| costs.note_calibration(rows, fast));
        costs.note_step(3, 0, slow);
        assert!(costs.step(3, band(0)) > 0.08);
        (0..FORGOTTEN).for_each(|_| costs.note_step(1, 0, fast));
        assert!(costs.step(3, band(0)) > 0.08, "not yet");
        costs.note_step(1, 0, fast);
        assert!((costs.step(3, band(0)) - 0.010).abs() < 1e-6);
        assert!((costs.step(1, band(0)) - 0.010).abs() < 1e-6);
    }

    #[test]
    fn the_least_time_at_load_counts() {
        let mut costs = CostTable::new(2, 1);
        [60, 10, 20].iter().for_each(|&ms| costs.note_calibration(2, Duration::from_millis(ms)));
        assert!((costs.step(2, 0) - 0.010).abs() < 1e-6);
    }

    #[test]
    fn a_lucky_first_time_is_soon_put_right() {
        let mut costs = CostTable::new(2, 1);
        [10, 20, 30].iter().for_each(|&ms| costs.note_step(2, 0, Duration::from_millis(ms)));
        assert!((costs.step(2, band(0)) - 0.020).abs() < 1e-6);
    }

    #[test]
    fn unknown_prices_are_read_off_their_neighbours() {
        let mut costs = CostTable::new(8, 1);
        costs.note_step(1, 0, Duration::from_millis(10));
        costs.note_step(5, 0, Duration::from_millis(14));
        assert!((costs.step(3, band(0)) - 0.012).abs() < 1e-6);
        assert!((costs.step(8, band(0)) - 0.0182).abs() < 1e-6);
    }

    #[test]
    fn a_longer_context_is_dearer_in_proportion_until_it_is_known() {
        let mut costs = CostTable::new(8, 1);
        costs.note_step(1, 0, Duration::from_millis(10));
        costs.note_step(5, 0, Duration::from_millis(15));
        assert!((costs.step(5, band(5000)) - 0.015).abs() < 1e-6, "nothing known there yet");
        costs.note_step(1, 5000, Duration::from_millis(20));
        assert!((costs.step(5, band(5000)) - 0.030).abs() < 1e-6);
        costs.note_step(5, 5000, Duration::from_millis(40));
        assert!((costs.step(5, band(5000)) - 0.040).abs() < 1e-6);
        assert!((costs.step(5, band(100)) - 0.015).abs() < 1e-6);
    }
}
