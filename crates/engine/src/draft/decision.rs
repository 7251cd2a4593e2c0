//! How many drafts are worth their cost.
//!
//! Expected tokens of a round with depth `d` are `1 + a₁ + a₁a₂ + … + a₁…a_d`, where `a_k` is the chance that draft `k`
//! is accepted when those before it were. The round costs a step of `1 + d` rows and `d` draft passes. The depths of a
//! batch are raised one draft at a time, the likeliest first, and the best rate on the way wins, 0 included. Going on
//! past a worse point matters: with tiles the cost of rows is a staircase, and a step of 17 rows may cost what one of
//! 32 does.
//!
//! Exploration: the same search with optimistic chances finds depths worth trying. They are tried as long as the rounds
//! that may be lost to exploration ([`Tuning::exploration`]) allow it. Everything here is a function of its arguments;
//! times decide how fast the text comes, never which.

use super::MAX_DEPTH;
use super::acceptance::Acceptance;
use super::cost::{RoundCosts, band};
use super::tuning::Tuning;

/// One sequence that could have drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    acceptance: Acceptance,
    /// Least and deepest it may go: what the request fixed; rows, context, what is left of the answer.
    least: usize,
    limit: usize,
    /// Whether its drafts cost no draft pass.
    pub(crate) free: bool,
    /// The decision: how deep it goes.
    pub(crate) depth: usize,
    /// While searching: the depth on trial, the chance that one draft more becomes text, and the best depth so far.
    trial: usize,
    chance: f32,
    best: usize,
}

impl Candidate {
    /// A candidate with up to `limit` drafts.
    pub(crate) fn new(acceptance: Acceptance, limit: usize, free: bool) -> Self {
        let limit = limit.min(MAX_DEPTH);
        Self { acceptance, least: 0, limit, free, depth: limit, trial: 0, chance: 0.0, best: 0 }
    }

    /// The same with as many as it may have.
    pub(crate) fn fixed(self) -> Self {
        Self { least: self.limit, ..self }
    }

    /// Whether there is anything to decide.
    pub(crate) fn is_open(&self) -> bool {
        self.least < self.limit
    }

    /// The chance that all of so many drafts are accepted.
    fn reached(&self, depth: usize, outlook: Outlook) -> f32 {
        (0..depth).map(|k| outlook.chance(self, k)).product()
    }

    /// Tokens that so many drafts add.
    fn added(&self, depth: usize, outlook: Outlook) -> f32 {
        (1..=depth).map(|depth| self.reached(depth, outlook)).sum()
    }
}

/// Which chances a search goes by.
#[derive(Clone, Copy, Debug)]
enum Outlook {
    /// Those that outcomes say.
    Expected,
    /// Optimistic ones. Drafts are raised to one more than twice the depth that is expected to pay at
    /// most: a first draft where none does, and past a stair where some do.
    Hoped,
}

impl Outlook {
    fn chance(self, candidate: &Candidate, k: usize) -> f32 {
        match self {
            Self::Expected => candidate.acceptance.chance(k),
            Self::Hoped => candidate.acceptance.hope(k),
        }
    }

    fn limit(self, candidate: &Candidate) -> usize {
        match self {
            Self::Expected => candidate.limit,
            Self::Hoped => candidate.limit.min(2 * candidate.depth + 1).max(candidate.least),
        }
    }
}

/// What a step holds besides the candidates' drafts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepShape {
    /// Sequences that have no drafts.
    pub(crate) others: usize,
    /// Rows that fit.
    pub(crate) rows: usize,
    /// The longest context.
    pub(crate) context: usize,
}

/// Tokens and seconds of a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    tokens: f32,
    seconds: f32,
}

impl Round {
    fn rate(self) -> f32 {
        self.tokens / self.seconds
    }
}

/// Chooses the depths of a batch. Up to `credit` rounds may be lost to learning; returns how many are expected to be.
pub(crate) fn decide(
    candidates: &mut [Candidate],
    costs: &RoundCosts,
    shape: StepShape,
    credit: f32,
    tuning: &Tuning,
) -> f32 {
    let search = Search { costs, shape, sequences: shape.others + candidates.len(), tuning };
    candidates.iter_mut().for_each(|candidate| candidate.depth = candidate.least);
    // A batch that always drafts never times a round without drafts; if that were priced too high, nothing would
    // correct it. So such a round is timed before the first drafts, and again when that was long ago.
    let timed = costs.knows(search.sequences, band(shape.context));
    if search.sequences > 1 && !timed {
        return 0.0;
    }
    search.raise(candidates, Outlook::Expected);
    candidates.iter_mut().for_each(|candidate| candidate.depth = candidate.best);
    search.explore(candidates, credit)
}

