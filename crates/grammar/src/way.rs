//! Places of an answer that were looked at of late, and what is known of them.

use forerun_base::Token;
use std::sync::Arc;

/// Places behind the present one that are kept at least until the answer is sure of more. A mask of a large
/// vocabulary has 32 KiB.
const MOST: usize = 16;

/// What a grammar says at a place.
#[derive(Debug)]
pub(crate) struct NextTokens {
    /// Tokens that may come, or why that cannot be told.
    pub(crate) mask: Result<Vec<u32>, String>,
    /// Whether the answer is whole and nothing may follow.
    pub(crate) done: bool,
    /// Tokens that must come.
    pub(crate) forced: Vec<Token>,
}

impl NextTokens {
    /// Whether a token may come.
    pub(crate) fn allows(&self, token: Token) -> bool {
        let word = self.mask.as_ref().ok().and_then(|mask| mask.get(token as usize / 32));
        word.is_some_and(|word| (word >> (token % 32)) & 1 == 1)
    }
}

/// A way of tokens and what is known of each of its places. A mask is requested when a draft is made, and again, by the
/// same way, when the draft is verified.
#[derive(Debug)]
pub(crate) struct TokenPath {
    /// Tokens that lead from each place to the next.
    tokens: Vec<Token>,
    /// By place, one more than there are tokens.
    known: Vec<Option<Arc<NextTokens>>>,
    /// The present place.
    at: usize,
    /// Tells places apart that have the same number.
    turns: u64,
}

/// A place that may be gone when something is learned of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositionId {
    at: usize,
    turns: u64,
}

impl TokenPath {
    pub(crate) fn new(start: Arc<NextTokens>) -> Self {
        Self { tokens: Vec::new(), known: vec![Some(start)], at: 0, turns: 0 }
    }

    /// What is known of the present place.
    pub(crate) fn here(&self) -> Option<&Arc<NextTokens>> {
        self.known[self.at].as_ref()
    }

    /// The present place.
    pub(crate) fn place(&self) -> PositionId {
        PositionId { at: self.at, turns: self.turns }
    }

    /// Keeps what was learned of a place, if it is still one.
    pub(crate) fn learn(&mut self, place: PositionId, learned: Arc<NextTokens>) {
        if place.turns == self.turns
            && let Some(known) = self.known.get_mut(place.at)
        {
            *known = Some(learned);
        }
    }

    /// Goes one token on.
    pub(crate) fn step(&mut self, token: Token) {
        if self.tokens.get(self.at) != Some(&token) {
            if self.tokens.len() > self.at {
                self.turns += 1;
            }
            self.tokens.truncate(self.at);
            self.known.truncate(self.at + 1);
            self.tokens.push(token);
            self.known.push(None);
        }
        self.at += 1;
    }

    /// Goes back; to a place that was forgotten with nothing known of it.
    pub(crate) fn back(&mut self, count: usize) {
        match self.at.checked_sub(count) {
            Some(at) => self.at = at,
            None => {
                self.turns += 1;
                (self.tokens, self.known, self.at) = (Vec::new(), vec![None], 0);
            }
        }
    }

    /// Forgets places far behind the present one, which the answer has come to for sure.
    pub(crate) fn settle(&mut self) {
        if self.at >= MOST {
            self.turns += 1;
            self.tokens.drain(..self.at);
            self.known.drain(..self.at);
            self.at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever way is gone, and however late something is learned, it is known of its own place alone.
        #[test]
        fn no_mask_of_another_place_is_taken_for_this_ones(
            moves in prop::collection::vec((0u32..3, 0usize..8), 0..200),
        ) {
            let learned = |taken: &[Token]| {
                let mask = Ok([&[taken.len() as u32], taken].concat());
                Arc::new(NextTokens { mask, done: false, forced: Vec::new() })
            };
            let (mut way, mut taken) = (TokenPath::new(learned(&[])), Vec::new());
            let mut late = Vec::new();
            for (token, kind) in moves {
                match kind {
                    0..4 => {
                        way.step(token);
                        taken.push(token);
                    }
                    4..6 => {
                        let back = kind.min(taken.len());
                        way.back(back);
                        taken.truncate(taken.len() - back);
                    }
                    6 => way.settle(),
                    _ => late.drain(..).for_each(|(place, learned)| way.learn(place, learned)),
                }
                match way.here() {
                    Some(here) => {
                        let mask = here.mask.as_ref().expect("known");
                        prop_assert_eq!(mask[0] as usize, taken.len());
                        prop_assert_eq!(&mask[1..], &taken[..]);
                    }
                    None => late.push((way.place(), learned(&taken))),
                }
            }
        }
    }
}
