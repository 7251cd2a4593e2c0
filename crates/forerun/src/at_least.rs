//! A least length of an answer: until it is reached, no token may end it.

use forerun_base::Token;
use forerun_engine::{Allowed, Constraint};

/// Leaves the end tokens out of the first tokens of an answer.
pub(crate) struct AtLeast {
    tokens: usize,
    taken: usize,
    ends: Vec<Token>,
    vocabulary: usize,
}

impl AtLeast {
    /// For answers of at least so many tokens.
    pub(crate) fn new(tokens: usize, ends: Vec<Token>, vocabulary: usize) -> Self {
        Self { tokens, taken: 0, ends, vocabulary }
    }

    fn is_short(&self) -> bool {
        self.taken < self.tokens
    }
}

impl Constraint for AtLeast {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if !self.is_short() {
            return Ok(Allowed::Any);
        }
        let (whole, rest) = (self.vocabulary / 32, self.vocabulary % 32);
        mask[..whole].fill(u32::MAX);
        if rest > 0 {
            mask[whole] = (1 << rest) - 1;
        }
        for &end in &self.ends {
            mask[end as usize / 32] &= !(1 << (end % 32));
        }
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        let fits = !self.is_short() || !self.ends.contains(&token);
        self.taken += usize::from(fits);
        fits
    }

    fn back(&mut self, count: usize) {
        self.taken -= count;
    }

    fn forced(&mut self, _most: usize, _tokens: &mut Vec<Token>) {}

    fn is_done(&mut self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_may_come_once_the_answer_is_long_enough_and_not_before() {
        let mut least = AtLeast::new(2, vec![3, 33], 34);
        let mut mask = [0; 2];
        assert_eq!(least.mask(&mut mask), Ok(Allowed::Some));
        assert_eq!(mask, [!(1 << 3), 1]);
        assert!(!least.take(3) && least.take(4) && least.take(5));
        assert_eq!(least.mask(&mut [0; 2]), Ok(Allowed::Any));
        assert!(least.take(3));
        least.back(2);
        assert!(!least.take(33), "one token is too few again");
    }
}
