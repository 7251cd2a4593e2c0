//! Drafts from the text itself: what followed the last time these tokens stood in a row.
//!
//! Needs no weights, so every model can speculate. An index of the newest place of each short run of
//! tokens makes a look-up one probe; its size is fixed when the sequence starts.

use forerun_base::Token;

/// Tokens that must agree for a place to be looked at.
const KEY: usize = 3;

/// The newest place after each run of [`KEY`] tokens, by hash; a collision only loses an older place.
#[derive(Clone, Debug, Default)]
pub(crate) struct NgramIndex {
    /// Position after the run, plus one; 0 is empty.
    places: Vec<u32>,
    indexed: usize,
}

impl NgramIndex {
    /// An index for a sequence of up to `len` tokens; one for none never drafts.
    pub(crate) fn new(len: usize) -> Self {
        // The next power of two of nothing would be one.
        let slots = if len == 0 { 0 } else { (2 * len).next_power_of_two() };
        Self { places: vec![0; slots], indexed: 0 }
    }

    /// Writes up to `most` drafts of what follows `tokens`; returns how many tokens agreed before
    /// the place they are taken from (0: no draft).
    pub(crate) fn draft(
        &mut self,
        tokens: &[Token],
        most: usize,
        drafts: &mut Vec<Token>,
    ) -> usize {
        if tokens.len() < KEY || self.places.is_empty() {
            return 0;
        }
        let last = &tokens[tokens.len() - KEY..];
        let place = self.places[self.slot(last)] as usize;
        self.index(tokens);
        if place == 0 || place > tokens.len() {
            return 0;
        }
        let follow = place - 1;
        let before = tokens[..follow].iter().rev();
        let agreed = before.zip(tokens.iter().rev()).take_while(|(a, b)| a == b).count();
        if agreed < KEY {
            return 0;
        }
        drafts.extend(tokens[follow..].iter().take(most));
        agreed
    }

    /// Indexes what came since, the run at the very end included.
    fn index(&mut self, tokens: &[Token]) {
        for end in self.indexed.max(KEY)..=tokens.len() {
            let slot = self.slot(&tokens[end - KEY..end]);
            self.places[slot] = end as u32 + 1;
        }
        self.indexed = tokens.len() + 1;
    }

    fn slot(&self, run: &[Token]) -> usize {
        let mix = |hash: u64, &token: &Token| {
            (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        };
        run.iter().fold(0, mix) as usize & (self.places.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(index: &mut NgramIndex, tokens: &[Token], most: usize) -> (usize, Vec<Token>) {
        let mut drafts = Vec::new();
        (index.draft(tokens, most, &mut drafts), drafts)
    }

    #[test]
    fn a_repeated_run_is_continued_as_before() {
        let mut index = NgramIndex::new(64);
        let text = [1, 2, 3, 4, 5, 6, 7, 9, 2, 3, 4];
        assert_eq!(draft(&mut index, &text[..7], 4), (0, vec![]));
        assert_eq!(draft(&mut index, &text, 2), (3, vec![5, 6]));
    }

    #[test]
    fn the_newest_place_wins_and_a_longer_agreement_is_told() {
        let mut index = NgramIndex::new(64);
        let text = [1, 2, 3, 7, 5, 1, 2, 3, 8, 5, 1, 2, 3];
        assert_eq!(draft(&mut index, &text[..10], 4), (0, vec![]));
        assert_eq!(draft(&mut index, &text, 4), (4, vec![8, 5, 1, 2]));
    }

    #[test]
    fn nothing_is_drafted_from_nothing() {
        let mut index = NgramIndex::new(8);
        assert_eq!(draft(&mut index, &[], 4), (0, vec![]));
        assert_eq!(draft(&mut index, &[1, 2], 4), (0, vec![]));
        assert_eq!(draft(&mut index, &[1, 2, 3], 4), (0, vec![]));
    }

    #[test]
    fn an_index_for_nothing_never_drafts() {
        let mut index = NgramIndex::new(0);
        let tokens = [7; 20];
        let mut drafts = Vec::new();
        for end in 0..tokens.len() {
            assert_eq!(index.draft(&tokens[..end], 8, &mut drafts), 0);
        }
        assert!(drafts.is_empty());
    }
}
