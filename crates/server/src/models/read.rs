//! Texts that a model reads without answering: log-probabilities of their tokens, and embeddings.

use super::ModelUse;
use crate::app::on_the_side;
use crate::error::ServerError;
use crate::service::Place;
use forerun::{Embedding, PooledRows, Pooling, PromptInput, Token};
use forerun_engine::{RowKind, TokenLogprobs};

/// A prompt with what the model thought of its tokens.
#[derive(Clone, Debug)]
pub(crate) struct ScoredPrompt {
    pub(crate) tokens: Vec<Token>,
    /// Of each token but the first, with its rank among all tokens, from 1.
    pub(crate) told: Vec<(TokenLogprobs, usize)>,
}

struct ScoringRows {
    tokens: Vec<Token>,
    most: usize,
    told: Vec<(TokenLogprobs, usize)>,
}

impl ScoringRows {
    fn take(&mut self, row: &[f32]) {
        if let Some(&next) = self.tokens.get(self.told.len() + 1) {
            let own = row[next as usize];
            let rank = 1 + row.iter().filter(|&&logit| logit > own).count();
            self.told.push((TokenLogprobs::of(row, next, self.most), rank));
        }
    }
}

impl ModelUse {
    /// Prompts in tokens.
    pub(crate) async fn encode(
        &self,
        prompts: Vec<PromptInput>,
    ) -> Result<Vec<Vec<Token>>, ServerError> {
        let model = self.clone();
        on_the_side(move || {
            let tokens = |prompt| Ok(model.text.encode_prompt(prompt)?.tokens);
            prompts.iter().map(tokens).collect()
        })
        .await
    }

    /// A place for texts that are read one after the other.
    pub(crate) fn place(&self) -> Result<Place, ServerError> {
        let mut places = self.service.places(1)?;
        Ok(places.remove(0))
    }

    /// How likely the model finds the tokens of a text, with the `most` likeliest in place of each.
    pub(crate) async fn score(
        &self,
        tokens: Vec<Token>,
        most: usize,
        place: Place,
    ) -> Result<(ScoredPrompt, Place), ServerError> {
        let rows = ScoringRows { tokens: tokens.clone(), most, told: Vec::new() };
        let read = self.service.read((tokens, RowKind::Logits), place, rows, ScoringRows::take);
        let (ScoringRows { tokens, told, .. }, place) = read.await?;
        if told.iter().any(|(told, _)| told.logprob.is_nan()) {
            let why = "the logits of the prompt are not finite: a weight is broken or too large";
            return Err(ServerError::Failed(why.to_owned()));
        }
        Ok((ScoredPrompt { tokens, told }, place))
    }

    /// A text as a vector.
    pub(crate) async fn embed(
        &self,
        tokens: Vec<Token>,
        pooling: Pooling,
        place: Place,
    ) -> Result<(Embedding, Place), ServerError> {
        let rows = PooledRows::new(pooling);
        let read = self.service.read((tokens, RowKind::Hidden), place, rows, PooledRows::push);
        let (rows, place) = read.await?;
        Ok((rows.finish()?, place))
    }
}
