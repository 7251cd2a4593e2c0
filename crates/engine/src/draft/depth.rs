//! How many drafts are worth their cost.
//!
//! Expected tokens of a round with depth `d` are `1 + a₁ + a₁a₂ + … + a₁…a_d`, where `a_k` is the
//! chance that draft `k` is accepted when those before it were. The round costs a step of `1 + d` rows and
//! `d` draft passes. The depths of a batch are raised one draft at a time, the likeliest first, and
//! the best rate on the way wins, 0 included. Rows come in stairs on devices with tiles: a step of 17 may cost what one of 32
//! costs, so whoever takes a stair to look again takes others along. Times decide how fast the text comes, never which.
//!
//! Positions are learned in strides: what is known of draft `k` lets drafts `2k` and `2k + 1` be risked, so that a depth behind a
//! stair is found without passing through the one that stands on its edge.

use super::cost::{CostTable, band};

/// Deepest draft that is counted and priced.
pub(crate) const MAX_DEPTH: usize = 16;
/// Rounds at depth 0 before one is spent on looking whether that is still right; each time it was, the
/// wait doubles.
const PROBE_AFTER: u32 = 16;
/// The longest wait.
const PROBE_AT_LATEST: u32 = 768;
/// Rows whose price is within this factor are on one stair.
const STAIR: f32 = 1.03;
/// Outcomes of a draft that must be known before deeper ones are risked.
const TRIALS: u32 = 2;
/// How much less likely a draft is than the one before it, until its outcomes are seen.
const UNSEEN: f32 = 0.9;

/// A gain smaller than the scatter of times is none.
const GAIN: f32 = 1.03;

/// How fast what was found of a position that is no longer tried gives way to what is usual: half of it in two dozen rounds. A
/// position that was unlucky at first would else never be tried again.
const FADE: f32 = 0.03;
/// How much a round counts for a sequence: a memory of about twenty.
const OWN: f32 = 0.05;
/// How much a round counts for what is usual.
const USUAL: f32 = 0.01;

/// Chance of acceptance by position over all sequences there were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usual {
    chance: [f32; MAX_DEPTH],
    seen: [u32; MAX_DEPTH],
}

impl Usual {
    /// Hopeful until told otherwise.
    pub(crate) const fn new() -> Self {
        Self { chance: [0.7; MAX_DEPTH], seen: [0; MAX_DEPTH] }
    }

    /// Takes the outcome of a round.
    pub(crate) fn note(&mut self, drafted: usize, accepted: usize) {
        learn((&mut self.chance, &mut self.seen), [drafted, accepted], USUAL);
    }
}

/// Takes the outcome of a round: a mean in which what was thought before counts for two rounds, then a memory in which a round counts `least`.
fn learn(
    (chance, seen): (&mut [f32; MAX_DEPTH], &mut [u32; MAX_DEPTH]),
    [drafted, accepted]: [usize; 2],
    least: f32,
) {
    for k in 0..drafted.min(accepted + 1).min(MAX_DEPTH) {
        seen[k] = seen[k].saturating_add(1);
        let rate = (1.0 / (seen[k] as f32 + 2.0)).max(least);
        let outcome = if k < accepted { 1.0 } else { 0.0 };
        chance[k] += rate * (outcome - chance[k]);
    }
}

/// Chance of acceptance by position, for one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    chance: [f32; MAX_DEPTH],
    seen: [u32; MAX_DEPTH],
    usual: [f32; MAX_DEPTH],
    parked_rounds: u32,
    probe_after: u32,
}

impl Acceptance {
    /// As usual until told otherwise; what is usual counts for a few rounds.
    pub(crate) fn new(usual: &Usual) -> Self {
        Self {
            chance: usual.chance,
            seen: usual.seen.map(|seen| seen.min(TRIALS)),
            usual: usual.chance,
            parked_rounds: 0,
            probe_after: PROBE_AFTER,
        }
    }

