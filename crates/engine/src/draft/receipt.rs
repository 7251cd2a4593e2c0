//! What speculation did for one answer.

use super::MAX_DEPTH;
use crate::sequence::DraftSource;

/// Counts of one answer's rounds. A round is a step that sampled at least one token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Steps that sampled.
    pub rounds: u64,
    /// Drafts made.
    pub drafted: u64,
    /// Drafts the model agreed with.
    pub accepted: u64,
    /// Drafts made by position in the round.
    pub drafted_at: [u64; MAX_DEPTH],
    /// Drafts accepted by position in the round.
    pub accepted_at: [u64; MAX_DEPTH],
    /// Rounds by number of drafts.
    pub depths: [u64; MAX_DEPTH + 1],
    /// Drafts that came from the text itself.
    pub from_text: u64,
    /// Drafts that the answer's grammar forced.
    pub forced: u64,
    /// Drafts that became text without a check (optimistic mode).
    pub unchecked: u64,
    /// Rounds whose drafts were made with the host in between, since a constraint of the batch says after each draft
    /// what may follow. In all others the device makes a round's drafts on its own.
    pub rounds_with_host: u64,
}

impl Receipt {
    /// Takes a round.
    pub(crate) fn note(&mut self, source: DraftSource, drafted: usize, accepted: usize) {
        self.rounds += 1;
        match source {
            DraftSource::Head => {}
            DraftSource::Text => self.from_text += drafted as u64,
            DraftSource::Constraint => self.forced += drafted as u64,
        }
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.depths[drafted.min(MAX_DEPTH)] += 1;
        self.drafted_at.iter_mut().take(drafted).for_each(|n| *n += 1);
        self.accepted_at.iter_mut().take(accepted).for_each(|n| *n += 1);
    }

    /// Takes drafts that became text without a check.
    pub(crate) fn take_unchecked(&mut self, drafts: usize) {
        self.unchecked += drafts as u64;
    }

    /// Takes a round whose drafts were made with the host in between.
    pub(crate) fn note_host(&mut self) {
        self.rounds_with_host += 1;
    }

    /// Adds the counts of another answer.
    pub fn add(&mut self, other: &Self) {
        fn each(sums: &mut [u64], others: &[u64]) {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        }
        self.rounds += other.rounds;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.from_text += other.from_text;
        self.forced += other.forced;
        self.unchecked += other.unchecked;
        self.rounds_with_host += other.rounds_with_host;
        each(&mut self.drafted_at, &other.drafted_at);
        each(&mut self.accepted_at, &other.accepted_at);
        each(&mut self.depths, &other.depths);
    }

    /// Tokens per round.
    pub fn tokens_per_round(&self) -> f64 {
        let drafted = (self.accepted + self.unchecked) as f64;
        if self.rounds == 0 { 0.0 } else { 1.0 + drafted / self.rounds as f64 }
    }
}
