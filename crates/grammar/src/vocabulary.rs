//! A model's vocabulary as a grammar sees it: bytes by token, special tokens apart, and canonical tokens of a text.

use crate::GrammarError;
use forerun_base::Token;
use forerun_text::Tokenizer;
use toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

/// A token id is 24 bits wide in the trie.
const MAX_TOKENS: usize = 1 << 24;

/// Bytes of a text that must come which are tokenized at a time.
const FORCED_BYTES: usize = 2048;

/// A trie of all tokens, and the tokenizer they came from.
pub(crate) struct GrammarVocabulary {
    tokenizer: Tokenizer,
    trie: TokTrie,
    /// Whether every byte of a text has a token, so that any text can be spelled.
    spells_all: bool,
}

impl GrammarVocabulary {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        size: usize,
        end_tokens: &[Token],
    ) -> Result<Self, GrammarError> {
        if size == 0 || size >= MAX_TOKENS {
            let why = format!("it has {size} tokens; 1 to {} can be", MAX_TOKENS - 1);
            return Err(GrammarError::Vocabulary(why));
        }
        if let Some(token) = end_tokens.iter().find(|&&token| token as usize >= size) {
            let why = format!("end token {token} is outside its {size} tokens");
            return Err(GrammarError::Vocabulary(why));
        }
        let words: Vec<Vec<u8>> = (0..size as Token).map(|token| word(tokenizer, token)).collect();
        let first_end = end_tokens.first().copied().unwrap_or(toktrie::INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, first_end), &words);
        if !end_tokens.is_empty() {
            trie = trie.with_eos_tokens(end_tokens);
        }
        let spells_all = (0..=0xf4)
            .filter(|b| !matches!(b, 0xc0 | 0xc1))
            .all(|byte: u8| trie.token_id(&[byte]).is_some());
        Ok(Self { tokenizer: tokenizer.clone(), trie, spells_all })
    }

    /// The tokens of a text, if they spell it and nothing else.
    fn exact(&self, text: &str) -> Option<Vec<Token>> {
        let tokens = self.tokenizer.encode(text, false).ok()?;
        self.spells(&tokens, text.as_bytes()).then_some(tokens)
    }

    /// The tokens of a text after another one: some tokenizers put a space before the first.
    fn following(&self, text: &str) -> Option<Vec<Token>> {
        let tokens = self.tokenizer.encode(&format!("\n{text}"), false).ok()?;
        let mut spelled = Vec::new();
        let before = tokens.iter().take_while(|&&token| {
            let starts = spelled != b"\n" && spelled != b" \n";
            spelled.extend_from_slice(self.trie.token(token));
            starts
        });
        let tokens = &tokens[before.count()..];
        self.spells(tokens, text.as_bytes()).then(|| tokens.to_vec())
    }

    fn spells(&self, tokens: &[Token], bytes: &[u8]) -> bool {
        let mut rest = Some(bytes);
        for &token in tokens {
            rest = rest.and_then(|rest| rest.strip_prefix(self.trie.token(token)));
        }
        rest.is_some_and(<[u8]>::is_empty)
    }
}

/// The bytes a grammar sees of a token. Special ones are marked, so that no text can spell them. A token that no text
/// contains has none.
fn word(tokenizer: &Tokenizer, token: Token) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    if tokenizer.is_special(token) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat()
    } else if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
        Vec::new()
    } else {
        bytes
    }
}

impl TokenizerEnv for GrammarVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<Token> {
        // Only the first tokens of a text that must come are used before it is requested again.
        let bytes = &bytes[..bytes.len().min(FORCED_BYTES)];
        let bytes = match std::str::from_utf8(bytes) {
            Err(cut) if cut.error_len().is_none() => &bytes[..cut.valid_up_to()],
            _ => bytes,
        };
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = self.exact(text).or_else(|| self.following(text));
            tokens.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.spells_all
    }
}
