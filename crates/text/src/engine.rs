//! The two places a tokenizer comes from, behind one set of questions.

use crate::vocabulary::Rebuilt;
use forerun_base::Token;
use std::collections::HashSet;
use tokenizers::{AddedVocabulary, DecoderWrapper, Result};

/// What turns text into tokens and back.
pub(crate) enum Engine {
    /// A `tokenizer.json`.
    File(Box<tokenizers::Tokenizer>),
    /// The vocabulary of a GGUF file.
    Rebuilt(Box<Rebuilt>),
}

impl Engine {
    pub(crate) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        match self {
            Self::File(file) => Ok(file.encode_fast(text, add_special)?.get_ids().to_vec()),
            Self::Rebuilt(rebuilt) => {
                let encoding = rebuilt.library.encode_fast(text, false)?;
                let (bos, eos) = (rebuilt.bos, rebuilt.eos);
                let before = bos.filter(|_| add_special).into_iter();
                let after = eos.filter(|_| add_special);
                Ok(before.chain(encoding.get_ids().iter().copied()).chain(after).collect())
            }
        }
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
