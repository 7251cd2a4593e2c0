//! One prompt, one answer.

use crate::answer::{line, show_answer};
use crate::args::RunArgs;
use crate::exit::Outcome;
use crate::load::ModelSource;
use crate::receipt::ReceiptReport;
use crate::report::{MemoryReport, SamplingReport};
use crate::stats::{Timings, TimingsReport};
use crate::terminal;
use forerun::{Answer, Ending, Generation, Model, PromptKind, Sampling, TextProcessor, Token};
use forerun_engine::Settings;
use serde::Serialize;

/// Everything decided before weights are read.
pub(super) struct Plan {
    pub(super) source: ModelSource,
    pub(super) processor: TextProcessor,
    pub(super) settings: Settings,
    pub(super) kind: PromptKind,
    pub(super) generation: Generation,
}

pub(super) fn run(args: &RunArgs, plan: Plan) -> anyhow::Result<Outcome> {
    let Plan { source, processor, settings, kind, generation } = plan;
    let depth = args.speculation.draft;
    let sampling = generation.sampling.clone();
    let sampled = crate::answer::sampling_line(&processor, kind, &sampling);
    let (model, load_s) = source.model(processor, &settings, args.device, depth)?;
    let mut stream = model.generate(generation)?;
    let mut show = |text: &str| if args.json { Ok(()) } else { terminal::show(text) };
    show_answer(&mut stream, &mut show)?;
    let answer = stream.answer()?;
    if args.json {
        terminal::show_json(&RunReport::new(&model, load_s, kind, &sampling, &answer))?;
    } else {
        finish_text(&model, &answer, &sampled)?;
    }
    let cancelled = answer.finish.ending == Ending::Cancelled;
    Ok(if cancelled { Outcome::Cancelled } else { Outcome::Done })
}

fn finish_text(model: &Model, answer: &Answer, sampled: &str) -> anyhow::Result<()> {
    if model.processor().tokenizer().is_ok() {
        terminal::end_line(&answer.text)?;
    } else {
        let ids: Vec<String> = answer.token_ids.iter().map(Token::to_string).collect();
        terminal::show(&format!("{}\n", ids.join(",")))?;
    }
    terminal::aside(&line(answer, sampled));
    Ok(())
}

/// The answer as JSON.
#[derive(Serialize)]
struct RunReport<'a> {
    text: Option<&'a str>,
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
            text: processor.tokenizer().is_ok().then_some(&answer.text),
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
