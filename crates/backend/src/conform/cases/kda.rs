//! KDA: gates, and the delta rule with a decay of each key channel, over spans of every kind.

use super::ConformCase;
use super::delta::{BATCHES, Batch, SLOTS, Width, gates, log_rows, prepared, rows_of, slots};
use crate::conform::ConformStage;
use crate::op::{DeltaShape, KdaGates, KdaRule, Spans};
use crate::{BackendError, Op};

pub(super) fn cases() -> Vec<ConformCase> {
    let shape = |key_heads, value_heads, dk, dv| DeltaShape { key_heads, value_heads, dk, dv };
    let mut cases = Vec::new();
    for (name, widths) in BATCHES {
        let log_rows = log_rows(widths);
        for shape in
            [shape(1, 1, 8, 8), shape(4, 4, 16, 16), shape(1, 3, 5, 9), shape(2, 2, 64, 128)]
        {
            let sizes = format!("{name}, {shape:?}, log of {log_rows}");
            let rows = rows_of(widths);
            cases.push(ConformCase::new("kda_rule", &sizes, rows, move |stage| {
                kda_op(stage, shape, &Batch::new(widths, log_rows))
            }));
            cases.push(kda_gates(&sizes, widths, log_rows, shape));
        }
    }
    cases
}

fn kda_gates(
    sizes: &str,
    widths: &'static [Width],
    log_rows: usize,
    shape: DeltaShape,
) -> ConformCase {
    ConformCase::new("kda_gates", sizes, rows_of(widths), move |stage| {
        let Batch { rows, entries, .. } = Batch::new(widths, log_rows);
        let DeltaShape { value_heads, dk, .. } = shape;
        let qkv = stage.rng.values(rows * shape.channels());
        let qkv = stage.updated("qkv", &qkv)?;
        let (a, _) = gates(stage, rows * value_heads * dk)?;
        let b = stage.random("b of heads", rows * value_heads)?;
        let rate: Vec<f32> = (0..value_heads).map(|_| -2.0 - stage.rng.signed()).collect();
        let rate = stage.vector(&rate)?;
        let dt_bias = stage.norm_weight(value_heads * dk)?;
        let spans = Spans { table: stage.span_table(&entries)?, slots: SLOTS, log_rows };
        let decay = stage.output("decay", rows * value_heads * dk)?;
        let beta = stage.output("beta", rows * value_heads)?;
        Ok(KdaGates { qkv, a, b, rate, dt_bias, spans, shape, decay, beta }.into())
    })
}

/// Rows as [`KdaGates`] makes them: `[q | k | v]`, decays of each channel, beta.
fn rows_ready(
    stage: &mut ConformStage<'_>,
    rows: usize,
    shape: DeltaShape,
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (qkv, _, beta) = prepared(stage, rows, shape);
    let decay = stage.rng.values(rows * shape.value_heads * shape.dk);
    (qkv, decay.iter().map(|v| 0.8 + 0.19 * v).collect(), beta)
}

/// The rule over a batch of prepared rows.
pub(in crate::conform) fn kda_op(
    stage: &mut ConformStage<'_>,
    shape: DeltaShape,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let DeltaShape { key_heads, value_heads, dk, .. } = shape;
    let (qkv, decay, beta) = rows_ready(stage, *rows, shape);
    let qkv = stage.input("qkv", &qkv)?;
    let decay = stage.input("decay", &decay)?;
    let beta = stage.input("beta", &beta)?;
    let state = slots(stage, entries, shape.state_len());
    let state = stage.updated("state", &state)?;
    let (kept, decays, betas) = rows_ready(stage, SLOTS * log_rows, shape);
    let (channels, wide) = (shape.channels(), value_heads * dk);
    let line = |row: usize| {
        let kv = &kept[row * channels + key_heads * dk..(row + 1) * channels];
        let decay = &decays[row * wide..(row + 1) * wide];
        [kv, decay, &betas[row * value_heads..(row + 1) * value_heads]].concat()
    };
    let log: Vec<f32> = (0..SLOTS * log_rows).flat_map(line).collect();
    let log = stage.moved("log", &log)?;
    let table = stage.span_table(entries)?;
    let spans = Spans { table, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * value_heads * shape.dv)?;
    Ok(KdaRule { qkv, decay, beta, state, log, spans, shape, out }.into())
}
