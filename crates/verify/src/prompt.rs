//! VerifyPrompts. Most are made of token ids alone, so that a model without a tokenizer can be verified.

use forerun_base::Token;
use forerun_text::Tokenizer;

const OPENINGS: [&str; 2] = [
    "Once upon a time there was a little fox who lived beside the river. One day the fox",
    "The recipe is simple: take two eggs, a cup of flour and a cup of milk, then",
];

/// More than the middle chunk of 64 and not a multiple of anything.
const LONG: usize = 101;
/// Stands in for an opening where there is no tokenizer.
const SHORT: usize = 17;
/// The part that a looped prompt repeats.
const LOOP: (usize, usize) = (9, 4);

/// What requests begin with.
pub(crate) struct VerifyPrompts {
    /// Unrelated ids.
    pub(crate) long: Vec<Token>,
    /// The same few ids again and again, for the drafter that looks for repetitions.
    pub(crate) looped: Vec<Token>,
    /// One token: no row is read before the first is sampled.
    pub(crate) single: Vec<Token>,
    /// Natural language, on which an MTP head drafts well.
    pub(crate) openings: [Vec<Token>; 2],
}

impl VerifyPrompts {
    pub(crate) fn new(tokenizer: Option<&Tokenizer>, vocabulary: usize, seed: u64) -> Self {
        let mut ids = TokenIdStream::new(vocabulary, seed);
        let part = ids.take(LOOP.0);
        Self {
            long: ids.take(LONG),
            looped: part.repeat(LOOP.1),
            single: ids.take(1),
            openings: OPENINGS.map(|opening| {
                encoded(tokenizer, vocabulary, opening).unwrap_or_else(|| ids.take(SHORT))
            }),
        }
    }
}

/// The opening as tokens the model knows, if it has a tokenizer that can say it.
fn encoded(tokenizer: Option<&Tokenizer>, vocabulary: usize, opening: &str) -> Option<Vec<Token>> {
    let tokens = tokenizer?.encode(opening, true).ok()?;
    let known = tokens.iter().all(|&token| (token as usize) < vocabulary);
    (known && !tokens.is_empty()).then_some(tokens)
}

/// Token ids that look random and depend on the seed alone.
pub(crate) struct TokenIdStream {
    state: u64,
    vocabulary: u64,
}

impl TokenIdStream {
    pub(crate) fn new(vocabulary: usize, seed: u64) -> Self {
        Self { state: seed, vocabulary: vocabulary.max(1) as u64 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<Token> {
        (0..count).map(|_| (self.next() % self.vocabulary) as Token).collect()
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