/// The search for the best depths of a batch.
struct Search<'a> {
    costs: &'a RoundCosts,
    shape: StepShape,
    sequences: usize,
    tuning: &'a Tuning,
}

impl Search<'_> {
    /// Raises depths draft by draft and leaves each candidate's part of the best point in `best`.
    fn raise(&self, candidates: &mut [Candidate], outlook: Outlook) {
        for candidate in &mut *candidates {
            (candidate.trial, candidate.best) = (candidate.least, candidate.least);
            candidate.chance = candidate.reached(candidate.least + 1, outlook);
        }
        let (first, mut entries) = self.round(candidates, |c| c.least, outlook);
        let fixed: usize = candidates.iter().map(|c| c.least).sum();
        let band = band(self.shape.context);
        let mut tokens = first.tokens;
        let mut drafting = first.seconds - self.costs.step(self.sequences + fixed, band);
        let mut best = self.tuning.least_gain * first.rate();
        for drafts in fixed + 1..=self.shape.rows.saturating_sub(self.sequences) {
            let open = candidates.iter_mut().filter(|c| c.trial < outlook.limit(c));
            let Some(likeliest) = open.max_by(|a, b| a.chance.total_cmp(&b.chance)) else { break };
            if !likeliest.free {
                let (pass, of) = (likeliest.trial + 1, &mut entries[likeliest.trial]);
                *of += 1;
                drafting += self.costs.pass(pass, *of) - self.costs.pass(pass, *of - 1);
            }
            tokens += likeliest.chance;
            likeliest.trial += 1;
            likeliest.chance *= outlook.chance(likeliest, likeliest.trial);
            let seconds = self.costs.step(self.sequences + drafts, band) + drafting;
            let round = Round { tokens, seconds };
            if round.rate() > best {
                best = round.rate();
                candidates.iter_mut().for_each(|c| c.best = c.trial);
            }
        }
    }

    /// The round in which each candidate has so many drafts, and the entries of its draft passes.
    fn round(
        &self,
        candidates: &[Candidate],
        depth: impl Fn(&Candidate) -> usize,
        outlook: Outlook,
    ) -> (Round, [usize; MAX_DEPTH]) {
        let (mut entries, mut drafts) = ([0; MAX_DEPTH], 0);
        let mut tokens = self.sequences as f32;
        for candidate in candidates {
            let depth = depth(candidate);
            drafts += depth;
            tokens += candidate.added(depth, outlook);
            if !candidate.free {
                entries[..depth].iter_mut().for_each(|entries| *entries += 1);
            }
        }
        let passes = entries.iter().enumerate();
        let drafting: f32 = passes.map(|(k, &entries)| self.costs.pass(k + 1, entries)).sum();
        let step = self.costs.step(self.sequences + drafts, band(self.shape.context));
        (Round { tokens, seconds: step + drafting }, entries)
    }

    /// Explores: chooses deeper drafts than are expected to pay, where they would at optimistic chances and the credit
    /// covers the expected loss; returns that loss.
    fn explore(&self, candidates: &mut [Candidate], credit: f32) -> f32 {
        self.raise(candidates, Outlook::Hoped);
        let deeper = |c: &Candidate| c.best.max(c.depth);
        if candidates.iter().all(|c| c.best <= c.depth) {
            return 0.0;
        }
        let (hoped, _) = self.round(candidates, deeper, Outlook::Hoped);
        let (without, _) = self.round(candidates, |c| c.depth, Outlook::Hoped);
        if hoped.rate() <= self.tuning.least_gain * without.rate() {
            return 0.0;
        }
        let (expected, _) = self.round(candidates, |c| c.depth, Outlook::Expected);
        let (tried, _) = self.round(candidates, deeper, Outlook::Expected);
        let lost = (tried.seconds - tried.tokens / expected.rate()) / expected.seconds;
        // A loss that is NaN cannot be afforded.
        if lost.is_nan() || lost > credit {
            return 0.0;
        }
        candidates.iter_mut().for_each(|c| c.depth = deeper(c));
        lost.max(0.0)
    }
}

#[cfg(test)]
mod tests;
