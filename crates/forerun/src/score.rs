//! How likely a model finds a text.

use crate::Error;
use forerun_base::Token;
use forerun_engine::{Engine, ModelRunner, log_probability};

/// Log-probabilities of a text.
///
/// ```
/// # fn main() -> Result<(), forerun::Error> {
/// let model = forerun::Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
/// let likely = model.score("Once upon a time there was a king.")?;
/// let unlikely = model.score("Once upon a king time was there.")?;
/// assert!(likely.perplexity() < unlikely.perplexity());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The tokens.
    pub token_ids: Vec<Token>,
    /// `ln p(token | tokens before)` of each of them; the first has none.
    pub logprobs: Vec<Option<f64>>,
}

impl Scores {
    /// Runs the tokens through an engine; `sink` gets each row of logits, in order.
    pub fn compute(
        engine: &mut Engine<ModelRunner>,
        token_ids: Vec<Token>,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<Self, Error> {
        let mut logprobs = vec![None];
        engine.score(&token_ids, &mut |row| {
            sink(row);
            if let Some(&next) = token_ids.get(logprobs.len()) {
                logprobs.push(Some(log_probability(row, next)));
            }
        })?;
        match logprobs.iter().position(|p| p.is_some_and(f64::is_nan)) {
            Some(position) => Err(Error::NotFinite { position }),
            None => Ok(Self { token_ids, logprobs }),
        }
    }

    /// The log-probabilities of all tokens but the first.
    pub fn scored(&self) -> impl Iterator<Item = f64> {
        self.logprobs.iter().copied().flatten()
    }

    /// The log-probability of the text after its first token.
    pub fn sum(&self) -> f64 {
        self.scored().sum()
    }

    /// `exp(−mean)`; `None` when a single token leaves nothing to predict.
    pub fn perplexity(&self) -> Option<f64> {
        let count = self.scored().count();
        (count > 0).then(|| (-self.sum() / count as f64).exp())
    }
}
