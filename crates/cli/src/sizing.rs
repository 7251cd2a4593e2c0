//! From typed sizes to engine settings.

use crate::args::{EngineArgs, SpeculationArgs};
use crate::load::with_option;
use crate::report::bytes_text;
use crate::terminal;
use anyhow::bail;
use forerun::{DeviceName, ModelFiles, Options};
use forerun_engine::Settings;
use forerun_model::ModelSpec;

/// Sizes for answers.
pub(crate) fn for_answers(
    args: &EngineArgs,
    speculation: &SpeculationArgs,
    spec: &ModelSpec,
) -> Settings {
    let options = Options {
        context: args.ctx,
        sequences: 1,
        prefill_chunk: args.prefill_chunk,
        kv: args.kv.dtype(),
        drafting: speculation.drafting(),
        ..Options::default()
    };
    let settings = options.settings(spec);
    warn_beyond(settings.context, spec);
    settings
}

/// Those sizes within the memory that may be used: a context that was not typed is shortened to what fits.
pub(crate) fn fit(
    settings: Settings,
    args: &EngineArgs,
    files: &ModelFiles,
    device: DeviceName,
) -> anyhow::Result<Settings> {
    let Some(free) = args.room(device) else { return Ok(settings) };
    let fitted = files.fit(settings, args.ctx.is_some(), free).map_err(with_option)?;
    if fitted.context < settings.context {
        terminal::note(&format!(
            "context {} of {}: what fits into {} of free memory",
            fitted.context,
            settings.context,
            bytes_text(free)
        ));
    }
    Ok(fitted)
}

/// Sizes for one text of `tokens` tokens.
pub(crate) fn for_text(
    args: &EngineArgs,
    spec: &ModelSpec,
    tokens: usize,
) -> anyhow::Result<Settings> {
    match args.ctx {
        Some(context) if tokens > context => {
            bail!("the text has {tokens} tokens; the context holds {context}; give a larger --ctx")
        }
        None if tokens > spec.max_positions => bail!(
            "the text has {tokens} tokens; this model was made for {}; give a shorter text, or \
             --ctx {tokens} to score beyond that anyway",
            spec.max_positions
        ),
        _ => {}
    }
    warn_beyond(tokens, spec);
    Ok(settings(args, tokens.max(1)))
}

/// Refuses a prompt that leaves no room for an answer.
pub(crate) fn check_fits(
    prompt: usize,
    settings: &Settings,
    spec: &ModelSpec,
) -> anyhow::Result<()> {
    let (context, most) = (settings.context, spec.max_positions);
    if prompt < context {
        return Ok(());
    }
    let advice = if prompt < most {
        format!("give a larger --ctx (this model holds up to {most}) or a shorter prompt")
    } else {
        format!("give a shorter prompt: this model was made for {most}")
    };
    bail!("the prompt has {prompt} tokens and the context holds {context}; {advice}")
}

fn settings(args: &EngineArgs, context: usize) -> Settings {
    Settings {
        context,
        prefill_chunk: args.prefill_chunk,
        kv: args.kv.dtype(),
        submission_budget: args.submission_budget(),
        ..Settings::default()
    }
}

fn warn_beyond(context: usize, spec: &ModelSpec) {
    let most = spec.max_positions;
    if context > most {
        terminal::note(&format!(
            "warning: --ctx {context} is beyond the {most} positions this model was made for; \
             text past them is likely to lose its thread"
        ));
    }
}
