//! How tokens are chosen: what was asked over what the model's files ask for.

use forerun_base::Token;
use forerun_engine::Sampling;
use forerun_text::GenerationDefaults;
use std::hash::{BuildHasher, RandomState};

/// Sampling parameters as somebody asked for them; `None` leaves a choice to the model's files.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "fields carry the names and meanings of `Sampling`'s")]
pub struct SamplingOverrides {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: Vec<(Token, f32)>,
    pub seed: Option<u64>,
}

impl SamplingOverrides {
    /// The wish over a model's defaults. Without `do_sample: true` a model is greedy until a temperature is
    /// given; without a seed there is a new one each time.
    pub fn over(&self, defaults: &GenerationDefaults) -> Sampling {
        let greedy = GenerationDefaults { temperature: Some(0.0), ..GenerationDefaults::default() };
        let file = if defaults.do_sample == Some(true) { defaults } else { &greedy };
        let off = Sampling::default();
        let or = |wish: Option<f32>, file: Option<f32>, off: f32| wish.or(file).unwrap_or(off);
        Sampling {
            temperature: or(self.temperature, file.temperature, 1.0),
            top_k: self.top_k.or(file.top_k).unwrap_or(off.top_k),
            top_p: or(self.top_p, file.top_p, off.top_p),
            min_p: or(self.min_p, file.min_p, off.min_p),
            repetition_penalty: or(
                self.repetition_penalty,
                file.repetition_penalty,
                off.repetition_penalty,
            ),
            presence_penalty: self.presence_penalty.unwrap_or(off.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(off.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

/// A seed that JSON readers with 53-bit numbers keep exactly.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_does_not_ask_to_sample_is_greedy_until_a_temperature_is_asked_for() {
        let defaults = GenerationDefaults { top_p: Some(0.5), ..Default::default() };
        let greedy = SamplingOverrides::default().over(&defaults);
        assert_eq!((greedy.temperature, greedy.top_p), (0.0, 1.0));
        let wish = SamplingOverrides { temperature: Some(0.8), ..Default::default() };
        assert_eq!(wish.over(&defaults).temperature, 0.8);
    }

    #[test]
    fn what_is_asked_wins_over_the_files_and_the_rest_stays() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            top_k: Some(20),
            top_p: Some(0.9),
            ..Default::default()
        };
        let wish = SamplingOverrides { top_k: Some(0), ..Default::default() };
        let result = wish.over(&defaults);
        assert_eq!((result.temperature, result.top_k, result.top_p), (1.0, 0, 0.9));
    }
}
