//! The part of a rebuilt tokenizer that turns a piece of text into tokens, in the shape the
//! library wants it.

use super::scores::ScoreMerger;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{Model, Result, Token};

/// How pieces are merged.
pub(crate) enum Merger {
    /// By the rank of merges.
    Ranks(BPE),
    /// By the rank of merges; a run of line breaks that is a token stays whole.
    RanksAndLines(BPE),
    /// By the score of tokens.
    Scores(ScoreMerger),
}

impl Model for Merger {
    type Trainer = BpeTrainer;

    fn tokenize(&self, piece: &str) -> Result<Vec<Token>> {
        match self {
            Self::Ranks(bpe) => bpe.tokenize(piece),
            Self::RanksAndLines(bpe) => {
                let is_lines = piece.bytes().all(|b| b == b'\n');
                match bpe.token_to_id(piece).filter(|_| is_lines) {
                    Some(id) => Ok(vec![Token::new(id, piece.to_owned(), (0, piece.len()))]),
                    None => bpe.tokenize(piece),
                }
            }
            Self::Scores(scores) => {
                let mut tokens = Vec::new();
                // The spelling is only kept by encodings that nobody asks for.
                scores.encode(piece, |id, range| tokens.push(Token::new(id, String::new(), range)));
                Ok(tokens)
            }
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Ranks(bpe) | Self::RanksAndLines(bpe) => bpe.token_to_id(token),
            Self::Scores(scores) => scores.id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Ranks(bpe) | Self::RanksAndLines(bpe) => bpe.id_to_token(id),
            Self::Scores(scores) => scores.text(id).map(str::to_owned),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Ranks(bpe) | Self::RanksAndLines(bpe) => bpe.get_vocab(),
            Self::Scores(scores) => {
                let ids = 0..scores.len() as u32;
                ids.filter_map(|id| Some((scores.text(id)?.to_owned(), id))).collect()
            }
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Ranks(bpe) | Self::RanksAndLines(bpe) => bpe.get_vocab_size(),
            Self::Scores(scores) => scores.len(),
        }
    }

    fn save(&self, _folder: &Path, _prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("a vocabulary from a GGUF file is not saved".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}
