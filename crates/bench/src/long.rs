//! A prompt as long as the context of a large model, and decoding behind it.
//!
//! Says whether reading slows down by no more than attention must, whether memory stays at its plan, and how far
//! decoding is from what reading weights, keys and state once would allow.

use crate::prompts::random_tokens;
use crate::roofline::{MachineReport, PhaseReport, StepPhase, machine_line, operations_text};
use crate::{
    BenchError, BenchEvent, BenchModel, BenchOptions, LoadModel, csv, open_measured, resident,
};
use forerun_backend::{Meter, Timed};
use forerun_engine::{Engine, Event, FinishReason, ModelRunner, Request, Settings};
use forerun_report::rate;
use forerun_report::{MemoryReport, bytes_text};
use serde::Serialize;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// The prompt is timed in this many pieces: of 128K tokens, 16K each.
const PIECES: usize = 8;

/// What [`long`] measured.
#[derive(Serialize)]
pub struct LongReport {
    version: &'static str,
    model: String,
    device: String,
    kv: String,
    machine: MachineReport,
    prompt_tokens: usize,
    pieces: Vec<PromptPiece>,
    decode: PhaseReport,
    memory: LongMemory,
}

/// A part of the prompt: whole steps.
#[derive(Clone, Debug, Serialize)]
struct PromptPiece {
    first: usize,
    end: usize,
    tokens_per_s: f64,
    /// Behind it; null where the system does not tell.
    resident_bytes: Option<u64>,
}

/// Resident memory; null where the system does not tell.
#[derive(Serialize)]
struct LongMemory {
    plan: MemoryReport,
    before_load_bytes: Option<u64>,
    after_load_bytes: Option<u64>,
    after_prompt_bytes: Option<u64>,
    at_end_bytes: Option<u64>,
    /// What was added since before loading, beyond the plan.
    beyond_plan_bytes: Option<u64>,
}

