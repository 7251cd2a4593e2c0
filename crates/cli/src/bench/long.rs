//! `forerun bench --long`: a prompt as long as the context of a large model, and decoding behind it.
//!
//! Says whether reading slows down by no more than attention must, whether memory stays at its plan, and how far
//! decoding is from what reading weights, keys and state once would allow.

use super::prompts::random_tokens;
use super::roofline::{MachineReport, Phase, PhaseReport, machine_line, operations_text};
use super::{csv, output, resident};
use crate::args::BenchArgs;
use crate::device;
use crate::load::Source;
use crate::report::{MemoryReport, bytes_text};
use crate::stats::rate;
use crate::terminal;
use anyhow::bail;
use forerun_backend::{Meter, Timed};
use forerun_engine::{Engine, Event, FinishReason, ModelRunner, Request, Settings};
use serde::Serialize;
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// The prompt is timed in this many pieces: of 128K tokens, 16K each.
const PIECES: usize = 8;

#[derive(Serialize)]
struct Long<'a> {
    version: &'static str,
    model: &'a str,
    device: String,
    kv: String,
    machine: MachineReport,
    prompt_tokens: usize,
    pieces: Vec<Piece>,
    decode: PhaseReport,
    memory: Memory,
}

/// A part of the prompt: whole steps.
#[derive(Clone, Debug, Serialize)]
struct Piece {
    first: usize,
    end: usize,
    tokens_per_s: f64,
    /// Behind it; null where the system does not tell.
    resident_bytes: Option<u64>,
}

/// Resident memory; null where the system does not tell.
#[derive(Serialize)]
struct Memory {
    plan: MemoryReport,
    before_load_bytes: Option<u64>,
    after_load_bytes: Option<u64>,
    after_prompt_bytes: Option<u64>,
    at_end_bytes: Option<u64>,
    /// What was added since before loading, beyond the plan.
    beyond_plan_bytes: Option<u64>,
}

pub(super) fn long(args: &BenchArgs, source: &Source, tokens: usize) -> anyhow::Result<()> {
    let settings = settings(args, source, tokens)?;
    let before_load_bytes = resident::bytes();
    let (timed, meter) = Timed::new(device::open_measured(args.device)?);
    let mut engine = Engine::new(source.runner(Box::new(timed), &settings)?);
    let after_load_bytes = resident::bytes();
    let plan = engine.runner().memory().clone();
    let prompt = random_tokens(tokens, source.blueprint.spec.vocabulary);
    // The first token comes with the prompt; half of the others give the rate, the other half the cost.
    engine.submit(Request::greedy(prompt, 2 * args.tokens + 1))?;
    let pieces = read(&mut engine, tokens)?;
    let after_prompt_bytes = resident::bytes();
    // Beside what it is compared with: a machine that others share is not the same minutes later.
    let machine = device::measure(args.device)?;
    let phase = decode(&mut engine, &meter, tokens, args.tokens)?;
    let at_end_bytes = resident::bytes();
    let added = before_load_bytes.zip(at_end_bytes).map(|(a, b)| b.saturating_sub(a));
    let report = Long {
        version: env!("CARGO_PKG_VERSION"),
        model: &source.path,
        device: engine.runner().device(),
        kv: settings.kv.to_string(),
        machine: MachineReport::from(&machine),
        prompt_tokens: tokens,
        pieces,
        decode: PhaseReport::new(&phase, &machine),
        memory: Memory {
            beyond_plan_bytes: added.map(|added| added.saturating_sub(plan.total())),
            plan: MemoryReport::from(&plan),
            before_load_bytes,
            after_load_bytes,
            after_prompt_bytes,
            at_end_bytes,
        },
    };
    output::show(args, &report, || table_text(&report), || csv_text(&report))
}

fn settings(args: &BenchArgs, source: &Source, tokens: usize) -> anyhow::Result<Settings> {
    let most = source.blueprint.spec.max_positions;
    let reach = args.tokens.saturating_mul(2).saturating_add(1).saturating_add(tokens);
    let context = args.engine.ctx.unwrap_or(reach);
    if context < reach {
        bail!("--long {tokens} needs {reach} positions; give a larger --ctx, or none");
    }
    if reach > most {
        terminal::note(&format!(
            "note: {reach} positions are beyond the {most} this model was made for; speed is the same, \
             text is not"
        ));
    }
    Ok(Settings {
        context,
        prefill_chunk: args.engine.prefill_chunk,
        kv: args.engine.kv.dtype(),
        submission_budget: args.engine.submission_budget(),
        ..Settings::default()
    })
}

/// Reads the prompt, the first token of the answer included.
fn read(engine: &mut Engine<ModelRunner>, tokens: usize) -> anyhow::Result<Vec<Piece>> {
    let chunk = engine.runner().limits().rows;
    let bar = terminal::bar(tokens as u64, "reading {wide_bar} {pos}/{len} {eta}");
    let mut pieces: Vec<Piece> = Vec::with_capacity(PIECES);
    let (mut first, mut done, mut time) = (0, 0, Duration::ZERO);
    while done < tokens {
        let start = Instant::now();
        step(engine)?;
        time += start.elapsed();
        done = tokens.min(done + chunk);
        bar.set_position(done as u64);
        let piece_end = (pieces.len() + 1) * tokens / PIECES;
        if done == tokens || done >= piece_end {
            let (tokens_per_s, resident_bytes) = (rate(done - first, time), resident::bytes());
            pieces.push(Piece { first, end: done, tokens_per_s, resident_bytes });
            (first, time) = (done, Duration::ZERO);
        }
    }
    bar.finish_and_clear();
    Ok(pieces)
}

/// `steps` steps with the meter off, and as many with it on.
fn decode(
    engine: &mut Engine<ModelRunner>,
    meter: &Meter,
    context: usize,
    steps: usize,
) -> anyhow::Result<Phase> {
    let start = Instant::now();
    (0..steps).try_for_each(|_| step(engine))?;
    let wall = start.elapsed();
    meter.start();
    let done = (0..steps).try_for_each(|_| step(engine));
    let entries = meter.stop();
    done?;
    Ok(Phase { name: "decode", sequences: 1, context, rows: steps, steps, wall, entries })
}

fn step(engine: &mut Engine<ModelRunner>) -> anyhow::Result<()> {
    let mut events = Vec::new();
    engine.step(&mut events);
    for event in events {
        if let Event::Finished { reason: FinishReason::Failed(why), .. } = event {
            bail!("the device failed: {why}");
        }
    }
    Ok(())
}

fn table_text(report: &Long<'_>) -> String {
    let Long { version, model, device, kv, machine, prompt_tokens, memory, decode, .. } = report;
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), bytes_text);
    let mut text = format!("forerun {version} · {model} · {device} · kv {kv}\n");
    text.push_str(&machine_line(machine));
    text.push_str(&format!("\nprompt, {prompt_tokens} tokens\n"));
    text.push_str(&format!("  {:>16}{:>10}{:>14}\n", "tokens", "tok/s", "resident"));
    for Piece { first, end, tokens_per_s, resident_bytes } in &report.pieces {
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
fn csv_text(report: &Long<'_>) -> String {
    let mut text = "version,device,model,phase,first,end,tok_s,resident_bytes\n".to_owned();
    let Long { version, model, device, memory, decode, .. } = report;
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
