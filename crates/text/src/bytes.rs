//! What single tokens stand for, for those who must know before the text is decoded.

use crate::detokenizer::{byte_token, extend_with_bytes};
use crate::tokenizer::{DecodeStyle, Tokenizer};
use forerun_base::Token;

/// SentencePiece's space.
const SPACE: char = '\u{2581}';

impl Tokenizer {
    /// The bytes a token adds in the middle of a text; `None` where there is no such token. Half characters are told as
    /// they are. At the start of a text a decoder may strip a space that is told here.
    pub fn token_bytes(&self, token: Token) -> Option<Vec<u8>> {
        let spelling = self.token_text(token)?;
        if self.is_added(token) {
            return Some(spelling.into_bytes());
        }
        let mut bytes = Vec::new();
        match self.decode_style() {
            DecodeStyle::Bytes | DecodeStyle::Text { byte_level: true, .. } => {
                extend_with_bytes(&mut bytes, &spelling);
            }
            DecodeStyle::Text { byte_fallback, .. } => match byte_token(&spelling) {
                Some(byte) if byte_fallback => bytes.push(byte),
                _ => bytes.extend_from_slice(spelling.replace(SPACE, " ").as_bytes()),
            },
        }
        Some(bytes)
    }
}
