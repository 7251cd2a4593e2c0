//! `forerun run`: one answer, or a chat.

mod chat;
mod command;
mod conversation;
mod form;
mod history;
mod input;
mod one_shot;
mod saved;
mod settings;

use crate::args::RunArgs;
use crate::exit::{Outcome, usage};
use crate::fetch::{self, Fetched};
use crate::load::ModelSource;
use crate::{generation, sizing};
use anyhow::{anyhow, bail};
use forerun::{EncodedPrompt, GenerationOptions, PromptKind, Reasoning, TextProcessor};
use forerun_engine::check_tokens;
use form::{Form, constraint};
use input::{Input, Prompt};
use one_shot::Plan;
use settings::ChatSettings;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Outcome> {
    let (given, text) = input::sort_out(args).map_err(usage)?;
    if let Some(model) = &given
        && let Fetched::Stopped(outcome) = fetch::ensure(model, args.fetch.offline)?
    {
        return Ok(outcome);
    }
    let Input { model, prompt } = Input::new(args, given, text)?;
    let source = ModelSource::open(&model, &args.model_options)?;
    let settings = sizing::for_answers(&args.engine, &args.speculation, &source.blueprint.spec);
    let settings = sizing::fit(settings, &args.engine, &source, args.device.device)?;
    let raw = args.raw || matches!(prompt, Prompt::Ids(_));
    let processor = source.processor(settings.context, raw)?;
    let messages = conversation::messages(args, &processor)?;
    let kind = messages.as_ref().map_or(PromptKind::Text, |_| PromptKind::Chat);
    let options = options(args, &processor, kind)?;
    let encoded = match prompt {
        Prompt::Chat if args.json => {
            return Err(usage(anyhow!("--json needs a prompt: there is no chat in JSON")));
        }
        Prompt::Chat => {
            let form = Form::from_args(args, &processor)?;
            let options = GenerationOptions { constraint: form.map(|form| form.source), ..options };
            let depth = args.speculation.draft;
            let (model, _) = source.model(processor, &settings, args.device, depth)?;
            let reasoning = messages.as_ref().map_or_else(Reasoning::default, |m| m.reasoning);
            let settings = ChatSettings { options, reasoning, view: args.reasoning };
            return chat::Terminal::new(model, messages, settings).talk(!args.no_history);
        }
        Prompt::Ids(ids) => EncodedPrompt::of_tokens(ids),
        Prompt::Text(text) => conversation::encode(&processor, messages.as_ref(), &text)?,
    };
    let form = Form::from_args(args, &processor)?;
    let constraint = constraint(form.as_ref(), &processor, encoded.chat.as_ref())?;
    check_tokens(&encoded.tokens, source.blueprint.spec.vocabulary)?;
    sizing::check_fits(encoded.tokens.len(), &settings, &source.blueprint.spec)?;
    let parser = encoded.chat.as_ref().and_then(|chat| processor.answer_parser(chat, &[]));
    let generation = processor.generation(encoded.tokens, kind, &options, constraint)?;
    one_shot::run(args, Plan { source, processor, settings, kind, generation, parser })
}

/// The options of the answers, checked before weights are read.
fn options(
    args: &RunArgs,
    processor: &TextProcessor,
    kind: PromptKind,
) -> anyhow::Result<GenerationOptions> {
    if !args.stop.is_empty() && processor.tokenizer().is_err() {
        bail!("--stop needs text, and this model has no tokenizer.json");
    }
    let options = generation::options(args, processor.defaults(), kind);
    let sampling = options.sampling.resolve(processor.defaults(), kind);
    sampling.check(processor.vocabulary()).map_err(usage)?;
    Ok(options)
}