    /// Of drafts that cannot be wrong.
    pub(crate) fn always() -> Self {
        Self::new(&Usual { chance: [1.0; MAX_DEPTH], seen: [TRIALS; MAX_DEPTH] })
    }

    /// Takes the outcome of a round.
    pub(crate) fn note(&mut self, drafted: usize, accepted: usize) {
        learn((&mut self.chance, &mut self.seen), [drafted, accepted], OWN);
        if drafted == 0 {
            self.parked_rounds += 1;
        } else {
            for k in drafted.min(MAX_DEPTH)..MAX_DEPTH {
                self.chance[k] += FADE * (self.usual[k] - self.chance[k]);
            }
            let was_probe = self.wants_probe(1, true);
            self.parked_rounds = 0;
            self.probe_after = match (accepted, was_probe) {
                (0, true) => (2 * self.probe_after).min(PROBE_AT_LATEST),
                (0, false) | (_, true) => self.probe_after,
                (_, false) => PROBE_AFTER,
            };
        }
    }

    /// Whether a sequence at depth 0 should look again; a look delays all `sequences` of the batch.
    fn wants_probe(&self, sequences: usize, could_pay: bool) -> bool {
        let wait = if could_pay { self.probe_after } else { PROBE_AT_LATEST };
        self.parked_rounds as usize >= wait as usize * sequences
    }

    /// The chance that the first draft of a round is accepted.
    pub(crate) fn first(&self) -> f32 {
        self.chance[0]
    }

    /// The chance that draft number `k` (from 0) is accepted, given those before it. An unseen position is a
    /// little less likely than the one before it, and none where too little is known to risk it.
    fn given(&self, k: usize) -> f32 {
        if k > 0 && self.seen[((k - 1) / 2).min(MAX_DEPTH - 1)] < TRIALS {
            return 0.0;
        }
        let known = (0..=k.min(MAX_DEPTH - 1)).rev().find(|&k| self.seen[k] > 0).unwrap_or(0);
        self.chance[known] * UNSEEN.powi((k - known) as i32)
    }
}

/// One sequence that could have drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    acceptance: Acceptance,
    /// Deepest it may go: rows, context, room in the answer.
    pub(crate) limit: usize,
    /// Whether its drafts cost no draft pass.
    pub(crate) free: bool,
    /// The answer: how deep it goes.
    pub(crate) depth: usize,
    /// While choosing: the depth on trial, and the chance that one draft more becomes text.
    trial: (usize, f32),
}

impl Candidate {
    /// A candidate that goes as deep as it may.
    pub(crate) fn new(acceptance: Acceptance, limit: usize, free: bool) -> Self {
        Self { acceptance, limit, free, depth: limit, trial: (0, acceptance.given(0)) }
    }

    /// Takes one draft more on trial.
    fn deepen(&mut self) {
        let (depth, chance) = self.trial;
        self.trial = (depth + 1, chance * self.acceptance.given(depth + 1));
    }
}

