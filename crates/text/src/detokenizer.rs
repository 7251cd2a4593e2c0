//! Streaming detokenisation: tokens in one by one, text out as soon as it can no longer change.
//!
//! The pieces of all pushes and the finish, joined, are exactly `Tokenizer::decode` of all
//! tokens; no piece ends inside a character. A push costs the same at token ten and at token
//! one hundred thousand:
//!
//! - **Byte-level vocabularies**: a token is bytes, so only the unfinished UTF-8 tail (at most
//!   three bytes) is kept.
//! - **Everything else** (SentencePiece, WordPiece, no decoder): a short window of already
//!   released tokens gives the decoder the context it needs (leading spaces are treated
//!   differently at the start of a text), and the new text is what decoding the window plus the
//!   new tokens adds. A run of byte-fallback tokens is held until it ends, since the decoder
//!   turns the whole run into U+FFFD when one byte of it is wrong.

use crate::error::TextError;
use crate::tokenizer::{DecodeStyle, Tokenizer};
use forerun_base::Token;

/// Turns the tokens of one answer into text as they come.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Special tokens that are not left out.
    shown: Vec<Token>,
    stream: Stream,
}

#[derive(Clone, Debug)]
enum Stream {
    Bytes { tail: Vec<u8> },
    Window(Window),
}

/// The last released tokens and the ones that wait.
#[derive(Clone, Debug)]
struct Window {
    byte_fallback: bool,
    byte_level: bool,
    /// Tokens that leave a trace in the text: released ones as context, then those that wait.
    tokens: Vec<Token>,
    /// The text of the released ones.
    context: String,
}

/// Released tokens kept as context. More than one because a decoder may strip several leading
/// spaces, and a context of nothing but spaces would be stripped as a whole.
const CONTEXT_TOKENS: usize = 16;

impl Detokenizer {
    /// Starts an empty text. `skip_special` leaves special tokens out of it.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        let stream = match tokenizer.decode_style() {
            DecodeStyle::Bytes => Stream::Bytes { tail: Vec::new() },
            DecodeStyle::Text { byte_fallback, byte_level } => Stream::Window(Window {
                byte_fallback,
                byte_level,
                tokens: Vec::new(),
                context: String::new(),
            }),
        };
        Self { tokenizer: tokenizer.clone(), skip_special, shown: Vec::new(), stream }
    }

    /// Shows these tokens even if they are special: marks that mean something in the text.
    #[must_use]
    pub fn showing(mut self, tokens: Vec<Token>) -> Self {
        self.shown = tokens;
        self
    }

    /// Takes one token and returns the text it settles, often the empty string.
    pub fn push(&mut self, token: Token) -> Result<String, TextError> {
        let skip = self.skip_special && !self.shown.contains(&token);
        let Some(spelling) = self.tokenizer.decoded_spelling(token, skip) else {
            return Ok(String::new());
        };
        match &mut self.stream {
            Stream::Bytes { tail } => {
                extend_with_bytes(tail, &spelling);
                Ok(take_settled(tail))
            }
            Stream::Window(window) => {
                window.tokens.push(token);
                if window.byte_fallback && byte_token(&spelling).is_some() {
                    return Ok(String::new());
                }
                window.settle(&self.tokenizer)
            }
        }
    }

    /// Ends the text: what still waited comes out as `decode` would show it.
    pub fn finish(&mut self) -> Result<String, TextError> {
        match &mut self.stream {
            Stream::Bytes { tail } => {
                Ok(String::from_utf8_lossy(&std::mem::take(tail)).into_owned())
            }
            Stream::Window(window) => window.flush(&self.tokenizer),
        }
    }
}

impl Window {
    /// Releases the text of the waiting tokens unless its end may be half a character.
    fn settle(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let text = tokenizer.decode(&self.tokens, false)?;
        if self.byte_level && text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        let piece = self.added_by(&text);
        self.trim_context(tokenizer, text)?;
        Ok(piece)
    }

    fn flush(&mut self, tokenizer: &Tokenizer) -> Result<String, TextError> {
        let text = tokenizer.decode(&self.tokens, false)?;
        let piece = self.added_by(&text);
        self.context = text;
        Ok(piece)
    }

    /// What `text` has beyond the context. Decoders only ever add at the end once byte runs are
    /// whole; for one that does not, the common beginning is the best there is.
    fn added_by(&self, text: &str) -> String {
        if let Some(added) = text.strip_prefix(self.context.as_str()) {
            return added.to_owned();
        }
        let same = text.char_indices().zip(self.context.chars());
        let differs = same.into_iter().find(|((_, a), b)| a != b).map(|((at, _), _)| at);
        text[differs.unwrap_or(text.len())..].to_owned()
    }

    /// Shortens the context to its last tokens, but not to one the decoder would strip away.
    fn trim_context(&mut self, tokenizer: &Tokenizer, text: String) -> Result<(), TextError> {
        self.context = text;
        if self.tokens.len() <= 2 * CONTEXT_TOKENS {
            return Ok(());
        }
        self.tokens.drain(..self.tokens.len() - CONTEXT_TOKENS);
        self.context = tokenizer.decode(&self.tokens, false)?;
        Ok(())
    }
}

/// The byte of a byte-fallback token.
pub(crate) fn byte_token(spelling: &str) -> Option<u8> {
    let hex = spelling.strip_prefix("<0x").and_then(|s| s.strip_suffix('>'));
    hex.filter(|h| h.len() == 2).and_then(|h| u8::from_str_radix(h, 16).ok())
}

/// Appends a byte-level token. As in the library's decoder, a spelling with a character outside
/// the byte alphabet (an added token with a space, say) stands for its own UTF-8 bytes.
pub(crate) fn extend_with_bytes(bytes: &mut Vec<u8>, spelling: &str) {
    let start = bytes.len();
    for c in spelling.chars() {
        let Some(byte) = byte_of(c) else {
            bytes.truncate(start);
            bytes.extend_from_slice(spelling.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// The inverse of GPT-2's byte alphabet: visible Latin-1 stands for itself, the 68 other bytes
/// are numbered from U+0100 in ascending order.
fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(n as u8),
        n @ 0x100..=0x120 => Some((n - 0x100) as u8),
        n @ 0x121..=0x142 => Some((n - 0x121) as u8 + 0x7f),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Takes all text off the front that further bytes cannot change: everything but an unfinished
/// character at the end.
fn take_settled(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut open = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let broken = chunk.invalid();
        if broken.is_empty() {
            continue;
        }
        let at_end = broken.as_ptr_range().end == bytes.as_ptr_range().end;
        if at_end && is_unfinished(broken) {
            open = broken.len();
        } else {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    bytes.drain(..bytes.len() - open);
    text
}

/// Whether more bytes could complete this into a character.
fn is_unfinished(broken: &[u8]) -> bool {
    std::str::from_utf8(broken).is_err_and(|e| e.error_len().is_none())
}
