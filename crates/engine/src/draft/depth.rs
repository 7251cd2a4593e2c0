//! How many guesses are worth their cost.
//!
//! Expected tokens of a round with depth `d` are `1 + a₁ + a₁a₂ + … + a₁…a_d`, where `a_k` is the
//! chance that guess `k` is accepted when those before it were. The round costs a step of `1 + d` rows and
//! `d` draft passes. The depths of a batch are raised one guess at a time, the likeliest first, and
//! the best rate on the way wins, 0 included. Rows come in stairs on devices with tiles: a step of 17 may cost what one of 32
//! costs, so whoever takes a stair to look again takes others along. Times decide how fast the text comes, never which.

use std::time::Duration;

/// Deepest guess that is counted and priced.
pub(crate) const MAX_DEPTH: usize = 16;
/// Rounds at depth 0 before one is spent on looking whether that is still right; each time it was, the
/// wait doubles.
const PROBE_AFTER: u32 = 16;
/// The longest wait.
const PROBE_AT_LATEST: u32 = 768;
/// Rows whose price is within this factor are on one stair.
const STAIR: f32 = 1.03;
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
            let was_probe = self.wants_probe(1, true);
            self.parked_rounds = 0;
            self.probe_after = match (accepted, was_probe) {
                (0, true) => (2 * self.probe_after).min(PROBE_AT_LATEST),
                (0, false) => self.probe_after,
                _ => PROBE_AFTER,
            };
        }
    }

    /// Whether a sequence at depth 0 should look again; a look delays all `sequences` of the batch.
    fn wants_probe(&self, sequences: usize, could_pay: bool) -> bool {
        let wait = if could_pay { self.probe_after } else { PROBE_AT_LATEST };
        self.parked_rounds as usize >= wait as usize * sequences
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
    /// Seconds of a draft pass by entries (index 0: one); 0 is unknown.
    draft: Vec<f32>,
}