/// Chooses the depths of a batch, in which `others` have no drafts, whose steps hold `rows` rows, at its longest `context`.
pub(crate) fn choose(
    candidates: &mut [Candidate],
    costs: &CostTable,
    [others, rows]: [usize; 2],
    context: usize,
) {
    let (band, sequences) = (band(context), others + candidates.len());
    for candidate in &mut *candidates {
        (candidate.depth, candidate.trial) = (0, (0, candidate.acceptance.given(0)));
    }
    // A round that drafts is longer for everybody. So what one without takes is seen, not drafted: as long as drafts are made nothing
    // would tell that it was thought too dear.
    if sequences > 1 && !costs.knows(sequences, band) {
        return;
    }
    let plain = sequences as f32 / costs.step(sequences, band);
    let (mut tokens, mut best) = (sequences as f32, GAIN * plain);
    // The best that drafts could do if all were right.
    let mut hope: f32 = 0.0;
    let (mut entries, mut drafting) = ([0; MAX_DEPTH], 0.0);
    for drafts in 1..=rows.saturating_sub(sequences) {
        let open = candidates.iter_mut().filter(|c| c.trial.0 < c.limit.min(MAX_DEPTH));
        let likeliest = open.max_by(|a, b| a.trial.1.total_cmp(&b.trial.1));
        let Some(candidate) = likeliest else { break };
        let chance = candidate.trial.1;
        if !candidate.free {
            let pass = &mut entries[candidate.trial.0];
            *pass += 1;
            drafting += costs.pass(*pass) - costs.pass(*pass - 1);
        }
        candidate.deepen();
        tokens += chance;
        let time = costs.step(sequences + drafts, band) + drafting;
        hope = hope.max((sequences + drafts) as f32 / time);
        if tokens / time > best {
            best = tokens / time;
            candidates.iter_mut().for_each(|c| c.depth = c.trial.0);
        }
    }
    look_again(candidates, costs, [sequences, rows, band], hope > plain);
}

