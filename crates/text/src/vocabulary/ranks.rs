//! Merging by rank that does what merging by score does.
//!
//! Every way to make a token of two others becomes a merge, the highest score first. That is the
//! same as long as no two tokens share a score, since those are merged from left to right,
//! whichever they are, and every character is a token, since ranks are of tokens.

use super::check::{broken, shown};
use super::scores::{SPACE, ScoreMerger};
use crate::error::TextError;
use crate::tokenizer::guarded;
use forerun_base::Token;
use std::collections::HashSet;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges};

/// Bytes looked at in search of merges; real vocabularies need a hundredth.
const MAX_WORK: usize = 1 << 31;

/// One way to make a token.
struct TokenMerge {
    score: f32,
    token: Token,
    /// Bytes of its left part.
    left: usize,
}

impl ScoreMerger {
    /// The same vocabulary with merges; an error where they cannot do what scores do. `added` are
    /// the tokens that are cut out of a text before.
    pub(super) fn ranked(self, added: &[AddedToken]) -> Result<BPE, TextError> {
        let work = self.texts.iter().map(|text| text.len().saturating_mul(text.len()));
        if work.fold(0, usize::saturating_add) > MAX_WORK {
            return broken("its tokens are too long to search them for merges");
        }
        let added: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
        // A text that is merged has no spaces, which have become marks, and no added tokens, unless
        // the marks make one.
        let is_made =
            |text: &str| !text.contains(' ') && (text.contains(SPACE) || !added.contains(text));
        let mut merges = Vec::new();
        for (token, text) in (0..).zip(&self.texts).filter(|(_, text)| is_made(text)) {
            self.find_merges(token, text, &mut merges)?;
        }
        // A stable sort: the ways to make one token stay in their order.
        merges.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.token.cmp(&b.token)));
        for pair in merges.windows(2) {
            if pair[0].score == pair[1].score && pair[0].token != pair[1].token {
                let [a, b] = [&pair[0], &pair[1]].map(|m| shown(&self.texts[m.token as usize]));
                return broken(format!("{a} and {b} have the same score, which ranks cannot say"));
            }
        }
        let byte_fallback = match self.bytes.iter().flatten().count() {
            0 => false,
            256 => true,
            some => return broken(format!("it has {some} of the 256 byte tokens")),
        };
        let parts = |merge: &TokenMerge| {
            let (left, right) = self.texts[merge.token as usize].split_at(merge.left);
            (left.to_owned(), right.to_owned())
        };
        let merges: Merges = merges.iter().map(parts).collect();
        let unknown = self.unknown.and_then(|id| self.text(id)).map(str::to_owned);
        let mut builder =
            BPE::builder().vocab_and_merges(self.ids, merges).byte_fallback(byte_fallback);
        if let Some(unknown) = unknown {
            builder = builder.unk_token(unknown);
        }
        guarded("writing", || builder.build())
    }

    fn find_merges(
        &self,
        token: Token,
        text: &str,
        merges: &mut Vec<TokenMerge>,
    ) -> Result<(), TextError> {
        let mut lefts = Vec::new();
        for (at, _) in text.char_indices().skip(1) {
            let parts = text.split_at(at);
            let (left, right) = (self.id(parts.0), self.id(parts.1));
            if let (Some(left), Some(right)) = (left, right) {
                let is_stand_in =
                    |id: Token| self.unknown == Some(id) || self.bytes.contains(&Some(id));
                if is_stand_in(left) || is_stand_in(right) {
                    let text = shown(text);
                    return broken(format!("{text} is made of a token that stands for another"));
                }
                lefts.push(at);
                continue;
            }
            // A character need not be a token to be merged by score.
            let can_be = |part: &str, id: Option<Token>| id.is_some() || is_char(part);
            if can_be(parts.0, left) && can_be(parts.1, right) {
                let text = shown(text);
                return broken(format!("{text} has a character that is no token"));
            }
        }
        let score = self.scores[token as usize];
        // The longer left part first, as converters of SentencePiece files have it.
        merges.extend(lefts.into_iter().rev().map(|left| TokenMerge { score, token, left }));
        Ok(())
    }
}

fn is_char(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some() && chars.next().is_none()
}
