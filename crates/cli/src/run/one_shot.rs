//! One prompt, one answer.

use crate::answer::{remark, sampling_line};
use crate::args::RunArgs;
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::receipt::ReceiptReport;
use crate::report::{MemoryReport, SamplingReport};
use crate::screen::Screen;
use crate::stats::{Timings, TimingsReport};
use crate::terminal;
use forerun::{Answer, Ending, Generation, Model, PromptKind, Sampling, TextProcessor, Token};
use forerun_engine::Settings;
use forerun_text::AnswerParser;
use serde::Serialize;

/// Everything decided before weights are read.
pub(super) struct Plan {
    pub(super) source: ModelSource,
    pub(super) processor: TextProcessor,
    pub(super) settings: Settings,
    pub(super) kind: PromptKind,
    pub(super) generation: Generation,
    /// Tells reasoning from content, where the prompt is a chat.
    pub(super) parser: Option<AnswerParser>,
}

pub(super) fn run(args: &RunArgs, plan: Plan) -> anyhow::Result<Outcome> {
    let Plan { source, processor, settings, kind, generation, parser } = plan;
    let depth = args.speculation.draft;
    let sampling = generation.sampling.clone();
    let sampled = sampling_line(&processor, kind, &sampling);
    let (model, load_s) = source.model(processor, &settings, args.device, depth)?;
    let mut stream = model.generate(generation)?.with_parser(parser);
    let mut screen = if args.json { Screen::silent() } else { Screen::stdout(args.reasoning) };
    screen.follow(&mut stream)?;
    let answer = stream.answer()?;
    if args.json {
        terminal::show_json(&RunReport::new(&model, load_s, kind, &sampling, &answer))?;
    } else {
        finish_text(&model, screen, &answer, &sampled)?;
    }
    let cancelled = answer.finish.ending == Ending::Cancelled;
    Ok(if cancelled { Outcome::Cancelled } else { Outcome::Done })
}

fn finish_text(
    model: &Model,
    mut screen: Screen,
    answer: &Answer,
    sampled: &str,
) -> anyhow::Result<()> {
    if model.processor().tokenizer().is_ok() {
        screen.end_line()?;
    } else {
        let ids: Vec<String> = answer.token_ids.iter().map(Token::to_string).collect();
        terminal::show(&format!("{}\n", ids.join(",")))?;
    }
    remark(answer, sampled);
    Ok(())
}

/// The answer as JSON.
#[derive(Serialize)]
struct RunReport<'a> {
    text: Option<&'a str>,
    reasoning: Option<&'a str>,
    token_ids: &'a [Token],
    finish_reason: &'a str,
    stop_string: Option<&'a str>,
    prompt_tokens: usize,
    completion_tokens: usize,
    timings: TimingsReport,
    speculation: ReceiptReport,
    model: &'a str,
    device: &'a str,
    seed: u64,
    sampling: SamplingReport<'a>,
    sampling_source: &'static str,
    memory: MemoryReport,
}

impl<'a> RunReport<'a> {
    fn new(
        model: &'a Model,
        load_s: f64,
        kind: PromptKind,
        sampling: &'a Sampling,
        answer: &'a Answer,
    ) -> Self {
        let (processor, finish) = (model.processor(), &answer.finish);
        Self {
            text: processor.tokenizer().is_ok().then_some(&answer.content),
            reasoning: (!answer.reasoning.is_empty()).then_some(&answer.reasoning),
            token_ids: &answer.token_ids,
            finish_reason: finish.ending.reason(),
            stop_string: finish.ending.stop_string(),
            prompt_tokens: finish.prompt_tokens,
            completion_tokens: answer.token_ids.len(),
            timings: Timings::of(finish).report(load_s),
            speculation: ReceiptReport::new(model.speculation_off(), &finish.receipt),
            model: model.name(),
            device: model.device(),
            seed: sampling.seed,
            sampling: SamplingReport::from(sampling),
            sampling_source: processor.sampling_source(kind).as_str(),
            memory: MemoryReport::from(model.memory()),
        }
    }
}
