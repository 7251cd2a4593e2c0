//! How many guesses are worth their cost.
//!
//! Expected tokens of a round with depth `d` are `1 + a₁ + a₁a₂ + … + a₁…a_d`, where `a_k` is the
//! chance that guess `k` is accepted when those before it were. The round costs a step of `1 + d` rows and
//! `d` draft passes. The depths of a batch are raised one guess at a time, the likeliest first, and
//! the best rate on the way wins, 0 included. Times decide how fast the text comes, never which.

use std::time::Duration;

/// Deepest guess that is counted and priced.
pub(crate) const MAX_DEPTH: usize = 16;
/// Rounds at depth 0 before one is spent on looking whether that is still right; each time it was, the
/// wait doubles.
const PROBE_AFTER: u32 = 16;
/// The longest wait.
const PROBE_AT_LATEST: u32 = 768;
/// Outcomes of the first guess that must be known before a second one is risked.
const TRIALS: u32 = 2;

/// Chance of acceptance by position, for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    chance: [f32; MAX_DEPTH],
    seen: [u32; MAX_DEPTH],
    parked_rounds: u32,
    probe_after: u32,
}

impl Acceptance {
    /// Hopeful until told otherwise.
    pub(crate) const fn new() -> Self {
        Self {
            chance: [0.7; MAX_DEPTH],
            seen: [0; MAX_DEPTH],
            parked_rounds: 0,
            probe_after: PROBE_AFTER,
        }
    }

    /// Of guesses that cannot be wrong.
    pub(crate) const fn certain() -> Self {
        Self { chance: [1.0; MAX_DEPTH], seen: [TRIALS; MAX_DEPTH], ..Self::new() }
    }

    /// Takes the outcome of a round.
    pub(crate) fn note(&mut self, drafted: usize, accepted: usize) {
        for k in 0..drafted.min(accepted + 1).min(MAX_DEPTH) {
            self.seen[k] += 1;
            // A mean in which the hope counts for two rounds, then a memory of about twenty.
            let rate = (1.0 / (self.seen[k] as f32 + 2.0)).max(0.05);
            let outcome = if k < accepted { 1.0 } else { 0.0 };
            self.chance[k] += rate * (outcome - self.chance[k]);
        }
        if drafted == 0 {
            self.parked_rounds += 1;
        } else {
            let was_probe = self.wants_probe(1);
            self.parked_rounds = 0;
            self.probe_after = match (accepted, was_probe) {
                (0, true) => (2 * self.probe_after).min(PROBE_AT_LATEST),
                (0, false) => self.probe_after,
                _ => PROBE_AFTER,
            };
        }
    }

    /// Whether a sequence at depth 0 should look again; a look delays all `sequences` of the batch.
    fn wants_probe(&self, sequences: usize) -> bool {
        self.parked_rounds as usize >= self.probe_after as usize * sequences
    }

    /// The chance that the first guess of a round is accepted.
    pub(crate) fn first(&self) -> f32 {
        self.chance[0]
    }

    /// The chance that guess number `k` (from 0) is accepted, given those before it. An unseen position
    /// is as likely as the one before it.
    fn given(&self, k: usize) -> f32 {
        if k > 0 && self.seen[0] < TRIALS {
            return 0.0;
        }
        let known = (0..=k.min(MAX_DEPTH - 1)).rev().find(|&k| self.seen[k] > 0);
        self.chance[known.unwrap_or(0)]
    }
}