/// Reads a random prompt of `tokens` tokens and decodes behind it.
///
/// # Errors
/// When the context that is given does not hold it, the device is not the CPU, or the device fails.
pub fn long(
    options: &BenchOptions,
    model: &BenchModel<'_>,
    tokens: usize,
    load: &mut dyn LoadModel,
    watch: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<LongReport, BenchError> {
    let settings = settings(options, model, tokens, watch)?;
    let before_load_bytes = resident::bytes();
    let (timed, meter) = Timed::new(open_measured(options)?);
    let runner = load.runner(Box::new(timed), &settings).map_err(BenchError::Load)?;
    let mut engine = Engine::new(runner);
    let after_load_bytes = resident::bytes();
    let plan = engine.runner().memory().clone();
    let prompt = random_tokens(tokens, model.spec.vocabulary);
    // The first token comes with the prompt; half of the others give the rate, the other half the cost.
    engine.submit(Request::greedy(prompt, 2 * options.tokens + 1))?;
    let pieces = read(&mut engine, tokens, watch)?;
    let after_prompt_bytes = resident::bytes();
    // Beside what it is compared with: a machine that others share is not the same minutes later.
    let machine = forerun_devices::measure(options.device.threads)?;
    let phase = decode(&mut engine, &meter, tokens, options.tokens)?;
    let at_end_bytes = resident::bytes();
    let added = before_load_bytes.zip(at_end_bytes).map(|(a, b)| b.saturating_sub(a));
    Ok(LongReport {
        version: env!("CARGO_PKG_VERSION"),
        model: model.name.to_owned(),
        device: engine.runner().device(),
        kv: settings.kv.to_string(),
        machine: MachineReport::from(&machine),
        prompt_tokens: tokens,
        pieces,
        decode: PhaseReport::new(&phase, &machine),
        memory: LongMemory {
            beyond_plan_bytes: added.map(|added| added.saturating_sub(plan.total())),
            plan: MemoryReport::from(&plan),
            before_load_bytes,
            after_load_bytes,
            after_prompt_bytes,
            at_end_bytes,
        },
    })
}

impl LongReport {
    /// Tables for people.
    pub fn table(&self) -> String {
        table_text(self)
    }

    /// A line for each piece of the prompt and one for the decode.
    pub fn csv(&self) -> String {
        csv_text(self)
    }
}

fn settings(
    options: &BenchOptions,
    model: &BenchModel<'_>,
    tokens: usize,
    watch: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<Settings, BenchError> {
    let most = model.spec.max_positions;
    let reach = options.tokens.saturating_mul(2).saturating_add(1).saturating_add(tokens);
    let context = options.context.unwrap_or(reach);
    if context < reach {
        return Err(BenchError::LongContext { tokens, reach });
    }
    if reach > most {
        watch(BenchEvent::Note(&format!(
            "note: {reach} positions are beyond the {most} this model was made for; speed is the same, \
             text is not"
        )));
    }
    let prefill_chunk = options.prefill_chunk;
    Ok(Settings {
        context,
        prefill_chunk,
        kv: options.kv,
        submission_budget: options.submission_budget,
        ..Settings::default()
    })
}

/// Reads the prompt, the first token of the answer included.
fn read(
    engine: &mut Engine<ModelRunner>,
    tokens: usize,
    watch: &mut dyn FnMut(BenchEvent<'_>),
) -> Result<Vec<PromptPiece>, BenchError> {
    let chunk = engine.runner().limits().rows;
    let mut pieces: Vec<PromptPiece> = Vec::with_capacity(PIECES);
    let (mut first, mut done, mut time) = (0, 0, Duration::ZERO);
    while done < tokens {
        let start = Instant::now();
        step(engine)?;
        time += start.elapsed();
        done = tokens.min(done + chunk);
        watch(BenchEvent::Progress { done, total: tokens, doing: "reading" });
        let piece_end = (pieces.len() + 1) * tokens / PIECES;
        if done == tokens || done >= piece_end {
            let (tokens_per_s, resident_bytes) = (rate(done - first, time), resident::bytes());
            pieces.push(PromptPiece { first, end: done, tokens_per_s, resident_bytes });
            (first, time) = (done, Duration::ZERO);
        }
    }
    Ok(pieces)
}

/// `steps` steps with the meter off, and as many with it on.
fn decode(
    engine: &mut Engine<ModelRunner>,
    meter: &Meter,
    context: usize,
    steps: usize,
) -> Result<StepPhase, BenchError> {
    let start = Instant::now();
    (0..steps).try_for_each(|_| step(engine))?;
    let wall = start.elapsed();
    meter.start();
    let done = (0..steps).try_for_each(|_| step(engine));
    let entries = meter.stop();
    done?;
    Ok(StepPhase { name: "decode", sequences: 1, context, rows: steps, steps, wall, entries })
}

fn step(engine: &mut Engine<ModelRunner>) -> Result<(), BenchError> {
    let mut events = Vec::new();
    engine.step(&mut events);
    for event in events {
        if let Event::Finished { reason: FinishReason::Failed(why), .. } = event {
            return Err(BenchError::DeviceFailed { why });
        }
    }
    Ok(())
}

fn table_text(report: &LongReport) -> String {
    let LongReport { version, model, device, kv, machine, prompt_tokens, memory, decode, .. } =
        report;
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), bytes_text);
    let mut text = format!("forerun {version} · {model} · {device} · kv {kv}\n");
    text.push_str(&machine_line(machine));
    text.push_str(&format!("\nprompt, {prompt_tokens} tokens\n"));
    text.push_str(&format!("  {:>16}{:>10}{:>14}\n", "tokens", "tok/s", "resident"));
    for PromptPiece { first, end, tokens_per_s, resident_bytes } in &report.pieces {
        let range = format!("{first}..{end}");
        text.push_str(&format!("  {range:>16}{tokens_per_s:>10.1}{:>14}\n", size(*resident_bytes)));
    }
    text.push_str(&format!(
        "\nmemory: {} planned; resident {} before loading, {} after, {} behind the prompt, {} at the end; \
         {} beyond the plan\n",
        bytes_text(memory.plan.total_bytes),
        size(memory.before_load_bytes),
        size(memory.after_load_bytes),
        size(memory.after_prompt_bytes),
        size(memory.at_end_bytes),
        size(memory.beyond_plan_bytes),
    ));
    text.push_str(&format!(
        "\ndecode from position {}: {:.2} tok/s; {} a token ({} weights, {} keys and state) bound it at {:.2}; \
         achieved {:.0} %\n",
        decode.context,
        decode.rows_per_s,
        bytes_text(decode.kept_bytes()),
        bytes_text(decode.weight_bytes),
        bytes_text(decode.state_bytes),
        decode.bound_rows_per_s,
        100.0 * decode.share_of_bound,
    ));
    text.push_str(&operations_text(decode));
    text
}

/// A line for each piece of the prompt and one for the decode.
fn csv_text(report: &LongReport) -> String {
    let mut text = "version,device,model,phase,first,end,tok_s,resident_bytes\n".to_owned();
    let LongReport { version, model, device, memory, decode, .. } = report;
    let mut line = |phase: &'static str, first: usize, end: usize, speed, resident: Option<u64>| {
        text.push_str(&csv::line(&[
            Cow::from(*version),
            csv::quoted(device),
            csv::quoted(model),
            phase.into(),
            first.to_string().into(),
            end.to_string().into(),
            format!("{speed:.3}").into(),
            resident.map(|bytes| bytes.to_string()).unwrap_or_default().into(),
        ]));
    };
    for piece in &report.pieces {
        line("prompt", piece.first, piece.end, piece.tokens_per_s, piece.resident_bytes);
    }
    let end = decode.context + decode.steps;
    line("decode", decode.context, end, decode.rows_per_s, memory.at_end_bytes);
    text
}
