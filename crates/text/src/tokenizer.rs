//! Text to tokens and back, from a `tokenizer.json` or a [`Vocabulary`].
//!
//! A thin wall around the `tokenizers` crate. It bounds the file size, switches off the padding
//! and truncation a file may ask for (a prompt is never cut in silence), and turns a panic
//! inside the library into an error, because a downloaded file is not trusted.

use crate::engine::TokenizerEngine;
use crate::error::TextError;
use crate::expressions;
use crate::file;
use crate::literal::{Literals, Spellings};
use crate::vocabulary::{Rebuilt, Vocabulary};
use forerun_base::Token;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokenizers::DecoderWrapper;

/// The largest published tokenizer files are about 35 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// How much longer the file's replacements may make a text. Real files turn a space into one
/// character of three bytes, once or twice.
const MAX_GROWTH: f64 = 10_000.0;

/// Shorter texts cannot keep an expression busy for long: the library bounds the steps of one match.
const SHORT: usize = 4 << 10;
/// What encoding may take. Without hostile expressions a MiB takes about a second, on a slow machine five.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_PER_MIB: Duration = Duration::from_secs(20);

/// A loaded tokenizer. Cloning is cheap and shares the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<TokenizerInner>,
}

struct TokenizerInner {
    engine: TokenizerEngine,
    special: HashSet<Token>,
    spellings: Spellings,
    vocab_size: usize,
    /// Most bytes of text that one token can stand for; worked out where a long text comes.
    most_bytes: OnceLock<usize>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({} tokens)", self.inner.vocab_size)
    }
}

/// How a run of tokens becomes text, as far as streaming has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeStyle {
    /// Each token is a run of bytes; their concatenation is the text.
    Bytes,
    /// Some other decoder.
    Text {
        /// `<0xHH>` tokens are joined into characters.
        byte_fallback: bool,
        /// Somewhere inside, bytes become text, so a last U+FFFD may be an unfinished character.
        byte_level: bool,
    },
}

impl Tokenizer {
    /// Opens `tokenizer.json` in a model folder.
    pub fn open(folder: &Path) -> Result<Self, TextError> {
        let path = folder.join("tokenizer.json");
        let bytes = file::read(&path, MAX_BYTES)?;
        Self::from_bytes(&bytes)
            .map_err(|e| TextError::Tokenizer(format!("{}: {e}", path.display())))
    }

