//! Gated DeltaNet: inputs and the delta rule over spans of every kind.
//!
//! A slot whose span starts at position 0 holds NaN before the call: its contents must not matter.

use super::ConformCase;
use crate::conform::ConformStage;
use crate::op::{DeltaGates, DeltaInputs, DeltaRule, DeltaShape, SpanEntry, Spans};
use crate::{BackendError, Op, View, WeightId};
use forerun_base::{DType, Format};

pub(super) const SLOTS: usize = 6;
const LOG_ROWS: usize = 4;

/// Rows of one span: confirmed ones, drafts, pending log rows, and where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Width {
    confirmed: u32,
    drafts: u32,
    pending: u32,
    start: u32,
}

const fn width(confirmed: u32, drafts: u32, pending: u32, start: u32) -> Width {
    Width { confirmed, drafts, pending, start }
}

/// What batches are made of.
pub(super) const BATCHES: [(&str, &[Width]); 11] = [
    ("no spans", &[]),
    ("one token", &[width(1, 0, 0, 7)]),
    ("first token", &[width(1, 0, 0, 0)]),
    ("prompt", &[width(67, 0, 0, 0)]),
    ("second chunk", &[width(17, 0, 0, 64)]),
    ("fold only", &[width(0, 0, 3, 12)]),
    ("fold and go on", &[width(1, 0, 2, 12)]),
    ("drafts", &[width(1, 3, 0, 20)]),
    ("fold, then drafts", &[width(1, 4, 4, 20)]),
    ("drafts from nothing", &[width(0, 2, 0, 0)]),
    (
        "mixed",
        &[
            width(5, 0, 0, 0),
            width(1, 2, 1, 9),
            width(0, 4, 4, 33),
            width(2, 1, 0, 2),
            width(1, 0, 3, 5),
        ],
    ),
];

/// Rows and the spans they belong to.
pub(in crate::conform) struct Batch {
    pub(in crate::conform) rows: usize,
    pub(in crate::conform) entries: Vec<SpanEntry>,
    /// Rows a slot's log holds.
    pub(in crate::conform) log_rows: usize,
}

impl Batch {
    /// Slots are handed out from the last, so that order and slot differ.
    pub(super) fn new(widths: &[Width], log_rows: usize) -> Self {
        let mut first_row = 0;
        let mut entries = Vec::new();
        for (i, width) in widths.iter().enumerate() {
            let rows = width.confirmed + width.drafts;
            entries.push(SpanEntry {
                first_row,
                rows,
                confirmed: width.confirmed,
                pending: width.pending,
                slot: (SLOTS - 1 - i) as u32,
                start: width.start,
            });
            first_row += rows;
        }
        Self { rows: first_row as usize, entries, log_rows }
    }
}

/// Random contents for slots of `len`, NaN where a span starts anew.
pub(super) fn slots(stage: &mut ConformStage<'_>, entries: &[SpanEntry], len: usize) -> Vec<f32> {
    let mut values = stage.rng.values(SLOTS * len);
    for entry in entries.iter().filter(|entry| entry.start == 0) {
        let slot = entry.slot as usize;
        values[slot * len..(slot + 1) * len].fill(f32::NAN);
    }
    values
}

pub(super) fn cases() -> Vec<ConformCase> {
    let shape = |key_heads, value_heads, dk, dv| DeltaShape { key_heads, value_heads, dk, dv };
    let shapes = [shape(1, 1, 8, 8), shape(2, 4, 16, 16), shape(1, 3, 5, 9), shape(2, 2, 128, 64)];
    let mut cases = Vec::new();
    for (name, widths) in BATCHES {
        let log_rows = log_rows(widths);
        for (shape, taps) in shapes.into_iter().zip([2, 4, 3, 4]) {
            cases.push(delta_inputs(name, widths, log_rows, (shape, taps)));
            cases.push(delta_rule(name, widths, log_rows, shape));
            cases.push(delta_gates(name, widths, log_rows, shape));
        }
    }
    cases
}

/// Rows of a slot's log: without drafts a device may be given no log at all.
pub(super) fn log_rows(widths: &[Width]) -> usize {
    let logs = widths.iter().any(|width| width.drafts + width.pending > 0);
    if logs || widths.is_empty() { LOG_ROWS } else { 0 }
}

pub(super) fn rows_of(widths: &[Width]) -> usize {
    Batch::new(widths, 0).rows
}

fn delta_inputs(
    name: &str,
    widths: &'static [Width],
    log_rows: usize,
    (shape, taps): (DeltaShape, usize),
) -> ConformCase {
    let sizes = format!("{name}, {shape:?}, {taps} taps, log of {log_rows}");
    ConformCase::new("delta_inputs", sizes, rows_of(widths), move |stage| {
        inputs_op(stage, (shape, taps), &Batch::new(widths, log_rows))
    })
}

/// The delta rule's inputs with a convolution of so many taps over a batch.
pub(in crate::conform) fn inputs_op(
    stage: &mut ConformStage<'_>,
    (shape, taps): (DeltaShape, usize),
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let x = stage.random("x", rows * channels)?;
    let (a, b) = gates(stage, rows * heads)?;
    let weight = stage.matrix([channels, taps], Format::Dense(DType::F32))?;
    let (rate, dt_bias) = rates(stage, heads)?;
    let window = slots(stage, entries, (taps - 1) * channels);
    let window = stage.moved("window", &window)?;
    let log = stage.rng.values(SLOTS * log_rows * channels);
    let log = stage.moved("log", &log)?;
    let table = stage.span_table(entries)?;
    let spans = Spans { table, slots: SLOTS, log_rows: *log_rows };
    let qkv = stage.output("qkv", rows * channels)?;
    let decay = stage.output("decay", rows * heads)?;
    let beta = stage.output("beta", rows * heads)?;
    Ok(DeltaInputs {
        x,
        a,
        b,
        weight,
        rate,
        dt_bias,
        beta_scale: beta_scale(shape),
        window,
        log,
        spans,
        shape,
        qkv,
        decay,
        beta,
    }
    .into())
}

