//! How an answer is generated, as it was typed. What was not typed is the library's to decide.

use crate::args::{RunArgs, SamplingArgs};
use crate::interrupt;
use forerun::{GenerationOptions, PromptKind, Sampling};
use forerun_text::GenerationDefaults;

/// Longest continuation of a text, where nothing else is said: many models never end one by themselves.
const TEXT_TOKENS: usize = 512;

/// The options of `run`. The seed is settled here, so that every answer of a chat has the same.
pub(crate) fn options(
    args: &RunArgs,
    defaults: &GenerationDefaults,
    kind: PromptKind,
) -> GenerationOptions {
    // The answer to a question ends by itself, and reasoning before it may be long: the context is its limit.
    let without = (kind == PromptKind::Text).then_some(TEXT_TOKENS);
    let length = defaults.max_new_tokens.map(|n| n as usize).or(without);
    let mut overrides = args.sampling.overrides();
    overrides.seed = Some(overrides.resolve(defaults, kind).seed);
    GenerationOptions {
        sampling: overrides,
        max_tokens: args.max_tokens.or(length),
        stops: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        drafts: Some(args.speculation.draft),
        cancel: Some(interrupt::token().clone()),
        ..GenerationOptions::default()
    }
}

/// What was typed over what the model's files ask for.
pub(crate) fn sampling(
    args: Option<&SamplingArgs>,
    defaults: &GenerationDefaults,
    kind: PromptKind,
) -> Sampling {
    args.map(SamplingArgs::overrides).unwrap_or_default().resolve(defaults, kind)
}
