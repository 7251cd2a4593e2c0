//! How likely drafts are to be accepted, by position in the round.
//!
//! One estimator serves one sequence and all of them: counts of outcomes that decay with every round, on top of a
//! prior. So a position that is no longer tried returns to its prior, and can be tried again after an unlucky start.

use super::MAX_DEPTH;
use super::tuning::Tuning;
use crate::sequence::DraftSource;

/// Chance of acceptance by position, given that the drafts before it were accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    /// The prior of a position without outcomes: a chance, or none where it follows from the position before it.
    expected: [Option<f32>; MAX_DEPTH],
    /// Decayed counts of outcomes.
    accepted: [f32; MAX_DEPTH],
    tried: [f32; MAX_DEPTH],
    /// Rounds that an outcome is remembered.
    memory: f32,
    /// Cached results of `chance`, recomputed when an outcome is recorded: a decision asks for many.
    chance: [f32; MAX_DEPTH],
    tuning: Tuning,
}

impl Acceptance {
    /// Of all sequences together, before there was any.
    pub(crate) fn shared(tuning: Tuning) -> Self {
        let mut expected = [None; MAX_DEPTH];
        expected[0] = Some(tuning.first_chance);
        Self::expecting(expected, tuning.shared_memory, tuning)
    }

    /// Of a sequence that begins, which is expected to be like all before it.
    pub(crate) fn like(shared: &Self) -> Self {
        Self::expecting(shared.chance.map(Some), shared.tuning.memory, shared.tuning)
    }

    /// Of drafts that cannot be rejected.
    pub(crate) fn always_accepted() -> Self {
        Self::expecting([Some(1.0); MAX_DEPTH], 1.0, Tuning::DEFAULT)
    }

    fn expecting(expected: [Option<f32>; MAX_DEPTH], memory: f32, tuning: Tuning) -> Self {
        let none = [0.0; MAX_DEPTH];
        let mut this = Self { expected, accepted: none, tried: none, memory, chance: none, tuning };
        this.fill();
        this
    }

    /// Records the outcome of a round. One without drafts tells nothing, but what was known decays.
    pub(crate) fn note(&mut self, drafted: usize, accepted: usize) {
        let keep = 1.0 - 1.0 / self.memory;
        for k in 0..MAX_DEPTH {
            self.accepted[k] *= keep;
            self.tried[k] *= keep;
        }
        for k in 0..drafted.min(accepted + 1).min(MAX_DEPTH) {
            self.tried[k] += 1.0;
            self.accepted[k] += if k < accepted { 1.0 } else { 0.0 };
        }
        self.fill();
    }

    fn fill(&mut self) {
        let weight = self.tuning.prior_weight;
        let mut before = 1.0;
        for k in 0..MAX_DEPTH {
            let expected = self.expected[k].unwrap_or(before * self.tuning.next_chance);
            before = (weight * expected + self.accepted[k]) / (weight + self.tried[k]);
            self.chance[k] = before;
        }
    }

    /// The chance that draft number `k` (from 0) is accepted, given those before it.
    pub(crate) fn chance(&self, k: usize) -> f32 {
        self.chance[k.min(MAX_DEPTH - 1)]
    }

    /// An optimistic chance: near the estimate where outcomes are many, near 1 where they are few or long ago.
    pub(crate) fn hope(&self, k: usize) -> f32 {
        let k = k.min(MAX_DEPTH - 1);
        self.chance[k] + (1.0 - self.chance[k]) / (1.0 + self.tried[k])
    }
}

/// Acceptance of the head's drafts and of those from the text, which have little to do with each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptanceBySource {
    pub(crate) head: Acceptance,
    pub(crate) text: Acceptance,
}

impl AcceptanceBySource {
    /// Of all sequences together, before there was any.
    pub(crate) fn shared(tuning: Tuning) -> Self {
        Self { head: Acceptance::shared(tuning), text: Acceptance::shared(tuning) }
    }

    /// Of a sequence that begins.
    pub(crate) fn like(shared: &Self) -> Self {
        Self { head: Acceptance::like(&shared.head), text: Acceptance::like(&shared.text) }
    }

    /// Records the outcome of a round. Drafts that a constraint forces are always accepted and tell nothing.
    pub(crate) fn note(&mut self, source: DraftSource, drafted: usize, accepted: usize) {
        match source {
            DraftSource::Head => self.head.note(drafted, accepted),
            DraftSource::Text => self.text.note(drafted, accepted),
            DraftSource::Constraint => {}
        }
    }
}

#[cfg(test)]
impl Acceptance {
    /// Records the outcome of one position, by itself.
    pub(super) fn note_position(&mut self, k: usize, accepted: bool) {
        self.tried[k] += 1.0;
        self.accepted[k] += if accepted { 1.0 } else { 0.0 };
        self.fill();
    }

    /// Lets counts decay without a change of the chances.
    pub(super) fn fade(&mut self, keep: f32) {
        self.tried.iter_mut().for_each(|tried| *tried *= keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Acceptance {
        Acceptance::shared(Tuning::DEFAULT)
    }

    #[test]
    fn outcomes_move_the_position_they_belong_to() {
        let mut acceptance = Acceptance::like(&shared());
        let before = acceptance;
        (0..20).for_each(|_| acceptance.note(3, 1));
        assert!(acceptance.chance(0) > 0.9 && acceptance.chance(1) < 0.2, "{acceptance:?}");
        assert_eq!(acceptance.chance(2), before.chance(2), "never reached");
    }

    #[test]
    fn what_is_no_longer_tried_returns_to_what_is_expected() {
        let mut acceptance = Acceptance::like(&shared());
        let expected = acceptance.chance(1);
        (0..9).for_each(|_| acceptance.note(2, 1));
        assert!(acceptance.chance(1) < 0.5 * expected);
        (0..400).for_each(|_| acceptance.note(1, 1));
        assert!((acceptance.chance(1) - expected).abs() < 0.02);
    }

    #[test]
    fn a_sequence_begins_with_what_others_had_and_unseen_positions_follow_the_one_before() {
        let mut all = shared();
        (0..300).for_each(|i| all.note(1, usize::from(i % 10 > 0)));
        let one = Acceptance::like(&all);
        assert!((one.chance(0) - 0.9).abs() < 0.03);
        assert!((one.chance(1) - 0.9 * one.chance(0)).abs() < 1e-4);
    }

    #[test]
    fn hope_falls_with_outcomes_and_grows_with_their_age() {
        let mut acceptance = Acceptance::like(&shared());
        let fresh = acceptance.hope(0);
        (0..10).for_each(|_| acceptance.note(1, 0));
        let known = acceptance.hope(0);
        (0..100).for_each(|_| acceptance.note(0, 0));
        assert!(fresh > 0.99 && known < 0.3 && acceptance.hope(0) > 0.6);
    }
}
