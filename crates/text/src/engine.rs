//! The two places a tokenizer comes from, behind one set of questions.

use crate::literal::{LiteralPart, Literals, Spellings};
use crate::pipeline;
use crate::vocabulary::Rebuilt;
use forerun_base::Token;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use tokenizers::{AddedVocabulary, DecoderWrapper, NormalizerWrapper, Result};

/// What turns text into tokens and back.
pub(crate) enum TokenizerEngine {
    /// A `tokenizer.json`.
    File(Box<tokenizers::Tokenizer>),
    /// The vocabulary of a GGUF file.
    Rebuilt(Box<Rebuilt>),
}

impl TokenizerEngine {
    /// Text to tokens; what `literals` took out of it is text. Cut off between two matches of the file's expressions
    /// once `stop` is set.
    pub(crate) fn encode(
        &self,
        text: &str,
        literals: &Literals,
        add_special: bool,
        stop: &AtomicBool,
    ) -> Result<Vec<Token>> {
        let special = if literals.is_empty() { HashSet::new() } else { self.special() };
        let is_special = |token: Token| special.contains(&token);
        let encoding = match self {
            Self::File(file) => pipeline::encode(file, text, literals, is_special, stop)?
                .map(|encoding| file.post_process(encoding, None, add_special))
                .transpose()?,
            Self::Rebuilt(rebuilt) => {
                pipeline::encode(&rebuilt.library, text, literals, is_special, stop)?
                    .map(|encoding| rebuilt.library.post_process(encoding, None, false))
                    .transpose()?
            }
        };
        let Some(encoding) = encoding else {
            return self.encode_in_letters(text, literals, stop, is_special);
        };
        let ids = encoding.get_ids().iter().copied();
        Ok(match self {
            Self::File(_) => ids.collect(),
            Self::Rebuilt(rebuilt) => {
                let before = rebuilt.bos.filter(|_| add_special).into_iter();
                before.chain(ids).chain(rebuilt.eos.filter(|_| add_special)).collect()
            }
        })
    }

    /// The model itself would merge a spelling to its token, so spellings go in letter by letter.
    fn encode_in_letters(
        &self,
        text: &str,
        literals: &Literals,
        stop: &AtomicBool,
        is_special: impl Fn(Token) -> bool,
    ) -> Result<Vec<Token>> {
        let none = Literals::default();
        let mut tokens = Vec::new();
        for part in literals.parts(text) {
            match part {
                LiteralPart::Text(text) => tokens.extend(self.encode(text, &none, false, stop)?),
                LiteralPart::Spelling(text) => {
                    for letter in text.chars() {
                        let letter = letter.encode_utf8(&mut [0; 4]).to_owned();
                        let letter = self.encode(&letter, &none, false, stop)?;
                        tokens.extend(letter.into_iter().filter(|&token| !is_special(token)));
                    }
                }
            }
        }
        Ok(tokens)
    }

    pub(crate) fn decode(&self, tokens: &[Token], skip_special: bool) -> Result<String> {
        match self {
            Self::File(file) => file.decode(tokens, skip_special),
            Self::Rebuilt(rebuilt) => rebuilt.library.decode(tokens, skip_special),
        }
    }

    pub(crate) fn token_to_id(&self, text: &str) -> Option<Token> {
        match self {
            Self::File(file) => file.token_to_id(text),
            Self::Rebuilt(rebuilt) => rebuilt.library.token_to_id(text),
        }
    }

    pub(crate) fn id_to_token(&self, token: Token) -> Option<String> {
        match self {
            Self::File(file) => file.id_to_token(token),
            Self::Rebuilt(rebuilt) => rebuilt.library.id_to_token(token),
        }
    }

    pub(crate) fn vocab_size(&self) -> usize {
        match self {
            Self::File(file) => file.get_vocab_size(true),
            Self::Rebuilt(rebuilt) => rebuilt.library.get_vocab_size(true),
        }
    }

    pub(crate) fn special(&self) -> HashSet<Token> {
        let added = self.added().get_added_tokens_decoder();
        added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect()
    }

    /// Most bytes of text that a token stands for. Composing characters (NFC and its like) makes a text shorter by a
    /// third at most; what else a normalizer may leave out is not known.
    pub(crate) fn most_bytes(&self) -> usize {
        const UNKNOWN: usize = 1024;
        let (vocabulary, normalizer) = match self {
            Self::File(file) => (file.get_vocab(true), file.get_normalizer()),
            Self::Rebuilt(rebuilt) => {
                (rebuilt.library.get_vocab(true), rebuilt.library.get_normalizer())
            }
        };
        let longest = vocabulary.keys().map(String::len).max().unwrap_or(1).max(1);
        match normalizer.map_or(Some(1), shrinks) {
            Some(times) => longest.saturating_mul(times),
            None => longest.max(UNKNOWN),
        }
    }

    /// How the special tokens are spelled.
    pub(crate) fn spellings(&self) -> Spellings {
        Spellings::new(self.added())
    }

    pub(crate) fn is_added(&self, token: Token) -> bool {
        self.added().get_added_tokens_decoder().contains_key(&token)
    }

    pub(crate) fn is_special_text(&self, text: &str) -> bool {
        self.added().is_special_token(text)
    }

    pub(crate) fn decoder(&self) -> Option<&DecoderWrapper> {
        match self {
            Self::File(file) => file.get_decoder(),
            Self::Rebuilt(rebuilt) => rebuilt.library.get_decoder(),
        }
    }

    fn added(&self) -> &AddedVocabulary {
        match self {
            Self::File(file) => file.get_added_vocabulary(),
            Self::Rebuilt(rebuilt) => rebuilt.library.get_added_vocabulary(),
        }
    }
}

/// How many times shorter a normalizer can make a text; `None` where it is not known.
fn shrinks(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::Sequence(parts) => {
            parts.as_ref().iter().try_fold(1, |all, part| Some(all * shrinks(part)?))
        }
        NormalizerWrapper::NFC(_) | NormalizerWrapper::NFKC(_) => Some(3),
        NormalizerWrapper::NFD(_)
        | NormalizerWrapper::Prepend(_)
        | NormalizerWrapper::ByteLevel(_) => Some(1),
        NormalizerWrapper::Replace(replace) => {
            let written = serde_json::to_value(replace).ok()?;
            let replaced = written.get("pattern")?.get("String")?.as_str()?.len();
            replaced.checked_div(replace.content.len()).map(|times| times.max(1))
        }
        _ => None,
    }
}
