//! How an answer is generated: what was typed over what the model's files ask for.

use crate::args::{RunArgs, SamplingArgs};
use forerun_engine::{Depth, Sampling};
use forerun_server::{PromptKind, SamplingSource};
use forerun_text::GenerationDefaults;

const DEFAULT_MAX_TOKENS: usize = 512;

/// Everything about an answer but its prompt.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    pub(crate) sampling: Sampling,
    /// Where those parameters come from that were not typed.
    pub(crate) source: SamplingSource,
    pub(crate) max_tokens: usize,
    pub(crate) stops: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) depth: Depth,
}

impl Generation {
    /// The options of `run` over the model's defaults.
    pub(crate) fn from_args(
        args: &RunArgs,
        defaults: &GenerationDefaults,
        kind: PromptKind,
    ) -> Self {
        let asked = defaults.max_new_tokens.map_or(DEFAULT_MAX_TOKENS, |n| n as usize);
        Self {
            sampling: sampling(Some(&args.sampling), defaults, kind),
            source: SamplingSource::of(defaults, kind),
            max_tokens: args.max_tokens.unwrap_or(asked),
            stops: args.stop.clone(),
            ignore_eos: args.ignore_eos,
            depth: args.speculation.draft,
        }
    }

    /// What the model's files ask for where text is continued, up to `max_tokens`.
    pub(crate) fn from_defaults(defaults: &GenerationDefaults, max_tokens: usize) -> Self {
        let (sampling, stops) = (sampling(None, defaults, PromptKind::Text), Vec::new());
        let source = SamplingSource::of(defaults, PromptKind::Text);
        Self { sampling, source, max_tokens, stops, ignore_eos: false, depth: Depth::Auto }
    }

    /// The part of the stats line that says how tokens were sampled; empty unless the model's files left it open.
    pub(crate) fn line(&self) -> String {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        if self.source != SamplingSource::Default || temperature == 0.0 {
            return String::new();
        }
        format!(
            " · sampling: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, default"
        )
    }
}

/// What was typed over what the model's files ask for.
pub(crate) fn sampling(
    args: Option<&SamplingArgs>,
    defaults: &GenerationDefaults,
    kind: PromptKind,
) -> Sampling {
    args.map(SamplingArgs::wish).unwrap_or_default().over(defaults, kind)
}