    /// Builds a tokenizer from the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        if bytes.len() as u64 > MAX_BYTES {
            let (what, bytes) = ("tokenizer.json".to_owned(), bytes.len() as u64);
            return Err(TextError::TooLarge { what, bytes, max: MAX_BYTES });
        }
        expressions::check(bytes)?;
        let library = guarded("loading", || {
            let mut library = tokenizers::Tokenizer::from_bytes(bytes)?;
            library.with_padding(None);
            library.with_truncation(None)?;
            let growth = serde_json::to_value(library.get_normalizer()).map(|n| growth(&n))?;
            if growth > MAX_GROWTH {
                return Err("the normalizer multiplies text without bound".into());
            }
            Ok(library)
        })?;
        Ok(Self::from_engine(TokenizerEngine::File(Box::new(library))))
    }

    /// Rebuilds the tokenizer of a GGUF file from its vocabulary.
    pub fn from_vocabulary(vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let rebuilt = Rebuilt::new(vocabulary)?;
        Ok(Self::from_engine(TokenizerEngine::Rebuilt(Box::new(rebuilt))))
    }

    fn from_engine(engine: TokenizerEngine) -> Self {
        let (special, vocab_size) = (engine.special(), engine.vocab_size());
        let (spellings, most_bytes) = (engine.spellings(), OnceLock::new());
        Self {
            inner: Arc::new(TokenizerInner { engine, special, spellings, vocab_size, most_bytes }),
        }
    }

    /// Text to tokens. Special tokens written in the text are recognised; `add_special` lets the
    /// file add its own (a BOS, say), which a rendered chat already contains.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, TextError> {
        self.encode_bounded(text, &Literals::default(), add_special)
    }

    /// A rendered conversation to tokens: special tokens of the template are recognised, and what `literals` took out
    /// of the messages is text.
    pub fn encode_chat(&self, text: &str, literals: &Literals) -> Result<Vec<Token>, TextError> {
        self.encode_bounded(text, literals, false)
    }

    /// Encodes within a time that no text needs with expressions that are made for text. A longer one is encoded on a
    /// thread of its own, which is told to stop when the time is over.
    fn encode_bounded(
        &self,
        text: &str,
        literals: &Literals,
        add_special: bool,
    ) -> Result<Vec<Token>, TextError> {
        let stop = Arc::new(AtomicBool::new(false));
        if text.len() <= SHORT {
            return guarded("encoding", || {
                self.inner.engine.encode(text, literals, add_special, &stop)
            });
        }
        let limit =
            PATIENCE + PATIENCE_PER_MIB * u32::try_from(text.len() >> 20).unwrap_or(u32::MAX);
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (inner, stopped) = (Arc::clone(&self.inner), Arc::clone(&stop));
        let (owned, literals) = (text.to_owned(), literals.clone());
        let work = move || {
            let tokens = guarded("encoding", || {
                inner.engine.encode(&owned, &literals, add_special, &stopped)
            });
            // Nobody waits any more where the time is over.
            let _ = sender.send(tokens);
        };
        let started = std::thread::Builder::new().name("tokenizer".to_owned()).spawn(work);
        started.map_err(|e| TextError::Tokenizer(format!("cannot start a thread: {e}")))?;
        receiver.recv_timeout(limit).unwrap_or_else(|_| {
            stop.store(true, Ordering::Relaxed);
            let (bytes, seconds) = (text.len(), limit.as_secs());
            Err(TextError::Tokenizer(format!(
                "encoding: {bytes} bytes take over {seconds} s, the most this model's expressions may take"
            )))
        })
    }

    /// Refuses a text that must have more than `context` tokens, by its bytes, before any work is done for it.
    pub fn check_length(&self, text: &str, context: usize) -> Result<(), TextError> {
        if text.len() < context {
            return Ok(());
        }
        let at_least =
            text.len() / self.inner.most_bytes.get_or_init(|| self.inner.engine.most_bytes());
        if at_least >= context.max(1) {
            return Err(TextError::PromptTooLong { at_least, context });
        }
        Ok(())
    }

    /// How the special tokens are spelled.
    pub(crate) fn spellings(&self) -> &Spellings {
        &self.inner.spellings
    }

    /// Tokens to text. Ids outside the vocabulary are left out; bytes that are not UTF-8 become
    /// U+FFFD.
    pub fn decode(&self, tokens: &[Token], skip_special: bool) -> Result<String, TextError> {
        // One of the library's decoders panics on an empty list.
        let silent = |&token: &Token| self.decoded_spelling(token, skip_special).is_none();
        if tokens.iter().all(silent) {
            return Ok(String::new());
        }
        guarded("decoding", || self.inner.engine.decode(tokens, skip_special))
    }

    /// Number of distinct tokens, added ones included. Ids may have gaps, so this is not a bound
    /// on ids.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// The id of a token by its exact text in the file.
    pub fn token_to_id(&self, text: &str) -> Option<Token> {
        self.inner.engine.token_to_id(text)
    }

    /// The text of a token as the file spells it (byte-level tokens in their visible alphabet).
    pub fn token_text(&self, token: Token) -> Option<String> {
        self.inner.engine.id_to_token(token)
    }

    /// Whether the file marks the token as special.
    pub fn is_special(&self, token: Token) -> bool {
        self.inner.special.contains(&token)
    }

    /// Whether the file adds the token to the model's own: special ones, and marks such as `<tool_call>`.
    pub(crate) fn is_added(&self, token: Token) -> bool {
        self.inner.engine.is_added(token)
    }

    /// The spelling that `decode` would use for the token, or `None` where it leaves it out.
    pub(crate) fn decoded_spelling(&self, token: Token, skip_special: bool) -> Option<String> {
        let text = self.token_text(token)?;
        // The library skips by spelling, so a model token spelled like a special one goes too.
        let special = || self.is_special(token) || self.inner.engine.is_special_text(&text);
        (!skip_special || !special()).then_some(text)
    }

    pub(crate) fn decode_style(&self) -> DecodeStyle {
        let decoder = self.inner.engine.decoder();
        if matches!(decoder, Some(DecoderWrapper::ByteLevel(_))) {
            return DecodeStyle::Bytes;
        }
        let has = |wanted: fn(&DecoderWrapper) -> bool| decoder.is_some_and(|d| any(d, wanted));
        DecodeStyle::Text {
            byte_fallback: has(|d| matches!(d, DecoderWrapper::ByteFallback(_))),
            byte_level: has(|d| matches!(d, DecoderWrapper::ByteLevel(_))),
        }
    }
}

fn any(decoder: &DecoderWrapper, wanted: fn(&DecoderWrapper) -> bool) -> bool {
    match decoder {
        DecoderWrapper::Sequence(parts) => parts.get_decoders().iter().any(|d| any(d, wanted)),
        other => wanted(other),
    }
}

/// How many times longer a normalizer's replacements can make a text, one after the other.
fn growth(normalizer: &Value) -> f64 {
    let parts = normalizer.get("normalizers").and_then(Value::as_array);
    let inside: f64 = parts.map_or(1.0, |parts| parts.iter().map(growth).product());
    let Some(content) = normalizer.get("content").and_then(Value::as_str) else { return inside };
    // A regular expression may match a single character, or the nothing between two.
    let pattern = normalizer.get("pattern").and_then(|p| p.get("String")).and_then(Value::as_str);
    let matched = pattern.map_or(1, str::len).max(1);
    ((content.len() + 1) as f64 / matched as f64).max(1.0) * inside
}

/// Runs library code that may panic on a hostile vocabulary. Nothing is shared mutably with the
/// closure, so there is no half-written state to observe afterwards.
pub(crate) fn guarded<T>(
    doing: &str,
    work: impl FnOnce() -> tokenizers::Result<T>,
) -> Result<T, TextError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| TextError::Tokenizer(format!("{doing}: {e}"))),
        Err(_) => Err(TextError::Tokenizer(format!("{doing}: the file breaks the library"))),
    }
}
