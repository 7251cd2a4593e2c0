//! What must hold of a vocabulary before anything is built from it.

use super::{TokenKind, Vocabulary};
use crate::error::TextError;
use std::collections::HashMap;

/// The largest published vocabularies have about 262 thousand tokens.
const MAX_TOKENS: usize = 1 << 22;
const MAX_BYTES: usize = 256 << 20;
/// Longer than any token; runs of spaces and separator lines have a few hundred bytes.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// Tokens that are searched for in every text. Gemma has about 6 500, byte vocabularies fewer.
const MAX_MATCHED: usize = 1 << 17;
const MAX_MATCHED_BYTES: usize = 16 << 20;

impl Vocabulary {
    /// Checks the lists and returns the tokens as they are used: none empty, no two alike.
    pub(super) fn checked_tokens(&self) -> Result<Vec<String>, TextError> {
        self.check_lists()?;
        self.check_ids()?;
        let mut places = HashMap::with_capacity(self.tokens.len());
        let mut tokens = Vec::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate() {
            if text.len() > MAX_TOKEN_BYTES {
                let bytes = text.len();
                return broken(format!(
                    "token {id} has {bytes} bytes; at most {MAX_TOKEN_BYTES} are accepted"
                ));
            }
            if let Some(first) = places.insert(text.as_str(), id).filter(|_| !text.is_empty()) {
                let text = shown(text);
                return broken(format!("tokens {first} and {id} are both {text}"));
            }
            // An empty text would match everywhere; the name is llama.cpp's.
            tokens.push(if text.is_empty() { format!("[EMPTY_{id}]") } else { text.clone() });
        }
        for id in (0..tokens.len()).filter(|&id| self.tokens[id].is_empty()) {
            if let Some(other) = places.get(tokens[id].as_str()) {
                return broken(format!("token {id} is empty and token {other} is its stand-in"));
            }
        }
        Ok(tokens)
    }

    fn check_lists(&self) -> Result<(), TextError> {
        let count = self.tokens.len();
        if count == 0 {
            return broken("it has no tokens");
        }
        if count > MAX_TOKENS {
            return broken(format!("it has {count} tokens; at most {MAX_TOKENS} are accepted"));
        }
        let bytes = self.tokens.iter().chain(&self.merges).map(String::len);
        if bytes.fold(0, usize::saturating_add) > MAX_BYTES {
            return broken(format!("its texts have more than {MAX_BYTES} bytes"));
        }
        for (name, length) in [("token_type", self.kinds.len()), ("scores", self.scores.len())] {
            if length != 0 && length != count {
                return broken(format!("`{name}` has {length} entries for {count} tokens"));
            }
        }
        let matched = (0..count).filter(|&id| self.kind(id).is_matched());
        let lengths: Vec<usize> = matched.map(|id| self.tokens[id].len()).collect();
        let total: usize = lengths.iter().sum();
        if lengths.len() > MAX_MATCHED || total > MAX_MATCHED_BYTES {
            let number = lengths.len();
            return broken(format!(
                "it has {number} control and user-defined tokens of {total} bytes; \
                 at most {MAX_MATCHED} of {MAX_MATCHED_BYTES} are accepted"
            ));
        }
        Ok(())
    }

    pub(super) fn check_ids(&self) -> Result<(), TextError> {
        let ids = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unknown),
            ("padding_token_id", self.padding),
            ("seperator_token_id", self.separator),
            ("mask_token_id", self.mask),
        ];
        for (name, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= self.tokens.len()) {
                let count = self.tokens.len();
                return broken(format!("`{name}` is {id}, but there are {count} tokens"));
            }
        }
        Ok(())
    }
}

impl TokenKind {
    /// Whether such a token is found in a text before anything else is.
    pub(super) fn is_matched(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

/// The vocabulary cannot be used; `why` completes the sentence.
pub(super) fn broken<T>(why: impl Into<String>) -> Result<T, TextError> {
    Err(TextError::Vocabulary(why.into()))
}

/// A text from the file in an error, shortened so that a hostile one cannot flood a log.
pub(super) fn shown(text: &str) -> String {
    const SHOWN: usize = 40;
    let mut start: String = text.chars().take(SHOWN).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("`{}`", start.escape_debug())
}
