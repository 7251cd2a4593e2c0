//! How an answer is generated: what was typed over what the model's files ask for.

use crate::args::{RunArgs, SamplingArgs};
use forerun_engine::{Depth, Sampling};
use forerun_text::GenerationDefaults;

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

/// What was typed over what the model's files ask for.
pub(crate) fn sampling(args: Option<&SamplingArgs>, defaults: &GenerationDefaults) -> Sampling {
    args.map(SamplingArgs::wish).unwrap_or_default().over(defaults)
}
