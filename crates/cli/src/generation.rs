//! How an answer is generated: what was typed over what the model's files ask for.

use crate::args::{RunArgs, SamplingArgs};
use forerun_engine::{Depth, Sampling};
use forerun_text::GenerationDefaults;
use std::hash::{BuildHasher, RandomState};

const DEFAULT_MAX_TOKENS: usize = 512;

/// Everything about an answer but its prompt.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) stops: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) depth: Depth,
}

impl Generation {
    /// The options of `run` over the model's defaults.
    pub(crate) fn from_args(args: &RunArgs, defaults: &GenerationDefaults) -> Self {
        let asked = defaults.max_new_tokens.map_or(DEFAULT_MAX_TOKENS, |n| n as usize);
        Self {
            sampling: sampling(Some(&args.sampling), defaults),
            max_tokens: args.max_tokens.unwrap_or(asked),
            stops: args.stop.clone(),
            ignore_eos: args.ignore_eos,
            depth: args.speculation.draft,
        }
    }

    /// What the model's files ask for, up to `max_tokens`.
    pub(crate) fn from_defaults(defaults: &GenerationDefaults, max_tokens: usize) -> Self {
        let sampling = sampling(None, defaults);
        Self { sampling, max_tokens, stops: Vec::new(), ignore_eos: false, depth: Depth::Auto }
    }
}

/// Without `do_sample: true` a model is greedy until a temperature is given.
pub(crate) fn sampling(args: Option<&SamplingArgs>, defaults: &GenerationDefaults) -> Sampling {
    let file = if defaults.do_sample == Some(true) { defaults } else { &greedy() };
    let off = Sampling::default();
    let typed = |get: fn(&SamplingArgs) -> Option<f32>| args.and_then(get);
    let or = |typed: Option<f32>, file: Option<f32>, off: f32| typed.or(file).unwrap_or(off);
    Sampling {
        temperature: or(typed(|a| a.temperature), file.temperature, 1.0),
        top_k: args.and_then(|a| a.top_k).or(file.top_k).unwrap_or(off.top_k),
        top_p: or(typed(|a| a.top_p), file.top_p, off.top_p),
        min_p: or(typed(|a| a.min_p), file.min_p, off.min_p),
        repetition_penalty: or(
            typed(|a| a.repetition_penalty),
            file.repetition_penalty,
            off.repetition_penalty,
        ),
        presence_penalty: typed(|a| a.presence_penalty).unwrap_or(off.presence_penalty),
        frequency_penalty: typed(|a| a.frequency_penalty).unwrap_or(off.frequency_penalty),
        logit_bias: args.map(|a| a.logit_bias.clone()).unwrap_or_default(),
        seed: args.and_then(|a| a.seed).unwrap_or_else(random_seed),
    }
}

fn greedy() -> GenerationDefaults {
    GenerationDefaults { temperature: Some(0.0), ..GenerationDefaults::default() }
}

/// A seed that JSON readers with 53-bit numbers keep exactly.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed() -> SamplingArgs {
        SamplingArgs {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            logit_bias: Vec::new(),
            seed: Some(1),
        }
    }

    #[test]
    fn a_model_that_does_not_ask_to_sample_is_greedy_until_a_temperature_is_typed() {
        let defaults = GenerationDefaults { top_p: Some(0.5), ..Default::default() };
        let greedy = sampling(Some(&typed()), &defaults);
        assert_eq!((greedy.temperature, greedy.top_p), (0.0, 1.0));
        let args = SamplingArgs { temperature: Some(0.8), ..typed() };
        assert_eq!(sampling(Some(&args), &defaults).temperature, 0.8);
    }

    #[test]
    fn what_is_typed_wins_over_the_files_and_the_rest_stays() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            top_k: Some(20),
            top_p: Some(0.9),
            ..Default::default()
        };
        let args = SamplingArgs { top_k: Some(0), ..typed() };
        let result = sampling(Some(&args), &defaults);
        assert_eq!((result.temperature, result.top_k, result.top_p), (1.0, 0, 0.9));
    }
}