/// What decay and write strength are made from.
pub(super) fn gates(
    stage: &mut ConformStage<'_>,
    len: usize,
) -> Result<(View, View), BackendError> {
    // Beyond ±20 the usual formulas for softplus overflow or lose everything.
    let a: Vec<f32> = stage.rng.values(len).iter().map(|v| 30.0 * v).collect();
    Ok((stage.input("a", &a)?, stage.random("b", len)?))
}

/// The factor on write strengths: with and without one, by what the heads are.
fn beta_scale(shape: DeltaShape) -> f32 {
    if shape.dk.is_multiple_of(16) { 1.0 } else { 2.0 }
}

/// `rate` and `dt_bias`.
fn rates(stage: &mut ConformStage<'_>, heads: usize) -> Result<(WeightId, WeightId), BackendError> {
    let rate: Vec<f32> = (0..heads).map(|_| -2.0 - stage.rng.signed()).collect();
    Ok((stage.vector(&rate)?, stage.norm_weight(heads)?))
}

fn delta_gates(
    name: &str,
    widths: &'static [Width],
    log_rows: usize,
    shape: DeltaShape,
) -> ConformCase {
    ConformCase::new("delta_gates", format!("{name}, {shape:?}"), rows_of(widths), move |stage| {
        let Batch { rows, entries, .. } = Batch::new(widths, log_rows);
        let heads = rows * shape.value_heads;
        let qkv = stage.rng.values(rows * shape.channels());
        let qkv = stage.updated("qkv", &qkv)?;
        let (a, b) = gates(stage, heads)?;
        let (rate, dt_bias) = rates(stage, shape.value_heads)?;
        let spans = Spans { table: stage.span_table(&entries)?, slots: SLOTS, log_rows };
        let decay = stage.output("decay", heads)?;
        let beta = stage.output("beta", heads)?;
        let beta_scale = beta_scale(shape);
        Ok(DeltaGates { qkv, a, b, rate, dt_bias, beta_scale, spans, shape, decay, beta }.into())
    })
}

/// Rows as `delta_inputs` makes them: unit keys, small queries, decay and beta in (0, 1).
pub(super) fn prepared(
    stage: &mut ConformStage<'_>,
    rows: usize,
    shape: DeltaShape,
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut qkv = stage.rng.values(rows * shape.channels());
    for row in qkv.chunks_exact_mut(shape.channels()) {
        for head in row[..2 * shape.key_heads * shape.dk].chunks_exact_mut(shape.dk) {
            let norm = head.iter().map(|v| v * v).sum::<f32>().sqrt();
            head.iter_mut().for_each(|v| *v /= norm);
        }
    }
    let decay = stage.rng.values(rows * shape.value_heads);
    let decay = decay.iter().map(|v| 0.8 + 0.19 * v).collect();
    let beta = stage.rng.values(rows * shape.value_heads);
    let beta = beta.iter().map(|v| 0.5 + 0.49 * v).collect();
    (qkv, decay, beta)
}

/// A log whose rows are rows the delta rule could have written.
fn delta_log(stage: &mut ConformStage<'_>, shape: DeltaShape, log_rows: usize) -> Vec<f32> {
    let rows = SLOTS * log_rows;
    let (qkv, decay, beta) = prepared(stage, rows, shape);
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let mut log = Vec::new();
    for row in 0..rows {
        let line = &qkv[row * channels..(row + 1) * channels];
        log.extend_from_slice(&line[shape.key_heads * shape.dk..]);
        log.extend_from_slice(&decay[row * heads..(row + 1) * heads]);
        log.extend_from_slice(&beta[row * heads..(row + 1) * heads]);
    }
    log
}

fn delta_rule(
    name: &str,
    widths: &'static [Width],
    log_rows: usize,
    shape: DeltaShape,
) -> ConformCase {
    let sizes = format!("{name}, {shape:?}, log of {log_rows}");
    ConformCase::new("delta_rule", sizes, rows_of(widths), move |stage| {
        delta_op(stage, shape, &Batch::new(widths, log_rows))
    })
}

/// The delta rule over a batch of prepared rows.
pub(in crate::conform) fn delta_op(
    stage: &mut ConformStage<'_>,
    shape: DeltaShape,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let (qkv, decay, beta) = prepared(stage, *rows, shape);
    let qkv = stage.input("qkv", &qkv)?;
    let decay = stage.input("decay", &decay)?;
    let beta = stage.input("beta", &beta)?;
    let state = slots(stage, entries, shape.state_len());
    let state = stage.updated("state", &state)?;
    let log = delta_log(stage, shape, *log_rows);
    let log = stage.moved("log", &log)?;
    let table = stage.span_table(entries)?;
    let spans = Spans { table, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * shape.value_heads * shape.dv)?;
    Ok(DeltaRule { qkv, decay, beta, state, log, spans, shape, out }.into())
}
