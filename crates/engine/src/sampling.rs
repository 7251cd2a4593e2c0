//! How tokens are chosen, as a user says it.

use crate::RejectError;
use forerun_base::Token;

/// Most logit biases in a request.
pub(crate) const MAX_BIASES: usize = 1024;

/// Below this a temperature is greedy: logits divided by it would leave the noise behind, and at last overflow.
pub(crate) const LEAST_TEMPERATURE: f32 = 1e-5;
/// Logits with a larger bias would overflow when they are divided by a small temperature.
const LARGEST_BIAS: f32 = 1e30;

/// Sampling parameters. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0, and anything below 1e-5, samples the most likely token.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep those at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of tokens already seen, multiplies negative ones; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens already generated.
    pub presence_penalty: f32,
    /// Subtracted once per time a token was generated.
    pub frequency_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: Vec<(Token, f32)>,
    /// Keys the noise: same seed, same text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks ranges; NaN fits none.
    pub fn check(&self, vocabulary: usize) -> Result<(), RejectError> {
        let finite = |x: f32| x.is_finite();
        for (name, value, ok, expected) in [
            ("temperature", self.temperature, self.temperature >= 0.0, "0 or more"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "more than 0, at most 1"),
            ("min_p", self.min_p, self.min_p >= 0.0 && self.min_p <= 1.0, "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "more than 0",
            ),
            ("presence_penalty", self.presence_penalty, true, "a finite number"),
            ("frequency_penalty", self.frequency_penalty, true, "a finite number"),
        ] {
            if !ok || !finite(value) {
                return Err(RejectError::Sampling { name, value: value.to_string(), expected });
            }
        }
        let name = "logit_bias";
        if self.logit_bias.len() > MAX_BIASES {
            let value = format!("{} entries", self.logit_bias.len());
            return Err(RejectError::Sampling { name, value, expected: "at most 1024 entries" });
        }
        for (i, &(token, bias)) in self.logit_bias.iter().enumerate() {
            if token as usize >= vocabulary {
                return Err(RejectError::UnknownToken { token, vocabulary });
            }
            let twice = self.logit_bias[..i].iter().any(|&(other, _)| other == token);
            if twice || !finite(bias) || bias > LARGEST_BIAS {
                let value = format!("{token}={bias}");
                let expected = "finite numbers of at most 1e30, each token once";
                return Err(RejectError::Sampling { name, value, expected });
            }
        }
        Ok(())
    }

    /// The temperature that rows are sampled at.
    pub(crate) fn row_temperature(&self) -> f32 {
        if self.temperature < LEAST_TEMPERATURE { 0.0 } else { self.temperature }
    }

    /// Whether any logit depends on earlier tokens or on a bias.
    pub(crate) fn needs_history(&self) -> bool {
        self.has_penalties() || !self.logit_bias.is_empty()
    }

    /// Whether any logit depends on earlier tokens.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}
