//! `forerun` without a command: the bundled model tells a story.

use crate::answer::remark;
use crate::args::{DeviceArgs, ModelArgs, SpeculationArgs};
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::screen::Screen;
use crate::{bundled, interrupt, terminal};
use forerun::{Depth, Ending, GenerationOptions, PromptKind};
use forerun_engine::Settings;

const OPENING: &str = "Once upon a time there was a little fox who lived beside the river.";
const MAX_TOKENS: usize = 200;

pub(crate) fn tell_a_story() -> anyhow::Result<Outcome> {
    let source = ModelSource::open(&bundled::find()?, &ModelArgs::default())?;
    let prompt = source.text.encode_raw(OPENING)?;
    let settings = Settings {
        context: prompt.len() + MAX_TOKENS,
        speculation: SpeculationArgs::default().speculation(),
        ..Settings::default()
    };
    let processor = source.processor(settings.context, true)?;
    let options =
        GenerationOptions::new().max_tokens(MAX_TOKENS).cancel(interrupt::token().clone());
    let generation = processor.generation(prompt, PromptKind::Text, &options, None)?;
    let (model, _) = source.model(processor, &settings, DeviceArgs::default(), Depth::Auto)?;
    let mut screen = Screen::stdout(None);
    screen.say(OPENING)?;
    let mut stream = model.generate(generation)?;
    screen.follow(&mut stream)?;
    let told = stream.answer()?;
    screen.end_line()?;
    remark(&told, "");
    terminal::aside("try next: `forerun run` to chat, `forerun --help` for the rest");
    let cancelled = told.finish.ending == Ending::Cancelled;
    Ok(if cancelled { Outcome::Cancelled } else { Outcome::Done })
}
