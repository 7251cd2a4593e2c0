//! What the model thought of a token it sampled.

use forerun_base::Token;

/// Most alternatives a request may ask for.
pub const MAX_LOGPROBS: usize = 128;

/// Log-probabilities of a sampled token and of the likeliest ones, by the model's own logits: before penalties, biases,
/// temperature and masks.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The sampled token.
    pub token: Token,
    /// Its own.
    pub logprob: f32,
    /// The likeliest tokens, best first, ties by lower id.
    pub top: Vec<(Token, f32)>,
}

impl TokenLogprobs {
    /// Of a token sampled under a row of logits, with the `most` likeliest beside it.
    pub fn of(logits: &[f32], token: Token, most: usize) -> Self {
        let sum = LogSum::of(logits);
        let of = |token: Token| sum.log_probability(logits[token as usize]) as f32;
        let most = most.min(logits.len());
        let mut top: Vec<Token> = Vec::with_capacity(most + 1);
        for (token, &logit) in (0..).zip(logits) {
            let worst = top.last().map_or(f32::NEG_INFINITY, |&t| logits[t as usize]);
            if top.len() < most || logit > worst {
                let at = top.partition_point(|&t| logits[t as usize] >= logit);
                top.insert(at, token);
                top.truncate(most);
            }
        }
        Self { token, logprob: of(token), top: top.into_iter().map(|t| (t, of(t))).collect() }
    }
}

/// `ln p(token)` under a row of logits, in f64.
pub fn log_probability(logits: &[f32], token: Token) -> f64 {
    LogSum::of(logits).log_probability(logits[token as usize])
}

/// `ln Σ exp(logit − max)`, in f64.
struct LogSum {
    max: f32,
    sum: f64,
}

impl LogSum {
    fn of(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        Self { max, sum: sum.ln() }
    }

    fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit - self.max) - self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_ties_by_lower_id() {
        let told = TokenLogprobs::of(&[1.0, 3.0, -2.0, 3.0, 2.0], 2, 3);
        let ids: Vec<Token> = told.top.iter().map(|t| t.0).collect();
        assert_eq!(ids, [1, 3, 4]);
        let sum: f64 = (0..5).map(|t| log_probability(&[1.0, 3.0, -2.0, 3.0, 2.0], t).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert_eq!(told.logprob, log_probability(&[1.0, 3.0, -2.0, 3.0, 2.0], 2) as f32);
        assert!(TokenLogprobs::of(&[0.5], 0, 0).top.is_empty());
        assert_eq!(TokenLogprobs::of(&[0.5, 0.5], 1, 9).top.len(), 2);
    }
}
