//! The conversation that the options describe.

use crate::args::RunArgs;
use crate::exit::usage;
use anyhow::{Context, bail};
use forerun::{EncodedPrompt, Error, Messages, Reasoning, TextError, TextProcessor};
use serde_json::{Map, Value};

/// What a prompt goes into: the system message, variables, reasoning. `None` for a model without a chat template, whose
/// prompts are continued as they stand; options for a template are an error there.
pub(super) fn messages(
    args: &RunArgs,
    processor: &TextProcessor,
) -> anyhow::Result<Option<Messages>> {
    let variables = variables(args).map_err(usage)?;
    match processor.chat() {
        Ok(_) => {}
        Err(Error::NoTemplate) => {
            if args.system.is_some() || !variables.is_empty() || reasoning(args).is_some() {
                bail!(
                    "this model has no chat template, so --system, --template-arg, --think and \
                     --no-think mean nothing to it"
                );
            }
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    }
    let messages = Messages {
        variables,
        reasoning: Reasoning { enabled: reasoning(args), budget: None },
        parse_special: args.parse_special,
        ..Messages::default()
    };
    Ok(Some(match &args.system {
        Some(system) => messages.system(system),
        None => messages,
    }))
}

/// A text as a prompt: a message of the conversation, or what is continued where there is none.
pub(super) fn encode(
    processor: &TextProcessor,
    messages: Option<&Messages>,
    text: &str,
) -> anyhow::Result<EncodedPrompt> {
    let encoded = match messages {
        Some(messages) => processor.encode_messages(&messages.clone().user(text)),
        None => processor.encode_prompt(&text.into()),
    };
    match encoded {
        Err(error @ Error::Text(TextError::PromptTooLong { .. })) => {
            Err(error).context("--ctx N gives a longer context")
        }
        encoded => Ok(encoded?),
    }
}

/// Whether the options ask for reasoning, or for none.
fn reasoning(args: &RunArgs) -> Option<bool> {
    match (args.think, args.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Template variables, each given once.
fn variables(args: &RunArgs) -> anyhow::Result<Map<String, Value>> {
    let mut variables = Map::new();
    let given_twice = |key: &str| format!("the template argument `{key}` is given twice");
    for (key, value) in args.template_arg.iter().cloned() {
        if variables.contains_key(&key) {
            bail!(given_twice(&key));
        }
        variables.insert(key, value);
    }
    if reasoning(args).is_some() && variables.contains_key(Reasoning::VARIABLE) {
        bail!(given_twice(Reasoning::VARIABLE));
    }
    Ok(variables)
}
