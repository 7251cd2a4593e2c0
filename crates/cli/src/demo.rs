//! `forerun` without a command: the bundled model tells a story.

use crate::answer::{Ending, Question, answer};
use crate::args::{DeviceArgs, ModelArgs, SpeculationArgs};
use crate::bundled;
use crate::exit::Outcome;
use crate::generation::Generation;
use crate::load::Source;
use crate::terminal;
use forerun_engine::Settings;

const OPENING: &str = "Once upon a time there was a little fox who lived beside the river.";
const MAX_TOKENS: usize = 200;

pub(crate) fn tell_a_story() -> anyhow::Result<Outcome> {
    let source = Source::open(&bundled::find()?, &ModelArgs::default())?;
    let prompt = source.text.encode_raw(OPENING)?;
    let generation = Generation::from_defaults(&source.text.defaults, MAX_TOKENS);
    let settings = Settings {
        context: prompt.len() + MAX_TOKENS,
        speculation: SpeculationArgs::default().speculation(),
        ..Settings::default()
    };
    let mut loaded = source.load(&settings, DeviceArgs::default())?;
    let question = Question {
        prompt,
        generation: &generation,
        end_tokens: &source.text.end_tokens(None),
        tokenizer: source.text.tokenizer.as_ref(),
        constraint: None,
        park: false,
    };
    terminal::show(OPENING)?;
    let told = answer(&mut loaded.engine, question, None, &mut terminal::show)?;
    terminal::end_line(told.text.as_deref().unwrap_or_default())?;
    terminal::aside(&told.line());
    terminal::aside("try next: `forerun run` to chat, `forerun --help` for the rest");
    Ok(if told.ending == Ending::Cancelled { Outcome::Cancelled } else { Outcome::Done })
}
