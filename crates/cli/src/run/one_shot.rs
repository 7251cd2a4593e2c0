//! One prompt, one answer.

use super::conversation::Rendered;
use super::form::Form;
use crate::answer::{Answer, Ending, Question, answer};
use crate::args::RunArgs;
use crate::exit::Outcome;
use crate::generation::Generation;
use crate::load::{Loaded, Source};
use crate::receipt::ReceiptReport;
use crate::report::{MemoryReport, SamplingReport};
use crate::stats::TimingsReport;
use crate::{sizing, terminal};
use forerun_base::Token;
use forerun_engine::{Settings, check_tokens};
use forerun_text::ChatTemplate;
use serde::Serialize;

/// Everything decided before weights are read.
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) generation: Generation,
    pub(super) settings: Settings,
    pub(super) prompt: Rendered,
    /// The template the prompt went through.
    pub(super) chat: Option<ChatTemplate>,
    /// What the answer must look like.
    pub(super) form: Option<Form>,
}

pub(super) fn run(args: &RunArgs, plan: Plan) -> anyhow::Result<Outcome> {
    let Plan { source, generation, settings, prompt, chat, form } = plan;
    let Rendered { tokens: prompt, text } = prompt;
    let constraint = form.map(|form| form.constraint(text.as_deref())).transpose()?;
    check_tokens(&prompt, source.blueprint.spec.vocabulary)?;
    sizing::check_fits(prompt.len(), &settings, &source.blueprint.spec)?;
    let mut loaded = source.load(&settings, args.device)?;
    let question = Question {
        prompt,
        generation: &generation,
        end_tokens: &source.text.end_tokens(chat.as_ref()),
        tokenizer: source.text.tokenizer.as_ref(),
        constraint,
        park: false,
    };
    let mut show = |text: &str| if args.json { Ok(()) } else { terminal::show(text) };
    let answer = answer(&mut loaded.engine, question, None, &mut show)?;
    if args.json {
        terminal::show_json(&Report::new(&source, &mut loaded, &generation, &answer))?;
    } else {
        finish_text(&answer)?;
    }
    Ok(if answer.ending == Ending::Cancelled { Outcome::Cancelled } else { Outcome::Done })
}

fn finish_text(answer: &Answer) -> anyhow::Result<()> {
    match &answer.text {
        Some(text) => terminal::end_line(text)?,
        None => {
            let ids: Vec<String> = answer.token_ids.iter().map(Token::to_string).collect();
            terminal::show(&format!("{}\n", ids.join(",")))?;
        }
    }
    terminal::aside(&answer.line());
    Ok(())
}

/// The answer as JSON.
#[derive(Serialize)]
struct Report<'a> {
    text: Option<&'a str>,
    token_ids: &'a [Token],
    finish_reason: &'a str,
    stop_string: Option<&'a str>,
    prompt_tokens: usize,
    completion_tokens: usize,
    timings: TimingsReport,
    speculation: ReceiptReport,
    model: &'a str,
    device: String,
    seed: u64,
    sampling: SamplingReport<'a>,
    sampling_source: &'static str,
    memory: MemoryReport,
}

impl<'a> Report<'a> {
    fn new(
        source: &'a Source,
        loaded: &mut Loaded,
        generation: &'a Generation,
        answer: &'a Answer,
    ) -> Self {
        let speculation = ReceiptReport::new(&loaded.engine, &answer.receipt);
        let runner = loaded.engine.runner();
        Self {
            text: answer.text.as_deref(),
            token_ids: &answer.token_ids,
            finish_reason: answer.ending.reason(),
            stop_string: answer.ending.stop_string(),
            prompt_tokens: answer.prompt_tokens,
            completion_tokens: answer.token_ids.len(),
            timings: answer.timings.report(loaded.load_s),
            speculation,
            model: &source.path,
            device: runner.device(),
            seed: generation.sampling.seed,
            sampling: SamplingReport::from(&generation.sampling),
            sampling_source: generation.source.as_str(),
            memory: MemoryReport::from(runner.memory()),
        }
    }
}
