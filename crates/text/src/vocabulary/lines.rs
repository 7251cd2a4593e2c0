//! Runs of line breaks that stay whole, said with merges and cuts.
//!
//! A run of line breaks is a piece of its own. If it is a token it stays whole; any other is
//! merged like all text, which leaves it in single breaks. So merges are added for all runs up to the
//! longest token, and longer runs are cut before each break, where no merge can reach them.

use super::Vocabulary;
use super::check::broken;
use crate::error::TextError;
use crate::tokenizer::guarded;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

/// Gemma has tokens of up to 31 line breaks.
const MAX_RUN: usize = 64;

impl Vocabulary {
    /// `bpe` with merges of line breaks, and where to cut runs of them.
    pub(super) fn with_lines(&self, bpe: BPE) -> Result<(BPE, Option<String>), TextError> {
        let breaks = |text: &str| !text.is_empty() && text.bytes().all(|b| b == b'\n');
        let mut runs: Vec<usize> =
            self.tokens.iter().filter(|text| breaks(text)).map(String::len).collect();
        runs.sort_unstable();
        let longest = runs.last().copied().unwrap_or(0);
        if longest > MAX_RUN || runs.len() != longest {
            return broken(format!(
                "its runs of line breaks are {} tokens, up to {longest} long",
                runs.len()
            ));
        }
        if longest < 2 {
            return Ok((bpe, None));
        }
        if self.merges.iter().any(|merge| breaks(&merge.replacen(' ', "", 1))) {
            for run in &runs {
                let pieces = guarded("writing", || bpe.tokenize(&"\n".repeat(*run)))?;
                if pieces.len() != 1 {
                    return broken(format!("its merges do not make the token of {run} lines"));
                }
            }
            return Ok((bpe, None));
        }
        let vocab: Vocab = bpe.get_vocab().into_iter().collect();
        let mut merges = self.pairs(&vocab)?;
        merges.extend(all_pairs(longest));
        let options = BPE::builder().byte_fallback(bpe.byte_fallback);
        let bpe = guarded("writing", || options.vocab_and_merges(vocab, merges).build())?;
        Ok((bpe, Some(inside_longer(longest))))
    }
}

/// All ways to put together a run of at most `longest` breaks.
fn all_pairs(longest: usize) -> Merges {
    let run = |length: usize| "\n".repeat(length);
    let pairs = |sum: usize| (1..sum).map(move |left| (run(left), run(sum - left)));
    (2..=longest).flat_map(pairs).collect()
}

/// Matches the nothing between any two breaks of a run longer than `longest`: with `n` before and the
/// rest behind.
fn inside_longer(longest: usize) -> String {
    let place = |n: usize| format!(r"(?<=\n{{{n}}})(?=\n{{{}}})", longest + 1 - n);
    (1..=longest).map(place).collect::<Vec<String>>().join("|")
}
