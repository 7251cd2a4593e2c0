//! How tokens are sampled: the parameters of a request, over those of the model's files, over a default.
//!
//! | the model's files | chat | text as it stands |
//! |---|---|---|
//! | `do_sample: true` | their settings | their settings |
//! | `do_sample: false` | greedy | greedy |
//! | settings without `do_sample` | their settings | greedy |
//! | no settings | `CHAT_DEFAULTS` | greedy |
//!
//! A GGUF file with `general.sampling.*` counts as one with `do_sample: true`. Each parameter of a request wins over
//! all of this, and temperature 0 is greedy always.

use forerun_base::Token;
use forerun_engine::Sampling;
use forerun_text::GenerationDefaults;
use std::hash::{BuildHasher, RandomState};

/// Sampling of a conversation with a model whose files have none: the defaults of llama.cpp.
const CHAT_DEFAULTS: GenerationDefaults = GenerationDefaults {
    temperature: Some(0.8),
    top_k: Some(40),
    top_p: Some(0.95),
    min_p: Some(0.05),
    eos_token_ids: Vec::new(),
    bos_token_id: None,
    pad_token_id: None,
    do_sample: None,
    repetition_penalty: None,
    max_new_tokens: None,
};

/// What a prompt is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptKind {
    /// A conversation, rendered by the model's chat template.
    Chat,
    /// Text or tokens to be continued as they stand.
    Text,
}

/// Where the parameters come from that a request leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingSource {
    /// The model's files.
    Model,
    /// `CHAT_DEFAULTS`.
    Default,
    /// Nowhere: sampling is greedy unless the request has a temperature.
    Greedy,
}

impl SamplingSource {
    /// The rule of this module's table.
    pub fn of(defaults: &GenerationDefaults, kind: PromptKind) -> Self {
        match (defaults.do_sample, kind) {
            (Some(true), _) => Self::Model,
            (None, PromptKind::Chat) if defaults.says_sampling() => Self::Model,
            (None, PromptKind::Chat) => Self::Default,
            _ => Self::Greedy,
        }
    }

    /// As JSON has it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Default => "default",
            Self::Greedy => "greedy",
        }
    }
}

/// Sampling parameters of a request; `None` leaves one to the model's files.
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
    /// These parameters over a model's defaults; without a seed there is a new one each time.
    pub fn resolve(&self, defaults: &GenerationDefaults, kind: PromptKind) -> Sampling {
        let base = match SamplingSource::of(defaults, kind) {
            SamplingSource::Model => defaults.clone(),
            SamplingSource::Default => GenerationDefaults {
                repetition_penalty: defaults.repetition_penalty,
                ..CHAT_DEFAULTS
            },
            SamplingSource::Greedy => {
                GenerationDefaults { temperature: Some(0.0), ..GenerationDefaults::default() }
            }
        };
        let off = Sampling::default();
        let or = |own: Option<f32>, base: Option<f32>, off: f32| own.or(base).unwrap_or(off);
        Sampling {
            temperature: or(self.temperature, base.temperature, 1.0),
            top_k: self.top_k.or(base.top_k).unwrap_or(off.top_k),
            top_p: or(self.top_p, base.top_p, off.top_p),
            min_p: or(self.min_p, base.min_p, off.min_p),
            repetition_penalty: or(
                self.repetition_penalty,
                base.repetition_penalty,
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
    use super::PromptKind::{Chat, Text};
    use super::*;

    fn resolved(defaults: &GenerationDefaults, kind: PromptKind) -> (f32, u32, f32, f32) {
        let sampling = SamplingOverrides::default().resolve(defaults, kind);
        (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    }

    #[test]
    fn a_model_without_settings_samples_in_chat_and_is_greedy_on_text() {
        let none = GenerationDefaults::default();
        assert_eq!(resolved(&none, Chat), (0.8, 40, 0.95, 0.05));
        assert_eq!(resolved(&none, Text), (0.0, 0, 1.0, 0.0));
        let overrides = SamplingOverrides { temperature: Some(0.0), ..Default::default() };
        assert_eq!(overrides.resolve(&none, Chat).temperature, 0.0);
        let overrides = SamplingOverrides { temperature: Some(0.8), ..Default::default() };
        assert_eq!(overrides.resolve(&none, Text).temperature, 0.8);
    }

    #[test]
    fn settings_without_do_sample_count_in_chat_and_do_sample_false_is_greedy() {
        let some = GenerationDefaults { top_p: Some(0.5), ..Default::default() };
        assert_eq!(resolved(&some, Chat), (1.0, 0, 0.5, 0.0));
        assert_eq!(resolved(&some, Text), (0.0, 0, 1.0, 0.0));
        let never = GenerationDefaults { do_sample: Some(false), ..some };
        assert_eq!(resolved(&never, Chat), (0.0, 0, 1.0, 0.0));
    }

    #[test]
    fn a_penalty_alone_is_no_way_to_sample_but_is_kept() {
        let penalty = GenerationDefaults { repetition_penalty: Some(1.2), ..Default::default() };
        let sampling = SamplingOverrides::default().resolve(&penalty, Chat);
        assert_eq!((sampling.temperature, sampling.repetition_penalty), (0.8, 1.2));
    }

    #[test]
    fn parameters_of_a_request_win_over_the_files_and_the_rest_stays() {
        let defaults = GenerationDefaults {
            do_sample: Some(true),
            top_k: Some(20),
            top_p: Some(0.9),
            ..Default::default()
        };
        let overrides = SamplingOverrides { top_k: Some(0), ..Default::default() };
        for kind in [Chat, Text] {
            let result = overrides.resolve(&defaults, kind);
            assert_eq!((result.temperature, result.top_k, result.top_p), (1.0, 0, 0.9));
        }
    }
}
