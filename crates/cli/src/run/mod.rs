//! `forerun run`: one answer, or a chat.

mod chat;
mod command;
mod conversation;
mod input;
mod one_shot;

use crate::args::RunArgs;
use crate::exit::Outcome;
use crate::generation::Generation;
use crate::load::Source;
use crate::sizing;
use anyhow::bail;
use conversation::Conversation;
use input::{Input, Prompt};

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<Outcome> {
    let Input { model, prompt } = Input::from_args(args)?;
    let source = Source::open(&model, &args.model_options)?;
    let generation = Generation::from_args(args, &source.text.defaults);
    generation.sampling.check(source.blueprint.spec.vocabulary)?;
    let settings = sizing::for_answers(&args.engine, &args.speculation, &source.blueprint.spec);
    match prompt {
        Prompt::Ids(ids) => {
            let plan = one_shot::Plan { source, generation, settings, prompt: ids, chat: None };
            one_shot::run(args, plan)
        }
        Prompt::Text(text) => {
            let mut conversation = Conversation::open(args, &source.text)?;
            let prompt = conversation.prompt_after(&source.text, &text)?;
            let chat = conversation.into_template();
            one_shot::run(args, one_shot::Plan { source, generation, settings, prompt, chat })
        }
        Prompt::Chat if args.json => bail!("--json needs a prompt: there is no chat in JSON"),
        Prompt::Chat => {
            let conversation = Conversation::open(args, &source.text)?;
            let loaded = source.load(&settings, args.threads)?;
            chat::Chat::new(source, loaded, generation, conversation).talk()
        }
    }
}