/// Lets sequences that were parked for long try one draft. Where no draft could pay even if it were right, prices alone
/// can change that, and they are asked for rarely.
fn look_again(
    candidates: &mut [Candidate],
    costs: &CostTable,
    [sequences, rows, band]: [usize; 3],
    could_pay: bool,
) {
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
    use std::time::Duration;

    fn table(step: impl Fn(usize) -> f32, draft: f32) -> CostTable {
        let mut costs = CostTable::new(32, 4);
        for rows in 1..=32 {
            costs.note_calibration(rows, Duration::from_secs_f32(step(rows)));
            costs.note_step(rows, 0, Duration::from_secs_f32(step(rows)));
        }
        for entries in 1..=4 {
            costs.note_draft_calibration(1, entries, Duration::from_secs_f32(draft));
        }
        costs
    }

    fn known(chance: f32) -> Acceptance {
        Acceptance {
            chance: [chance; MAX_DEPTH],
            seen: [9; MAX_DEPTH],
            ..Acceptance::new(&Usual::new())
        }
    }

    fn depth(chance: f32, costs: &CostTable, limit: usize) -> usize {
        let acceptance = known(chance);
        let mut one = [Candidate::new(acceptance, limit, false)];
        choose(&mut one, costs, [0, 32], 0);
        one[0].depth
    }

    /// The depths of some rounds in which every draft is right.
    fn rounds(mut acceptance: Acceptance, costs: &CostTable, rounds: usize) -> Vec<usize> {
        let mut depths = Vec::new();
        for _ in 0..rounds {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, costs, [0, 32], 0);
            depths.push(one[0].depth);
            acceptance.note(one[0].depth, one[0].depth);
        }
        depths
    }

    #[test]
    fn likely_drafts_that_cost_little_go_deep_and_unlikely_ones_park() {
        let cheap = table(|rows| 1.0 + 0.02 * rows as f32, 0.1);
        assert!(depth(0.9, &cheap, 8) >= 4);
        assert_eq!(depth(0.05, &cheap, 8), 0);
        assert_eq!(depth(0.9, &cheap, 2), 2, "never past the limit");
        let dear = table(|rows| rows as f32, 0.5);
        assert_eq!(depth(0.95, &dear, 8), 0, "when rows cost full price nothing is gained");
    }

    #[test]
    fn a_batch_gives_its_rows_to_the_likeliest_drafts() {
        let costs = table(|rows| 1.0 + 0.15 * rows as f32, 0.02);
        let with = |chance| {
            let acceptance = known(chance);
            Candidate::new(acceptance, 8, false)
        };
        let mut two = [with(0.95), with(0.1)];
        choose(&mut two, &costs, [0, 32], 0);
        assert!(two[0].depth > two[1].depth, "{two:?}");
        let mut tight = [with(0.95), with(0.95)];
        choose(&mut tight, &costs, [0, 3], 0);
        assert!(tight[0].depth + tight[1].depth <= 1, "three rows hold two tokens and one draft");
    }

    #[test]
    fn several_sequences_first_see_what_a_round_without_drafts_takes() {
        let mut costs = CostTable::new(32, 4);
        let price = |rows: usize| Duration::from_secs_f32(1.0 + 0.02 * rows as f32);
        (1..=32).for_each(|rows| costs.note_calibration(rows, price(rows)));
        let depths = |costs: &CostTable| {
            let mut two = [0.9; 2].map(|chance| Candidate::new(known(chance), 8, false));
            choose(&mut two, costs, [0, 32], 0);
            two.map(|c| c.depth)
        };
        assert!(depth(0.9, &costs, 8) > 0, "alone it harms nobody");
        assert_eq!(depths(&costs), [0; 2]);
        costs.note_step(2, 0, price(2));
        assert!(depths(&costs).iter().all(|&depth| depth > 0));
    }

    #[test]
    fn those_without_drafts_have_a_row_too() {
        // Five rows cost what eight do, and much more than four.
        let mut costs = CostTable::new(32, 4);
        let price = |rows: usize| Duration::from_secs(if rows <= 4 { 1 } else { 4 });
        (1..=32).for_each(|rows| costs.note_calibration(rows, price(rows)));
        let depth = |costs: &CostTable, others: usize| {
            let mut one = [Candidate::new(known(0.9), 1, true)];
            choose(&mut one, costs, [others, 32], 0);
            one[0].depth
        };
        assert_eq!(depth(&costs, 2), 0, "a round of three was not seen yet");
        (1..=4).for_each(|rows| costs.note_step(rows, 0, price(rows)));
        assert_eq!(depth(&costs, 2), 1);
        assert_eq!(depth(&costs, 3), 0, "its row would be the fifth");
    }

    #[test]
    fn where_rows_cost_in_stairs_a_stair_is_taken_whole_or_not_at_all() {
        let stairs = |high: f32| table(move |rows| if rows <= 4 { 1.0 } else { high }, 0.0);
        let four = || [0.9; 4].map(|chance| Candidate::new(known(chance), 8, false));
        for (high, pays) in [(1.5, true), (4.0, false)] {
            let mut batch = four();
            choose(&mut batch, &stairs(high), [0, 8], 0);
            let depths = batch.map(|c| c.depth);
            assert_eq!(depths, if pays { [1; 4] } else { [0; 4] }, "{high}");
        }
        let mut batch = four();
        batch[0].acceptance.parked_rounds = PROBE_AT_LATEST * 4;
        choose(&mut batch, &stairs(4.0), [0, 8], 0);
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
                choose(&mut one, &costs, [0, 32], 0);
                acceptance.note(one[0].depth, 0);
                one[0].depth > 0
            });
            assert_eq!(tried, Some(rounds));
        }
    }

    #[test]
    fn a_pass_of_many_entries_has_a_price_of_its_own() {
        let mut costs = table(|rows| 1.0 + 0.1 * rows as f32, 0.0);
        for (entries, ms) in [(1, 10), (4, 3000)] {
            costs.note_draft_calibration(1, entries, Duration::from_millis(ms));
        }
        let alone = {
            let mut one = [Candidate::new(known(0.9), 1, false)];
            choose(&mut one, &costs, [0, 32], 0);
            one[0].depth
        };
        let mut four = [0.9; 4].map(|chance| Candidate::new(known(chance), 1, false));
        choose(&mut four, &costs, [0, 32], 0);
        assert_eq!(alone, 1);
        assert!(four.iter().any(|c| c.depth == 0), "{four:?}");
    }

    #[test]
    fn a_parked_sequence_looks_again_from_time_to_time() {
        // A draft would pay if it were right, but none is.
        let costs = table(|rows| 0.25 + 0.75 * rows as f32, 0.05);
        let mut acceptance = Acceptance::new(&Usual::new());
        let mut probes = 0;
        for _ in 0..1000 {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, &costs, [0, 32], 0);
            probes += usize::from(one[0].depth > 0);
            acceptance.note(one[0].depth, 0);
        }
        // After 16, 32, 64, 128, 256 and 512 rounds.
        assert!((5..=7).contains(&probes), "{probes}");
    }

    #[test]
    fn one_right_draft_is_no_reason_to_look_more_often() {
        // Nine drafts in ten would have to be right, and every other one is.
        let costs = table(|rows| 0.25 + 0.75 * rows as f32, 0.05);
        let (mut acceptance, mut probes) = (known(0.5), 0);
        for _ in 0..1000 {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, &costs, [0, 32], 0);
            probes += one[0].depth;
            acceptance.note(one[0].depth, probes % 2 * one[0].depth);
        }
        // Twice after each of 16, 32, 64, 128 and 256 rounds.
        assert!((9..=12).contains(&probes), "{probes}");
    }

    #[test]
    fn deeper_drafts_wait_until_shallower_ones_are_known() {
        let cheap = table(|_| 1.0, 0.0);
        let mut acceptance = Acceptance::new(&Usual::new());
        for deepest in [1, 3, 7, 8] {
            let mut one = [Candidate::new(acceptance, 8, false)];
            choose(&mut one, &cheap, [0, 32], 0);
            assert_eq!(one[0].depth, deepest);
            acceptance.note(deepest, deepest);
            acceptance.note(deepest, deepest);
        }
    }

    #[test]
    fn a_depth_behind_a_stair_is_found() {
        // Three rows cost what four do.
        let costs = table(|rows| [1.0, 1.2, 1.9, 1.9, 3.2][rows.min(5) - 1], 0.1);
        let depths = rounds(Acceptance::new(&Usual::new()), &costs, 40);
        assert_eq!(depths[39], 3, "{depths:?}");
    }

    #[test]
    fn an_unlucky_start_is_forgotten() {
        let costs = table(|rows| [1.0, 1.2, 1.4, 1.5, 3.2][rows.min(5) - 1], 0.1);
        let mut acceptance = Acceptance::new(&Usual::new());
        [1, 1, 1, 1].into_iter().for_each(|depth| acceptance.note(depth, depth));
        [2, 2, 2].into_iter().for_each(|depth| acceptance.note(depth, 1));
        let depths = rounds(acceptance, &costs, 60);
        assert_eq!((depths[0], depths[59]), (1, 3), "{depths:?}");
    }

    #[test]
    fn a_sequence_begins_with_what_is_usual() {
        let costs = table(|rows| [1.0, 1.2, 1.4, 1.5, 3.2][rows.min(5) - 1], 0.1);
        let first = |rounds: &[(usize, usize)]| {
            let mut usual = Usual::new();
            for _ in 0..30 {
                rounds.iter().for_each(|&(drafted, accepted)| usual.note(drafted, accepted));
            }
            let mut one = [Candidate::new(Acceptance::new(&usual), 8, false)];
            choose(&mut one, &costs, [0, 32], 0);
            one[0].depth
        };
        assert_eq!(first(&[]), 1, "nothing is known");
        assert_eq!(first(&[(3, 3), (3, 2)]), 3);
        assert_eq!(first(&[(1, 0)]), 0);
    }

    #[test]
    fn one_hiccup_does_not_park() {
        let mut costs = table(|rows| 1.0 + 0.2 * rows as f32, 0.3);
        assert_eq!(depth(0.85, &costs, 1), 1);
        for rows in [1, 2].repeat(9) {
            costs.note_step(rows, 0, Duration::from_secs_f32(1.0 + 0.2 * rows as f32));
        }
        costs.note_step(2, 0, Duration::from_secs(9));
        assert_eq!(depth(0.85, &costs, 1), 1);
    }
}
