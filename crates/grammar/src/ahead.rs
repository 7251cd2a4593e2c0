//! Masks of the states that were looked at of late.

use forerun_base::Token;

/// States that are kept. A mask of a large vocabulary has 32 KiB.
const MOST: usize = 16;

/// A way of tokens and the mask at each of its places. A mask is asked for when a draft is drawn, and again, by the same
/// way, when the draft is checked.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// Tokens that lead from each place to the next.
    way: Vec<Token>,
    /// By place, one more than there are tokens; empty where it is not known.
    masks: Vec<Vec<u32>>,
    /// Where the answer stands.
    at: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { way: Vec::new(), masks: vec![Vec::new()], at: 0 }
    }
}

impl Ahead {
    /// The mask of the present place, to be filled where it is empty.
    pub(crate) fn here(&mut self) -> &mut Vec<u32> {
        &mut self.masks[self.at]
    }

    /// Goes one token on.
    pub(crate) fn step(&mut self, token: Token) {
        if self.way.get(self.at) != Some(&token) {
            self.way.truncate(self.at);
            self.masks.truncate(self.at + 1);
            self.way.push(token);
            self.masks.push(Vec::new());
        }
        self.at += 1;
        if self.at >= MOST {
            self.way.drain(..self.at);
            self.masks.drain(..self.at);
            self.at = 0;
        }
    }

    /// Goes back; to a place that was forgotten with nothing known of it.
    pub(crate) fn back(&mut self, count: usize) {
        match self.at.checked_sub(count) {
            Some(at) => self.at = at,
            None => *self = Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever way is gone, what is known of a place is what was learned there.
        #[test]
        fn no_mask_of_another_place_is_taken_for_this_ones(
            moves in prop::collection::vec((0u32..3, 0usize..6), 0..200),
        ) {
            let (mut ahead, mut taken) = (Ahead::default(), Vec::new());
            for (token, back) in moves {
                if back > 3 {
                    let back = back.min(taken.len());
                    ahead.back(back);
                    taken.truncate(taken.len() - back);
                } else {
                    ahead.step(token);
                    taken.push(token);
                }
                let here = ahead.here();
                if here.is_empty() {
                    here.push(taken.len() as u32);
                    here.extend(&taken);
                }
                prop_assert_eq!(here[0] as usize, taken.len());
                prop_assert_eq!(&here[1..], &taken[..]);
            }
        }
    }
}