/// Contexts from which a step is priced apart from shorter ones.
const CONTEXTS: [usize; 5] = [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// Bands of prices: what was timed at load, then one for each of [`CONTEXTS`].
pub(crate) const BANDS: usize = CONTEXTS.len() + 1;

/// Prices of rounds, learned from rounds.
#[derive(Clone, Debug)]
pub(crate) struct CostTable {
    /// Seconds of a step by band and rows (index 0: one row); 0 is unknown. Band 0 holds what was timed
    /// at load, for proportions until requests tell; the others follow [`CONTEXTS`].
    step: [Vec<f32>; BANDS],
    /// Seconds of one draft pass; 0 is unknown.
    draft: f32,
}

impl CostTable {
    pub(crate) fn new(rows: usize) -> Self {
        Self { step: std::array::from_fn(|_| vec![0.0; rows.max(1)]), draft: 0.0 }
    }

    /// Takes the time of a step at load.
    pub(crate) fn note_calibration(&mut self, rows: usize, time: Duration) {
        self.note(rows, 0, time);
    }

    /// Takes the time of a step that only decoded, at the longest `context` in it.
    pub(crate) fn note_step(&mut self, rows: usize, context: usize, time: Duration) {
        self.note(rows, band(context), time);
    }

    fn note(&mut self, rows: usize, band: usize, time: Duration) {
        let step = &mut self.step[band];
        if let Some(known) = rows.checked_sub(1).and_then(|i| step.get_mut(i)) {
            blend(known, time);
        }
    }

    /// Takes the time of `passes` draft passes.
    pub(crate) fn note_draft(&mut self, passes: usize, time: Duration) {
        if passes > 0 {
            blend(&mut self.draft, time / passes as u32);
        }
    }

    /// Seconds of a step: measured, or as much dearer than at shorter contexts as what was measured
    /// here, or on the line through its measured neighbours.
    fn step(&self, rows: usize, band: usize) -> f32 {
        let step = &self.step[band];
        let at = rows.clamp(1, step.len()) - 1;
        if step[at] > 0.0 {
            return step[at];
        }
        let known = step.iter().position(|&t| t > 0.0);
        let shorter = (0..band).rev().find(|&b| self.step[b].iter().any(|&t| t > 0.0));
        match (shorter, known) {
            (Some(b), Some(k)) => self.step(rows, b) * step[k] / self.step(k + 1, b),
            (Some(b), None) => self.step(rows, b),
            (None, _) => between(step, at),
        }
    }

    fn round(&self, band: usize, sequences: usize, guesses: usize, deepest: usize) -> f32 {
        self.step(sequences + guesses, band) + deepest as f32 * self.draft
    }
}

/// Which prices a context belongs to.
pub(crate) fn band(context: usize) -> usize {
    CONTEXTS.iter().rposition(|&from| context >= from).map_or(1, |i| i + 1)
}

/// An unknown price read off its neighbours.
fn between(step: &[f32], at: usize) -> f32 {
    let below = step[..at].iter().rposition(|&t| t > 0.0);
    let above = step[at..].iter().position(|&t| t > 0.0).map(|i| at + i);
    match (below, above) {
        (Some(b), Some(a)) => {
            let share = (at - b) as f32 / (a - b) as f32;
            step[b] + share * (step[a] - step[b])
        }
        // Nothing above: hopeful, since a round of it soon tells the truth and a fear never would.
        (Some(b), None) => step[b] * (1.0 + 0.1 * (at - b) as f32),
        (None, Some(a)) => step[a],
        (None, None) => 1.0,
    }
}

/// Follows the cost as it drifts with the context. Hiccups only ever add time, so a lower time is believed
/// sooner than a higher one.
pub(crate) fn blend(known: &mut f32, time: Duration) {
    let time = time.as_secs_f32();
    let weight = if time < *known { 0.4 } else { 0.25 };
    *known = if *known == 0.0 { time } else { *known + weight * (time.min(2.0 * *known) - *known) };
}

/// One sequence that could have guesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    acceptance: Acceptance,
    /// Deepest it may go: rows, context, room in the answer.
    pub(crate) limit: usize,
    /// Whether its guesses cost no draft pass.
    pub(crate) free: bool,
    /// The answer: how deep it goes.
    pub(crate) depth: usize,
    /// While choosing: the depth on trial, and the chance that all of it is accepted.
    trial: (usize, f32),
}

impl Candidate {
    /// A candidate that goes as deep as it may.
    pub(crate) fn new(acceptance: Acceptance, limit: usize, free: bool) -> Self {
        Self { acceptance, limit, free, depth: limit, trial: (0, 1.0) }
    }

    /// The chance that one guess more becomes text.
    fn next_chance(&self) -> f32 {
        let (depth, chance) = self.trial;
        chance * self.acceptance.given(depth)
    }
}