impl CostTable {
    /// Prices of up to `rows` rows and `sequences` drafting sequences.
    pub(crate) fn new(rows: usize, sequences: usize) -> Self {
        let step = std::array::from_fn(|_| vec![0.0; rows.max(1)]);
        Self { step, draft: vec![0.0; sequences.max(1)] }
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

    /// Takes the time of `passes` draft passes that made `guesses` guesses.
    pub(crate) fn note_draft(&mut self, passes: usize, guesses: usize, time: Duration) {
        if passes > 0 && guesses > 0 {
            let entries = guesses.div_ceil(passes).min(self.draft.len());
            blend(&mut self.draft[entries - 1], time / passes as u32);
        }
    }

    /// Seconds of a draft pass of so many entries; nothing while none is known.
    fn pass(&self, entries: usize) -> f32 {
        match entries {
            0 => 0.0,
            _ if self.draft.iter().all(|&t| t == 0.0) => 0.0,
            _ => between(&self.draft, entries.min(self.draft.len()) - 1),
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
        let known = (0..step.len()).filter(|&i| step[i] > 0.0).min_by_key(|i| i.abs_diff(at));
        let shorter = (0..band).rev().find(|&b| self.step[b].iter().any(|&t| t > 0.0));
        match (shorter, known) {
            (Some(b), Some(k)) => self.step(rows, b) * step[k] / self.step(k + 1, b),
            (Some(b), None) => self.step(rows, b),
            (None, _) => between(step, at),
        }
    }
}

/// Which prices a context belongs to.
pub(crate) fn band(context: usize) -> usize {
    CONTEXTS.iter().rposition(|&from| context >= from).map_or(1, |i| i + 1)
}

/// An unknown price read off its neighbours.
fn between(step: &[f32], at: usize) -> f32 {
    if step[at] > 0.0 {
        return step[at];
    }
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
    let plain = sequences as f32 / costs.step(sequences, band);
    let (mut tokens, mut best) = (sequences as f32, plain);
    // The best that guesses could do if all were right.
    let mut hope: f32 = 0.0;
    let (mut entries, mut drafting) = ([0; MAX_DEPTH], 0.0);
    for guesses in 1..=rows.saturating_sub(sequences) {
        let open = candidates.iter_mut().filter(|c| c.trial.0 < c.limit.min(MAX_DEPTH));
        let likeliest = open.max_by(|a, b| a.next_chance().total_cmp(&b.next_chance()));
        let Some(candidate) = likeliest else { break };
        let chance = candidate.next_chance();
        if !candidate.free {
            let pass = &mut entries[candidate.trial.0];
            *pass += 1;
            drafting += costs.pass(*pass) - costs.pass(*pass - 1);
        }
        candidate.trial = (candidate.trial.0 + 1, chance);
        tokens += chance;
        let time = costs.step(sequences + guesses, band) + drafting;
        hope = hope.max((sequences + guesses) as f32 / time);
        if tokens / time > best {
            best = tokens / time;
            candidates.iter_mut().for_each(|c| c.depth = c.trial.0);
        }
    }
    look_again(candidates, costs, [rows, band], hope > plain);
}

/// Lets sequences that were parked for long try one guess. Where no guess could pay even if it were right, prices alone
/// can change that, and they are asked for rarely.
fn look_again(
    candidates: &mut [Candidate],
    costs: &CostTable,
    [rows, band]: [usize; 2],
    could_pay: bool,
) {
    let sequences = candidates.len();
    let mut taken: usize = sequences + candidates.iter().map(|c| c.depth).sum::<usize>();
    let before = taken;
    for candidate in candidates.iter_mut() {
        if candidate.depth == 0
            && candidate.limit > 0
            && candidate.acceptance.wants_probe(sequences, could_pay)
        {
            candidate.depth = 1;
            taken += 1;
        }
    }
    if taken == before {
        return;
    }
    // The rest of the stair costs nothing more.
    let price = costs.step(taken, band) * STAIR;
    for candidate in candidates {
        let free = taken < rows && costs.step(taken + 1, band) <= price;
        if free && candidate.depth == 0 && candidate.limit > 0 {
            candidate.depth = 1;
            taken += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(step: impl Fn(usize) -> f32, draft: f32) -> CostTable {
        let mut costs = CostTable::new(32, 4);
        costs.step[0] = (1..=32).map(step).collect();
        CostTable { draft: vec![draft; 4], ..costs }
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
    fn where_rows_cost_in_stairs_a_stair_is_taken_whole_or_not_at_all() {
        let stairs = |high: f32| table(move |rows| if rows <= 4 { 1.0 } else { high }, 0.0);
        let four = || [0.9; 4].map(|chance| Candidate::new(known(chance), 8, false));
        for (high, pays) in [(1.5, true), (4.0, false)] {
            let mut batch = four();
            choose(&mut batch, &stairs(high), 8, 0);
            let depths = batch.map(|c| c.depth);
            assert_eq!(depths, if pays { [1; 4] } else { [0; 4] }, "{high}");
        }
        let mut batch = four();
        batch[0].acceptance.parked_rounds = PROBE_AT_LATEST * 4;
        choose(&mut batch, &stairs(4.0), 8, 0);
        assert_eq!(batch.map(|c| c.depth), [1; 4], "whoever looks again takes the others along");
    }

    #[test]
    fn what_could_never_pay_is_rarely_tried() {
        let dear = table(|rows| rows as f32, 0.5);
        let cheap = table(|rows| 1.0 + 0.2 * rows as f32, 0.1);
        for (costs, rounds) in [(dear, PROBE_AT_LATEST), (cheap, PROBE_AFTER)] {
            let mut acceptance = known(0.01);
            let tried = (0..2000).find(|_| {
                let mut one = [Candidate::new(acceptance, 8, false)];
                choose(&mut one, &costs, 32, 0);
                acceptance.note(one[0].depth, 0);
                one[0].depth > 0
            });
            assert_eq!(tried, Some(rounds));
        }
    }

    #[test]
    fn a_pass_of_many_entries_has_a_price_of_its_own() {
        let mut costs = table(|rows| 1.0 + 0.1 * rows as f32, 0.0);
        costs.draft = vec![0.01, 0.0, 0.0, 3.0];
        let alone = {
            let mut one = [Candidate::new(known(0.9), 1, false)];
            choose(&mut one, &costs, 32, 0);
            one[0].depth
        };
        let mut four = [0.9; 4].map(|chance| Candidate::new(known(chance), 1, false));
        choose(&mut four, &costs, 32, 0);
        assert_eq!(alone, 1);
        assert!(four.iter().any(|c| c.depth == 0), "{four:?}");
    }

    #[test]
    fn a_parked_sequence_looks_again_from_time_to_time() {
        // A guess would pay if it were right, but none is.
        let costs = table(|rows| 0.25 + 0.75 * rows as f32, 0.05);
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
