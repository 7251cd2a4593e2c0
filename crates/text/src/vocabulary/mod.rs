//! Vocabularies as GGUF files carry them, and the tokenizers rebuilt from them.
//!
//! A GGUF file has no `tokenizer.json`: it lists the tokens with their kinds, scores or merges
//! and names the rest. Three models are known:
//!
//! - `gpt2`: byte-level merges after the pre-tokenizer that `pre` names ([`pre`])
//! - `llama`: SentencePiece, merged by score ([`scores`])
//! - `gemma4`: merges over text whose spaces became U+2581
//!
//! Results are those of the tokenizer the model was published with; where a file can be read in
//! two ways, those of llama.cpp. The lists are not trusted: lengths, ids, duplicates and merges
//! are checked before anything is built.

mod build;
mod check;
mod ends;
mod files;
mod lines;
mod model;
mod pre;
mod ranks;
mod scores;

pub(crate) use build::{PreTokenizeSteps, Rebuilt};
pub use files::TextFiles;

use crate::error::TextError;
use crate::generation::GenerationDefaults;
use crate::template::SpecialTokens;
use forerun_base::Token;

/// The vocabulary of a GGUF file. Each field is the key of that name under `tokenizer.ggml`;
/// `None` and empty mean the file does not have the key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// `model`: how text becomes tokens (`gpt2`, `llama`, `gemma4`).
    pub model: String,
    /// `pre`: the name of the pre-tokenizer, for `gpt2`.
    pub pre: Option<String>,
    /// `tokens`: the spelling of each token; the place in the list is the id.
    pub tokens: Vec<String>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub kinds: Vec<i32>,
    /// `scores`: which merge goes first, for `llama`; higher is earlier.
    pub scores: Vec<f32>,
    /// `merges`: two tokens with a space between, the first merge first.
    pub merges: Vec<String>,
    /// `bos_token_id`: starts a text.
    pub bos: Option<Token>,
    /// `eos_token_id`: ends a text.
    pub eos: Option<Token>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<Token>,
    /// `eom_token_id`: ends a message that a tool is to answer.
    pub eom: Option<Token>,
    /// `unknown_token_id`: stands for what has no token.
    pub unknown: Option<Token>,
    /// `padding_token_id`.
    pub padding: Option<Token>,
    /// `seperator_token_id` (spelled so).
    pub separator: Option<Token>,
    /// `mask_token_id`.
    pub mask: Option<Token>,
    /// `add_bos_token`: whether a text starts with BOS.
    pub add_bos: Option<bool>,
    /// `add_eos_token`: whether a text ends with EOS.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`: whether a space is put before a text, for `llama`.
    pub add_space_prefix: Option<bool>,
}

/// What `token_type` says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Vocabulary {
    /// The named special tokens, for the chat template.
    pub fn special_tokens(&self) -> Result<SpecialTokens, TextError> {
        self.check_ids()?;
        let named = [
            ("bos_token", self.bos_or_default()),
            ("eos_token", self.eos_or_default()),
            ("unk_token", self.unknown_or_default()),
            ("sep_token", self.separator),
            ("pad_token", self.padding),
            ("mask_token", self.mask),
        ];
        let text = |id: Token| self.tokens.get(id as usize).cloned();
        Ok(named.into_iter().filter_map(|(name, id)| Some((name, text(id?)?))).collect())
    }

    /// The tokens that end an answer and those that start and pad one; the file says nothing
    /// about sampling.
    pub fn generation_defaults(&self) -> Result<GenerationDefaults, TextError> {
        self.check_ids()?;
        Ok(GenerationDefaults {
            eos_token_ids: self.end_tokens(),
            bos_token_id: self.bos_or_default(),
            pad_token_id: self.padding,
            ..GenerationDefaults::default()
        })
    }

    /// The kind of a token. Without a list all tokens are normal; numbers without a meaning are
    /// kinds that older files have, and such tokens are never matched in text.
    fn kind(&self, index: usize) -> TokenKind {
        match self.kinds.get(index) {
            None | Some(1) => TokenKind::Normal,
            Some(2) => TokenKind::Unknown,
            Some(3) => TokenKind::Control,
            Some(4) => TokenKind::UserDefined,
            Some(6) => TokenKind::Byte,
            Some(_) => TokenKind::Unused,
        }
    }

    // SentencePiece puts these first, and files may leave their ids out.
    fn bos_or_default(&self) -> Option<Token> {
        self.bos.or(self.fixed_place(1))
    }

    fn eos_or_default(&self) -> Option<Token> {
        self.eos.or(self.fixed_place(2))
    }

    fn unknown_or_default(&self) -> Option<Token> {
        self.unknown.or(self.fixed_place(0))
    }

    fn fixed_place(&self, id: Token) -> Option<Token> {
        let is_there = self.model == "llama" && (id as usize) < self.tokens.len();
        let is_special =
            || matches!(self.kind(id as usize), TokenKind::Control | TokenKind::Unknown);
        (is_there && is_special()).then_some(id)
    }
}