/// Chooses the depths of a batch whose steps hold `rows` rows, at its longest `context`.
pub(crate) fn choose(candidates: &mut [Candidate], costs: &CostTable, rows: usize, context: usize) {
    let (band, sequences) = (band(context), candidates.len());
    for candidate in &mut *candidates {
        (candidate.depth, candidate.trial) = (0, (0, 1.0));
    }
    let (mut tokens, mut deepest) = (sequences as f32, 0);
    let mut best = tokens / costs.round(band, sequences, 0, 0);
    for guesses in 1..=rows.saturating_sub(sequences) {
        let open = candidates.iter_mut().filter(|c| c.trial.0 < c.limit);
        let likeliest = open.max_by(|a, b| a.next_chance().total_cmp(&b.next_chance()));
        let Some(candidate) = likeliest else { break };
        let chance = candidate.next_chance();
        candidate.trial = (candidate.trial.0 + 1, chance);
        tokens += chance;
        if !candidate.free {
            deepest = deepest.max(candidate.trial.0);
        }
        let rate = tokens / costs.round(band, sequences, guesses, deepest);
        if rate > best {
            best = rate;
            candidates.iter_mut().for_each(|c| c.depth = c.trial.0);
        }
    }
    for candidate in candidates {
        if candidate.depth == 0
            && candidate.limit > 0
            && candidate.acceptance.wants_probe(sequences)
        {
            candidate.depth = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(step: impl Fn(usize) -> f32, draft: f32) -> CostTable {
        let mut costs = CostTable::new(32);
        costs.step[0] = (1..=32).map(step).collect();
        CostTable { draft, ..costs }
    }

    fn known(chance: f32) -> Acceptance {
        Acceptance { chance: [chance; MAX_DEPTH], seen: [9; MAX_DEPTH], ..Acceptance::new() }
    }

    fn depth(chance: f32, costs: &CostTable, limit: usize) -> usize {
        let acceptance = known(chance);
        let mut one = [Candidate::new(acceptance, limit, false)];
        choose(&mut one, costs, 32, 0);
        one[0].depth
    }

    #[test]
    fn likely_guesses_that_cost_little_go_deep_and_unlikely_ones_park() {
        let cheap = table(|rows| 1.0 + 0.02 * rows as f32, 0.1);
        assert!(depth(0.9, &cheap, 8) >= 4);
        assert_eq!(depth(0.05, &cheap, 8), 0);
        assert_eq!(depth(0.9, &cheap, 2), 2, "never past the limit");
        let dear = table(|rows| rows as f32, 0.5);
        assert_eq!(depth(0.95, &dear, 8), 0, "when rows cost full price nothing is gained");
    }

    #[test]
    fn a_batch_gives_its_rows_to_the_likeliest_guesses() {
        let costs = table(|rows| 1.0 + 0.15 * rows as f32, 0.02);
        let with = |chance| {
            let acceptance = known(chance);
            Candidate::new(acceptance, 8, false)
        };
        let mut two = [with(0.95), with(0.1)];
        choose(&mut two, &costs, 32, 0);
        assert!(two[0].depth > two[1].depth, "{two:?}");
        let mut tight = [with(0.95), with(0.95)];
        choose(&mut tight, &costs, 3, 0);
        assert!(tight[0].depth + tight[1].depth <= 1, "three rows hold two tokens and one guess");
    }

    #[test]
    fn a_parked_sequence_looks_again_from_time_to_time() {
        let costs = table(|rows| rows as f32, 0.5);
        let mut acceptance = Acceptance::new();
        let mut probes = 0;
        for _ in 0..1000 {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, &costs, 32, 0);
            probes += usize::from(one[0].depth > 0);
            acceptance.note(one[0].depth, 0);
        }
        // After 16, 32, 64, 128, 256 and 512 rounds.
        assert!((5..=7).contains(&probes), "{probes}");
    }

    #[test]
    fn a_second_guess_waits_until_the_first_is_known() {
        let cheap = table(|_| 1.0, 0.0);
        let mut acceptance = Acceptance::new();
        let depth = |acceptance| {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, &cheap, 32, 0);
            one[0].depth
        };
        assert_eq!(depth(acceptance), 1);
        acceptance.note(1, 1);
        acceptance.note(1, 1);
        assert_eq!(depth(acceptance), 8);
    }

    #[test]
    fn unknown_prices_are_read_off_their_neighbours() {
        let mut costs = CostTable::new(8);
        costs.note_step(1, 0, Duration::from_millis(10));
        costs.note_step(5, 0, Duration::from_millis(14));
        assert!((costs.step(3, band(0)) - 0.012).abs() < 1e-6);
        assert!((costs.step(8, band(0)) - 0.0182).abs() < 1e-6);
    }

    #[test]
    fn a_longer_context_is_dearer_in_proportion_until_it_is_known() {
        let mut costs = CostTable::new(8);
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
