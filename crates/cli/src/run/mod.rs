//! `forerun run`: one answer, or a chat.

mod chat;
mod command;
mod conversation;
mod form;
mod input;
mod one_shot;

use crate::args::RunArgs;
use crate::exit::Outcome;
use crate::generation::Generation;
use crate::load::Source;
use crate::sizing;
use anyhow::bail;
use conversation::{Conversation, Rendered};
use forerun_server::PromptKind;
use forerun_text::ChatTemplate;
use form::Form;
use input::{Input, Prompt};
use one_shot::Plan;

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Outcome> {
    let Input { model, prompt } = Input::from_args(args)?;
    let source = Source::open(&model, &args.model_options)?;
    let generation = |chat: Option<&ChatTemplate>| -> anyhow::Result<Generation> {
        let kind = chat.map_or(PromptKind::Text, |_| PromptKind::Chat);
        let generation = Generation::from_args(args, &source.text.defaults, kind);
        generation.sampling.check(source.blueprint.spec.vocabulary)?;
        Ok(generation)
    };
    let settings = sizing::for_answers(&args.engine, &args.speculation, &source.blueprint.spec);
    match prompt {
        Prompt::Ids(ids) => {
            let generation = generation(None)?;
            let prompt = Rendered { tokens: ids, text: None };
            let form = Form::from_args(args, &source, None)?;
            one_shot::run(args, Plan { source, generation, settings, prompt, chat: None, form })
        }
        Prompt::Text(text) => {
            let mut conversation = Conversation::open(args, &source.text)?;
            let generation = generation(conversation.template())?;
            let prompt = conversation.prompt_after(&source.text, &text, settings.context)?;
            let chat = conversation.into_template();
            let form = Form::from_args(args, &source, chat.as_ref())?;
            one_shot::run(args, Plan { source, generation, settings, prompt, chat, form })
        }
        Prompt::Chat if args.json => bail!("--json needs a prompt: there is no chat in JSON"),
        Prompt::Chat => {
            let conversation = Conversation::open(args, &source.text)?;
            let generation = generation(conversation.template())?;
            let form = Form::from_args(args, &source, conversation.template())?;
            let loaded = source.load(&settings, args.device)?;
            chat::Chat::new(source, loaded, generation, conversation, form).talk()
        }
    }
}
