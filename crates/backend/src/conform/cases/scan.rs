//! Mamba-2: steps, the selective scan over spans of every kind, and the gated norm over groups.

use super::ConformCase;
use super::delta::{BATCHES, Batch, SLOTS, Width, log_rows, rows_of, slots};
use crate::conform::ConformStage;
use crate::op::{GatedGroupNorm, ScanGates, ScanShape, SelectiveScan, Spans};
use crate::{BackendError, Op};

pub(super) fn cases() -> Vec<ConformCase> {
    let mut cases = Vec::new();
    for (rows, heads) in [(0, 4), (1, 1), (1, 24), (7, 3), (67, 8)] {
        for limits in [(0.0, f32::INFINITY), (0.5, 2.0)] {
            cases.push(gates(rows, heads, limits));
        }
    }
    for (rows, groups, dim) in [(0, 2, 8), (1, 1, 1), (1, 1, 256), (3, 3, 5), (67, 2, 24)] {
        cases.push(group_norm(rows, groups, dim));
    }
    let shape = |heads, groups, width, state| ScanShape { heads, groups, width, state };
    let shapes = [shape(1, 1, 8, 8), shape(4, 2, 16, 16), shape(3, 1, 5, 9), shape(2, 2, 64, 128)];
    for (name, widths) in BATCHES {
        for shape in shapes {
            cases.push(scan(name, widths, shape));
        }
    }
    cases
}

fn gates(rows: usize, heads: usize, (least, most): (f32, f32)) -> ConformCase {
    let sizes = format!("{rows} rows, {heads} heads, steps {least} to {most}");
    ConformCase::new("scan_gates", sizes, rows, move |stage| {
        // Beyond ±20 the usual formulas for softplus overflow or lose everything.
        let dt: Vec<f32> = stage.rng.values(rows * heads).iter().map(|v| 30.0 * v).collect();
        let step = stage.updated("step", &dt)?;
        let rate: Vec<f32> = (0..heads).map(|_| -2.0 - stage.rng.signed()).collect();
        let (rate, bias) = (stage.vector(&rate)?, stage.norm_weight(heads)?);
        let decay = stage.output("decay", rows * heads)?;
        Ok(ScanGates { step, rate, bias, heads, least, most, decay }.into())
    })
}

fn group_norm(rows: usize, groups: usize, dim: usize) -> ConformCase {
    let sizes = format!("{rows} rows, {groups} groups of {dim}");
    ConformCase::new("gated_group_norm", sizes, rows, move |stage| {
        let x = stage.rng.values(rows * groups * dim);
        let x = stage.updated("x", &x)?;
        let gate = stage.random("gate", rows * groups * dim)?;
        let weight = stage.norm_weight(groups * dim)?;
        Ok(GatedGroupNorm { x, gate, weight, dim, eps: 1e-5 }.into())
    })
}

fn scan(name: &str, widths: &'static [Width], shape: ScanShape) -> ConformCase {
    let log_rows = log_rows(widths);
    let sizes = format!("{name}, {shape:?}, log of {log_rows}");
    ConformCase::new("selective_scan", sizes, rows_of(widths), move |stage| {
        scan_op(stage, shape, &Batch::new(widths, log_rows))
    })
}

/// Rows of `[x | B | C]`, steps and decays, the latter in (0, 1).
fn prepared(stage: &mut ConformStage<'_>, rows: usize, shape: ScanShape) -> [Vec<f32>; 3] {
    let xbc = stage.rng.values(rows * shape.channels());
    let between = |from: f32, to: f32, v: &f32| from + (to - from) * (0.5 + 0.5 * v);
    let step = stage.rng.values(rows * shape.heads);
    let step = step.iter().map(|v| between(0.05, 0.6, v)).collect();
    let decay = stage.rng.values(rows * shape.heads);
    [xbc, step, decay.iter().map(|v| between(0.5, 0.99, v)).collect()]
}

/// A log whose rows are rows the scan could have written.
fn scan_log(stage: &mut ConformStage<'_>, shape: ScanShape, log_rows: usize) -> Vec<f32> {
    let rows = SLOTS * log_rows;
    let [xbc, step, decay] = prepared(stage, rows, shape);
    let mut log = Vec::new();
    for row in 0..rows {
        let kept = shape.channels() - shape.groups * shape.state;
        log.extend_from_slice(&xbc[row * shape.channels()..][..kept]);
        log.extend_from_slice(&step[row * shape.heads..][..shape.heads]);
        log.extend_from_slice(&decay[row * shape.heads..][..shape.heads]);
    }
    log
}

/// The scan over a batch of prepared rows.
pub(in crate::conform) fn scan_op(
    stage: &mut ConformStage<'_>,
    shape: ScanShape,
    batch: &Batch,
) -> Result<Op, BackendError> {
    let Batch { rows, entries, log_rows } = batch;
    let [xbc, step, decay] = prepared(stage, *rows, shape);
    let xbc = stage.input("xbc", &xbc)?;
    let step = stage.input("step", &step)?;
    let decay = stage.input("decay", &decay)?;
    let skip = stage.norm_weight(shape.heads)?;
    let state = slots(stage, entries, shape.state_len());
    let state = stage.updated("state", &state)?;
    let log = scan_log(stage, shape, *log_rows);
    let log = stage.moved("log", &log)?;
    let spans = Spans { table: stage.span_table(entries)?, slots: SLOTS, log_rows: *log_rows };
    let out = stage.output("out", rows * shape.inner())?;
    Ok(SelectiveScan { xbc, step, decay, skip, state, log, spans, shape, out }.into())
}
